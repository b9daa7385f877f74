"""Sizes that cannot be are refused with the numbers, from the model's configuration alone."""

from __future__ import annotations

import pytest
import torch
from transformers import LlamaConfig

from executor_service import sizing
from executor_service.config import parse_config
from executor_service.engine.limits import Limits
from executor_service.kv.cache import KVCacheSpec, bytes_per_block
from executor_service.sizing import SizeError, allocate_cache, fitting_limits

MODEL = LlamaConfig(
    num_hidden_layers=2,
    hidden_size=32,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=8,
    max_position_embeddings=512,
)
BLOCK_BYTES = 2 * 2 * 16 * 2 * 8 * 4  # layers, key and value, tokens, heads, dimension, float32


def limits_for(*argv: str) -> Limits:
    return fitting_limits(parse_config(argv, {}), MODEL, torch.float32)


def test_memory_becomes_blocks_and_a_quarter_as_many_swap_blocks() -> None:
    limits = limits_for("--kv-cache-memory", str(10 * BLOCK_BYTES + 1))
    assert (limits.num_blocks, limits.num_swap_blocks, limits.max_model_len) == (10, 2, 512)
    limits = limits_for("--num-blocks", "7", "--num-swap-blocks", "3", "--max-model-len", "512")
    assert (limits.num_blocks, limits.num_swap_blocks, limits.max_model_len) == (7, 3, 512)


def test_less_memory_than_a_block_is_refused() -> None:
    with pytest.raises(SizeError, match=f"takes {BLOCK_BYTES} bytes, --kv-cache-memory gives {BLOCK_BYTES - 1}"):
        limits_for("--kv-cache-memory", str(BLOCK_BYTES - 1))


@pytest.mark.parametrize("argv", [("--num-blocks", "800"), ("--num-blocks", "999", "--num-swap-blocks", "1")])
def test_what_just_fits_the_machine_is_taken_and_more_is_refused(
    monkeypatch: pytest.MonkeyPatch, argv: tuple[str, ...]
) -> None:
    monkeypatch.setattr(sizing, "memory_bytes", lambda: 1000 * BLOCK_BYTES)
    assert limits_for(*argv).num_blocks == int(argv[1])
    monkeypatch.setattr(sizing, "memory_bytes", lambda: 1000 * BLOCK_BYTES - 1)
    with pytest.raises(SizeError, match=r"need 3\.9 MiB of memory, this machine has 3\.9 MiB; choose less with --kv-"):
        limits_for(*argv)


def test_the_900_tebibytes_of_a_slip_of_the_pen_are_more_than_any_machine_has() -> None:
    with pytest.raises(SizeError, match=r"need 1,152,000\.0 GiB of memory, this machine has [\d,.]+ GiB"):
        limits_for("--kv-cache-memory", "900TiB")


def cuda_limits(monkeypatch: pytest.MonkeyPatch, *argv: str, free_blocks: float, host_blocks: float) -> Limits:
    """With so much memory free on each device, and so much on the host, in blocks of this model."""
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (int(free_blocks * BLOCK_BYTES), 10**12))
    monkeypatch.setattr(sizing, "memory_bytes", lambda: int(host_blocks * BLOCK_BYTES))
    return fitting_limits(parse_config(argv, {}), MODEL, torch.float32, torch.device("cuda:0"))


def test_on_cuda_the_cache_takes_most_of_what_is_free_and_swap_space_is_bounded_by_the_host(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    limits = cuda_limits(monkeypatch, free_blocks=1000.1, host_blocks=10_000)
    assert (limits.num_blocks, limits.num_swap_blocks) == (800, 200)
    limits = cuda_limits(monkeypatch, free_blocks=1000.1, host_blocks=400)
    assert (limits.num_blocks, limits.num_swap_blocks) == (800, 100)
    limits = cuda_limits(monkeypatch, "--kv-cache-memory", str(7 * BLOCK_BYTES), free_blocks=1000, host_blocks=400)
    assert limits.num_blocks == 7
    two = cuda_limits(monkeypatch, "--tensor-parallel-size", "2", free_blocks=500, host_blocks=10_000)
    assert two.num_blocks == 800  # each rank holds half of a block


def test_on_cuda_each_memory_has_its_own_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SizeError, match=r"the device has [\d.]+ MiB free"):
        cuda_limits(monkeypatch, "--num-blocks", "11", free_blocks=10, host_blocks=10_000)
    with pytest.raises(SizeError, match="this machine has"):
        cuda_limits(monkeypatch, "--num-blocks", "9", "--num-swap-blocks", "11", free_blocks=10, host_blocks=10)
    assert cuda_limits(
        monkeypatch, "--num-blocks", "9", "--num-swap-blocks", "10", free_blocks=10, host_blocks=10
    ) == cuda_limits(monkeypatch, "--num-blocks", "9", "--num-swap-blocks", "10", free_blocks=9, host_blocks=10)


def test_two_ranks_hold_what_one_would_and_a_shared_kv_head_twice() -> None:
    limits = limits_for("--kv-cache-memory", str(10 * BLOCK_BYTES), "--tensor-parallel-size", "2")
    assert limits.num_blocks == 10
    limits = limits_for("--kv-cache-memory", str(10 * BLOCK_BYTES), "--tensor-parallel-size", "4")
    assert limits.num_blocks == 5


def test_more_tokens_than_the_model_takes_are_refused() -> None:
    with pytest.raises(SizeError, match="--max-model-len is 513, this model takes 512 tokens at most"):
        limits_for("--max-model-len", "513")


def test_memory_that_the_allocator_does_not_give_is_one_line() -> None:
    spec = KVCacheSpec.from_config(MODEL, block_size=16, dtype=torch.float32)
    limits = Limits(
        max_num_batched_tokens=1,
        max_num_seqs=1,
        block_size=16,
        num_blocks=2**62 // bytes_per_block(spec),
        num_swap_blocks=0,
        max_model_len=1,
        max_num_waiting=None,
    )
    with pytest.raises(SizeError, match="so much cannot be had") as caught:
        allocate_cache(spec, limits, torch.device("cpu"))
    assert "\n" not in str(caught.value)
