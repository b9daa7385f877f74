"""The block pool: what each operation does, and that a refused one does nothing."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from executor_service.kv.block_pool import BlockAccountingError, BlockIds, BlockPool, OutOfBlocksError


def ids(*blocks: int) -> BlockIds:
    return np.array(blocks, dtype=np.int32)


def test_allocates_ascending_ids_from_a_fresh_pool() -> None:
    pool = BlockPool(4)
    blocks = pool.allocate(3)
    assert blocks.dtype == np.int32
    assert blocks.tolist() == [0, 1, 2]
    assert (pool.num_blocks, pool.num_free) == (4, 1)


def test_last_freed_are_reused_first_the_lowest_id_before_others() -> None:
    pool = BlockPool(6)
    pool.allocate(5)
    assert pool.release(ids(3, 1)) == 2
    assert pool.release(ids(4)) == 1
    assert pool.allocate(4).tolist() == [4, 1, 3, 5]


def test_allocation_is_all_or_nothing() -> None:
    pool = BlockPool(3)
    held = pool.allocate(2)
    with pytest.raises(OutOfBlocksError, match="needs 2 blocks, 1 free") as raised:
        pool.allocate(2)
    assert (raised.value.needed, raised.value.free) == (2, 1)
    assert pool.num_free == 1
    pool.check_integrity([held])


@pytest.mark.parametrize("num_blocks", [0, 3])
def test_allocating_nothing_takes_nothing(num_blocks: int) -> None:
    pool = BlockPool(num_blocks)
    assert len(pool.allocate(0)) == 0
    assert pool.release(ids()) == 0
    assert pool.num_free == num_blocks
    pool.check_integrity([])


def test_shared_block_is_free_when_its_last_holder_lets_go() -> None:
    pool = BlockPool(3)
    blocks = pool.allocate(2)
    pool.share(blocks[:1])
    assert pool.reference_counts(blocks).tolist() == [2, 1]
    assert pool.release(blocks) == 1
    assert pool.num_free == 2
    assert pool.release(blocks[:1]) == 1
    assert pool.num_free == 3


def test_mentions_of_one_block_in_one_call_add_up() -> None:
    pool = BlockPool(2)
    blocks = pool.allocate(1)
    pool.share(ids(0, 0))
    assert pool.reference_counts(blocks).tolist() == [3]
    assert pool.release(ids(0, 0, 0)) == 1
    pool.check_integrity([])


@pytest.mark.parametrize(
    "operation",
    [
        pytest.param(lambda pool: pool.release(ids(0, 2)), id="release a free block"),
        pytest.param(lambda pool: pool.release(ids(0, 1, 1)), id="release one block twice"),
        pytest.param(lambda pool: pool.release(ids(0, -1)), id="release a negative id"),
        pytest.param(lambda pool: pool.release(ids(0, 4)), id="release an id past the end"),
        pytest.param(lambda pool: pool.share(ids(0, 2)), id="share a free block"),
        pytest.param(lambda pool: pool.share(ids(0, 4)), id="share an id past the end"),
    ],
)
def test_a_wrong_operation_changes_nothing(operation: Callable[[BlockPool], object]) -> None:
    pool = BlockPool(4)
    held = pool.allocate(2)
    with pytest.raises(BlockAccountingError):
        operation(pool)
    assert pool.num_free == 2
    pool.check_integrity([held])


@pytest.mark.parametrize(
    "holders",
    [
        pytest.param([], id="a block that nobody holds is in use"),
        pytest.param([ids(0, 1), ids(1)], id="more holders than references"),
        pytest.param([ids(0, 1, 2)], id="a free block is held"),
    ],
)
def test_integrity_check_finds_holders_that_differ_from_the_books(holders: list[BlockIds]) -> None:
    pool = BlockPool(4)
    pool.allocate(2)
    with pytest.raises(BlockAccountingError, match="holders and reference count"):
        pool.check_integrity(holders)


def test_integrity_check_finds_a_block_that_is_free_twice() -> None:
    pool = BlockPool(4)
    pool._put_free(pool._take_free(2)[:1].repeat(2))
    with pytest.raises(BlockAccountingError, match="twice"):
        pool.check_integrity([])


def test_integrity_check_finds_a_lost_block() -> None:
    pool = BlockPool(4)
    pool._take_free(1)
    with pytest.raises(BlockAccountingError, match="3 free \\+ 0 in use is not 4 blocks"):
        pool.check_integrity([])


def test_negative_sizes_are_refused() -> None:
    with pytest.raises(ValueError, match="num_blocks must be at least 0"):
        BlockPool(-1)
    with pytest.raises(ValueError, match="count must be at least 0"):
        BlockPool(1).allocate(-1)
