"""The sizes of an executor: what was asked for, against what the model takes and the machine holds.

All that can be refused is refused from the model's configuration alone, before its weights are loaded.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from executor_service.config import Config
from executor_service.engine.limits import Limits
from executor_service.kv.cache import KVCache, KVCacheSpec, bytes_per_block
from executor_service.model.shard import num_kv_heads_of_rank

# Unless told otherwise: memory of the KV cache on a CPU, and its share of what is free on CUDA devices once the model
# is loaded, which leaves the rest to the tensors of a pass.
CPU_CACHE_BYTES = 2**30
CUDA_CACHE_SHARE = 0.8

SWAP_SHARE = 4  # one swap block for so many KV blocks, unless told otherwise
SWAP_MEMORY_SHARE = 4  # and at most one in so many bytes of the host, for the cache of a CUDA device

_CPU = torch.device("cpu")

# The bound that a container sets, of control groups version 2 and 1.
_CONTAINER_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))


class SizeError(ValueError):
    """The sizes asked for do not go together, with the model, or with the machine. The text says what to do."""


def fitting_limits(config: Config, model_config: Any, dtype: torch.dtype, device: torch.device = _CPU) -> Limits:
    """The limits that the settings ask for. Raises SizeError where they cannot be.

    ``model_config``: of transformers. ``device``: of rank 0; the others are taken to be like it.
    """
    num_ranks = config.tensor_parallel_size
    spec = spec_of_rank(model_config, block_size=config.block_size, dtype=dtype, num_ranks=num_ranks)
    block_bytes = num_ranks * bytes_per_block(spec)
    on_host = memory_bytes()
    on_devices = num_ranks * torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else None
    cache_bytes = config.kv_cache_bytes or (
        CPU_CACHE_BYTES if on_devices is None else int(CUDA_CACHE_SHARE * on_devices)
    )
    num_blocks = config.num_blocks or cache_bytes // block_bytes
    if num_blocks < 1:
        raise SizeError(f"a KV block of this model takes {block_bytes} bytes, --kv-cache-memory gives {cache_bytes}")
    num_swap_blocks = config.num_swap_blocks
    if num_swap_blocks is None:
        num_swap_blocks = num_blocks // SWAP_SHARE
        if on_devices is not None:
            num_swap_blocks = min(num_swap_blocks, on_host // SWAP_MEMORY_SHARE // block_bytes)
    needed = (num_blocks + num_swap_blocks) * block_bytes
    if on_devices is not None and num_blocks * block_bytes > on_devices:
        raise _too_large(num_blocks, num_swap_blocks, needed, f"the device has {_readable(on_devices)} free")
    needed_on_host = num_swap_blocks * block_bytes if on_devices is not None else needed
    if needed_on_host > on_host:
        raise _too_large(num_blocks, num_swap_blocks, needed, f"this machine has {_readable(on_host)}")
    return Limits(
        max_num_batched_tokens=config.max_num_batched_tokens,
        max_num_seqs=config.max_num_seqs,
        block_size=config.block_size,
        num_blocks=num_blocks,
        num_swap_blocks=num_swap_blocks,
        max_model_len=_max_model_len(config, model_config),
        max_num_waiting=config.max_num_waiting,
    )


def spec_of_rank(model_config: Any, *, block_size: int, dtype: torch.dtype, num_ranks: int) -> KVCacheSpec:
    """What one of so many processes stores of a token; each has all blocks, with its own KV heads."""
    spec = KVCacheSpec.from_config(model_config, block_size=block_size, dtype=dtype)
    return replace(spec, num_kv_heads=num_kv_heads_of_rank(spec.num_kv_heads, num_ranks))


def allocate_cache(spec: KVCacheSpec, limits: Limits, device: torch.device) -> KVCache:
    """Raises SizeError where the memory cannot be had."""
    num_blocks, num_swap_blocks = limits.num_blocks, limits.num_swap_blocks
    try:
        return KVCache(spec, num_blocks=num_blocks, num_swap_blocks=num_swap_blocks, device=device)
    except (MemoryError, RuntimeError) as error:  # torch has no error of its own for the memory of a CPU
        needed = (num_blocks + num_swap_blocks) * bytes_per_block(spec)
        raise _too_large(num_blocks, num_swap_blocks, needed, "so much cannot be had") from error


def memory_bytes() -> int:
    """Memory of this machine, or of the container where that has less."""
    bounds = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    for path in _CONTAINER_LIMITS:
        if path.is_file() and (text := path.read_text(encoding="ascii").strip()).isdigit():  # else "max"
            bounds.append(int(text))
    return min(bounds)


def _max_model_len(config: Config, model_config: Any) -> int:
    longest: int = model_config.get_text_config(decoder=True).max_position_embeddings
    if (config.max_model_len or 0) > longest:
        raise SizeError(f"--max-model-len is {config.max_model_len}, this model takes {longest} tokens at most")
    return config.max_model_len or longest


def _too_large(num_blocks: int, num_swap_blocks: int, needed: int, but: str) -> SizeError:
    return SizeError(
        f"{num_blocks} KV blocks and {num_swap_blocks} swap blocks need {_readable(needed)} of memory, {but}; "
        "choose less with --kv-cache-memory, or with --num-blocks and --num-swap-blocks"
    )


def _readable(num_bytes: int) -> str:
    if num_bytes < 2**30:
        return f"{num_bytes / 2**20:.1f} MiB"
    return f"{num_bytes / 2**30:,.1f} GiB"
