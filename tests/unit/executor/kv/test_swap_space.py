"""Swap space: which request holds which swap blocks, and that a refused operation does nothing."""

from __future__ import annotations

import pytest

from executor_service.kv.swap_space import AlreadySwappedError, NotSwappedError, SwapSpace, SwapSpaceFullError


def test_a_request_holds_its_swap_blocks_until_released() -> None:
    swap_space = SwapSpace(4)
    blocks = swap_space.swap_out(7, num_blocks=3, num_tokens=40)
    assert len(set(blocks.tolist())) == 3
    assert 7 in swap_space
    assert (len(swap_space), swap_space.num_free) == (1, 1)
    assert swap_space.holding(7).blocks.tolist() == blocks.tolist()
    assert swap_space.holding(7).num_tokens == 40
    assert swap_space.release(7) == 3
    assert 7 not in swap_space
    assert (len(swap_space), swap_space.num_free, swap_space.num_blocks) == (0, 4, 4)
    swap_space.check_integrity()


@pytest.mark.parametrize(("num_blocks", "free"), [(0, 0), (2, 2)])
def test_case_20_a_full_or_disabled_swap_space_names_the_shortfall(num_blocks: int, free: int) -> None:
    swap_space = SwapSpace(num_blocks)
    with pytest.raises(SwapSpaceFullError, match=f"needs 3 swap blocks, {free} free") as raised:
        swap_space.swap_out(1, num_blocks=3, num_tokens=40)
    assert (raised.value.needed, raised.value.free) == (3, free)
    assert (len(swap_space), swap_space.num_free) == (0, num_blocks)
    swap_space.check_integrity()


def test_a_request_cannot_be_swapped_out_twice() -> None:
    swap_space = SwapSpace(4)
    swap_space.swap_out(1, num_blocks=1, num_tokens=5)
    with pytest.raises(AlreadySwappedError, match="request 1 is already"):
        swap_space.swap_out(1, num_blocks=2, num_tokens=20)
    assert swap_space.holding(1).num_tokens == 5
    assert swap_space.num_free == 3
    swap_space.check_integrity()


def test_only_what_is_swapped_can_be_looked_up_or_released() -> None:
    swap_space = SwapSpace(4)
    with pytest.raises(NotSwappedError, match="request 1 is not"):
        swap_space.holding(1)
    with pytest.raises(NotSwappedError, match="request 1 is not"):
        swap_space.release(1)


def test_what_is_handed_out_cannot_be_written_to() -> None:
    blocks = SwapSpace(2).swap_out(1, num_blocks=2, num_tokens=20)
    with pytest.raises(ValueError, match="read-only"):
        blocks[0] = 1


def test_negative_lengths_are_refused() -> None:
    swap_space = SwapSpace(2)
    with pytest.raises(ValueError, match="num_tokens must be at least 0"):
        swap_space.swap_out(1, num_blocks=1, num_tokens=-1)
    with pytest.raises(ValueError, match="count must be at least 0"):
        swap_space.swap_out(1, num_blocks=-1, num_tokens=1)
    assert 1 not in swap_space
