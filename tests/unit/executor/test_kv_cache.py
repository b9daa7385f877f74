"""The tensors behind blocks: what is written is gathered, and swap copies are exact."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from executor_service.kv.cache import KVCache, KVCacheSpec, bytes_per_block

SPEC = KVCacheSpec(num_layers=3, num_kv_heads=2, head_dim=8, block_size=4, dtype=torch.bfloat16)


def filled(num_blocks: int = 6, num_swap_blocks: int = 4) -> KVCache:
    """Every slot of every layer has content of its own."""
    kv_cache = KVCache(SPEC, num_blocks=num_blocks, num_swap_blocks=num_swap_blocks)
    num_slots = num_blocks * SPEC.block_size
    generator = torch.Generator().manual_seed(0)
    for layer in range(SPEC.num_layers):
        keys, values = torch.randn(2, num_slots, 2, 8, generator=generator).bfloat16()
        kv_cache.write(layer, keys, values, torch.arange(num_slots))
    return kv_cache


def content(kv_cache: KVCache, block: int) -> torch.Tensor:
    """Keys and values of a block over all layers."""
    layers = [torch.stack(kv_cache.gather(layer, torch.tensor([block]))) for layer in range(SPEC.num_layers)]
    return torch.stack(layers)


def test_written_slots_are_gathered_in_the_order_of_the_blocks() -> None:
    kv_cache = KVCache(SPEC, num_blocks=6, num_swap_blocks=0)
    keys, values = torch.randn(2, 3, 2, 8, generator=torch.Generator().manual_seed(1)).bfloat16()
    kv_cache.write(1, keys, values, torch.tensor([22, 23, 8]))  # the end of block 5 and the start of block 2
    gathered_keys, gathered_values = kv_cache.gather(1, torch.tensor([5, 2]))
    assert torch.equal(gathered_keys[2:5], keys)
    assert torch.equal(gathered_values[2:5], values)
    assert not gathered_keys[:2].any()
    assert not gathered_keys[5:].any()
    assert not torch.stack(kv_cache.gather(0, torch.tensor([5, 2]))).any()


def test_a_swap_round_trip_through_other_blocks_is_exact() -> None:
    kv_cache = filled()
    before = {block: content(kv_cache, block) for block in range(6)}
    kv_cache.copy_out(np.array([4, 1]), np.array([0, 3]))
    kv_cache.copy_in(np.array([3, 0], dtype=np.int32), np.array([2, 5], dtype=np.int32))
    assert torch.equal(content(kv_cache, 2), before[1])
    assert torch.equal(content(kv_cache, 5), before[4])
    for untouched in (0, 1, 3, 4):
        assert torch.equal(content(kv_cache, untouched), before[untouched])


def test_what_was_copied_out_is_safe_from_writes_to_its_old_blocks() -> None:
    kv_cache = filled()
    before = content(kv_cache, 4)
    kv_cache.copy_out(np.array([4]), np.array([2]))
    for layer in range(SPEC.num_layers):
        zeros = torch.zeros(4, 2, 8, dtype=torch.bfloat16)
        kv_cache.write(layer, zeros, zeros, torch.arange(16, 20))
    assert not content(kv_cache, 4).any()
    kv_cache.copy_in(np.array([2]), np.array([4]))
    assert torch.equal(content(kv_cache, 4), before)


def test_copies_on_the_device_read_all_before_they_write_any() -> None:
    kv_cache = filled()
    before = {block: content(kv_cache, block) for block in range(6)}
    kv_cache.copy_within(np.array([4, 4, 1]), np.array([2, 1, 5], dtype=np.int32))
    for block, source in enumerate([0, 4, 4, 3, 4, 1]):
        assert torch.equal(content(kv_cache, block), before[source])


def test_copying_no_blocks_changes_nothing() -> None:
    kv_cache = filled()
    before = [content(kv_cache, block) for block in range(6)]
    nothing = np.array([], dtype=np.int64)
    kv_cache.copy_out(nothing, nothing)
    kv_cache.copy_in(nothing, nothing)
    assert all(torch.equal(content(kv_cache, block), before[block]) for block in range(6))


def test_cleared_blocks_are_zero_in_all_layers_and_no_others_are() -> None:
    kv_cache = filled()
    before = {block: content(kv_cache, block) for block in range(6)}
    kv_cache.clear(torch.tensor([4, 1]))
    for block in range(6):
        expected = torch.zeros_like(before[block]) if block in (1, 4) else before[block]
        assert torch.equal(content(kv_cache, block), expected)


@pytest.mark.parametrize(("device_blocks", "swap_blocks"), [([1, 2], [0]), ([-1], [0]), ([0], [-1])])
def test_pairs_that_do_not_match_are_our_own_bug(device_blocks: list[int], swap_blocks: list[int]) -> None:
    with pytest.raises(AssertionError):
        filled().copy_out(np.array(device_blocks), np.array(swap_blocks))


def test_bytes_per_block_are_the_bytes_that_a_block_takes() -> None:
    kv_cache = filled(num_blocks=6)
    assert bytes_per_block(SPEC) == content(kv_cache, 0).numel() * 2 == 3 * 2 * 4 * 2 * 8 * 2
