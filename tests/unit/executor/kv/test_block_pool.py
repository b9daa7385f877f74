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
        pytest.param(lambda pool: pool.share(ids(0, 2)), id="share an empty block"),
        pytest.param(lambda pool: pool.share(ids(0, 4)), id="share an id past the end"),
        pytest.param(lambda pool: pool.keep(ids(0, 2)), id="keep a free block"),
        pytest.param(lambda pool: pool.keep(ids(0, 4)), id="keep an id past the end"),
        pytest.param(lambda pool: pool.discard(ids(0, 4)), id="discard an id past the end"),
        pytest.param(
            lambda pool: pool.reference_counts_without(ids(0, 0)), id="foresee a release that is one too many"
        ),
    ],
)
def test_a_wrong_operation_changes_nothing(operation: Callable[[BlockPool], object]) -> None:
    pool = BlockPool(4)
    held = pool.allocate(2)
    with pytest.raises(BlockAccountingError):
        operation(pool)
    assert pool.num_free == 2
    pool.check_integrity([held])


def kept_pool(*texts: list[int]) -> BlockPool:
    """Six blocks, all in use but those of the texts, which are kept; the first text was freed first."""
    pool = BlockPool(6)
    pool.allocate(6)
    for text in texts:
        pool.keep(ids(*text))
        pool.release(ids(*text))
    return pool


def test_a_kept_block_is_free_and_comes_back_into_use_with_its_content() -> None:
    pool = kept_pool([0, 1])
    assert (pool.num_free, pool.num_kept) == (2, 2)
    pool.share(ids(1, 1))
    assert (pool.num_free, pool.num_kept) == (1, 1)
    assert pool.reference_counts(ids(0, 1)).tolist() == [0, 2]
    assert pool.with_content().tolist() == [0, 1]
    pool.release(ids(1, 1))
    assert (pool.num_free, pool.num_kept) == (2, 2)
    pool.check_integrity([ids(2, 3, 4, 5)])


def test_empty_blocks_are_allocated_before_kept_ones() -> None:
    pool = kept_pool([0, 1])
    pool.release(ids(5))
    assert pool.allocate(1).tolist() == [5]
    assert pool.num_kept == 2


def test_kept_blocks_are_lost_least_recently_used_first_and_each_text_from_its_end() -> None:
    pool = kept_pool([3, 0], [1, 4])
    assert pool.allocate(3).tolist() == [0, 3, 4]
    assert pool.with_content().tolist() == [1]
    pool.check_integrity([ids(0, 3, 4, 2, 5)])


def test_a_block_that_was_shared_again_is_used_more_recently() -> None:
    pool = kept_pool([0], [1])
    pool.share(ids(0))
    pool.release(ids(0))
    assert pool.allocate(2).tolist() == [1, 0]


def test_discarded_content_is_not_kept() -> None:
    pool = kept_pool([0, 1])
    pool.share(ids(1))
    pool.discard(ids(0, 1))
    assert (pool.num_free, pool.num_kept) == (1, 0)
    pool.release(ids(1))
    assert (pool.num_free, pool.num_kept) == (2, 0)
    pool.check_integrity([ids(2, 3, 4, 5)])


def test_counts_after_a_release_can_be_foreseen() -> None:
    pool = BlockPool(3)
    pool.share(pool.allocate(2))
    assert pool.reference_counts_without(ids(0, 1, 1)).tolist() == [1, 0, 0]
    assert pool.reference_counts(ids(0, 1, 2)).tolist() == [2, 2, 0]


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
    pool._push_empty(pool._take_free(2)[:1].repeat(2))
    with pytest.raises(BlockAccountingError, match="twice"):
        pool.check_integrity([])


def test_integrity_check_finds_a_lost_block() -> None:
    pool = BlockPool(4)
    pool._take_free(1)
    with pytest.raises(BlockAccountingError, match="3 empty \\+ 0 kept \\+ 0 in use is not 4 blocks"):
        pool.check_integrity([])


def test_integrity_check_finds_content_where_there_is_none() -> None:
    pool = BlockPool(4)
    pool._has_content[2] = True
    with pytest.raises(BlockAccountingError, match="an empty block has content"):
        pool.check_integrity([])


def test_negative_sizes_are_refused() -> None:
    with pytest.raises(ValueError, match="num_blocks must be at least 0"):
        BlockPool(-1)
    with pytest.raises(ValueError, match="count must be at least 0"):
        BlockPool(1).allocate(-1)
