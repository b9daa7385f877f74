"""Paged attention on CUDA by torch's `varlen_attn`, which reads pages in place: one call a layer for a whole pass.

The kernels of FlashAttention 2 that torch 2.13 brings along take no block table. FlashAttention 3 (Hopper) and 4
(Blackwell) do; they are packages of their own, which torch calls when it is told to. Whether they serve a model's heads
and types is tried out once, on random input; where not, `attention_paged.py` does the same more slowly.

Legend: T tokens, R requests, H query heads, K KV heads, D head dimension.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch.nn.attention import activate_flash_attention_impl

from executor_service.kv.cache import KVCache, KVCacheSpec
from executor_service.model.attention_reference import reference_attention
from executor_service.model.batch import RaggedBatch
from executor_service.model.device_batch import DeviceBatch
from executor_service.model.transfer import to_device

# By the first number of a device's compute capability.
_IMPLEMENTATIONS = {9: "FA3", 10: "FA4"}

_SERVED_DTYPES = (torch.bfloat16, torch.float16)

# What 8 bits of a number make of scores of up to 8, of weights and of outputs.
_TOLERANCE = 5e-2


def attend_varlen(
    query: torch.Tensor,
    output: torch.Tensor,
    kv_cache: KVCache,
    batch: DeviceBatch,
    *,
    layer: int,
    scaling: float,
    window: int | None,
) -> None:
    """Attend from query [T, H, D] to what the cache holds for each request, into output [T, H, D], contiguous.

    The last query of a request is at the end of its context, as `varlen_attn` has it where keys are more than queries.
    Its window counts the keys before a query's own; ours counts that one too.
    """
    from torch.nn.attention.varlen import varlen_attn_out  # brings torch's compiler along, a fifth of a start

    keys, values = kv_cache.layer_blocks(layer)
    tables = batch.ragged_tables
    varlen_attn_out(
        output,
        query,
        keys,
        values,
        tables.query_starts,
        None,  # with a block table, lengths take the place of starts
        tables.max_query_len,
        tables.max_context_len,
        scale=scaling,
        window_size=(-1 if window is None else window - 1, 0),
        enable_gqa=True,
        seqused_k=tables.context_lens,
        block_table=tables.block_tables,
    )


def serves_varlen(spec: KVCacheSpec, *, device: torch.device, num_heads: int, progress: Callable[[str], None]) -> bool:
    """Whether `attend_varlen` serves a model of so many query heads; if not, the reason goes to ``progress``."""
    if device.type != "cuda":
        return False
    try:
        _activate(spec.dtype, torch.cuda.get_device_capability(device)[0])
        _try_out(spec, device, num_heads)
    except Exception as error:  # a package that is not there, or kernels that refuse, in whatever way
        first_line = (str(error).strip().splitlines() or [type(error).__name__])[0]
        progress(f"attending by torch's own operations, which are slower: {first_line}")
        return False
    return True


def _activate(dtype: torch.dtype, capability: int) -> None:
    if dtype not in _SERVED_DTYPES:
        raise RuntimeError(f"no kernel reads pages in {str(dtype).removeprefix('torch.')}")
    if capability not in _IMPLEMENTATIONS:
        raise RuntimeError(f"no kernel reads pages on devices of compute capability {capability}.x")
    activate_flash_attention_impl(_IMPLEMENTATIONS[capability])


@torch.inference_mode()
def _try_out(spec: KVCacheSpec, device: torch.device, num_heads: int) -> None:
    """Raises RuntimeError where it gives another result than the reference: with a window and without one, over decodes
    and chunks, and pages in any order."""
    context_lens = np.array([1, 3 * spec.block_size + 1, 40, 2 * spec.block_size], dtype=np.int32)
    query_lens = np.array([1, 1, 9, 2 * spec.block_size], dtype=np.int32)
    width = -(-int(context_lens.max()) // spec.block_size)
    num_blocks = width * len(context_lens)
    tables = np.arange(num_blocks, dtype=np.int32)[::-1].reshape(len(context_lens), width)
    batch = RaggedBatch(
        token_ids=np.zeros(query_lens.sum(), dtype=np.int64),
        positions=np.concatenate([np.arange(c - q, c) for q, c in zip(query_lens, context_lens, strict=True)]),
        query_lens=query_lens,
        context_lens=context_lens,
        block_tables=np.ascontiguousarray(tables),
        num_decodes=2,
        logits_rows=np.zeros(0, dtype=np.int64),
    )
    cache = KVCache(spec, num_blocks=num_blocks, num_swap_blocks=0, device=device)
    generator = torch.Generator().manual_seed(0)
    shape = (2, num_blocks * spec.block_size, spec.num_kv_heads, spec.head_dim)
    keys, values = to_device(torch.randn(shape, generator=generator).to(spec.dtype), device)
    cache.write(0, keys, values, torch.arange(num_blocks * spec.block_size, device=device))
    query = torch.randn(batch.num_tokens, num_heads, spec.head_dim, generator=generator).to(spec.dtype)
    query = to_device(query, device)
    device_batch = DeviceBatch(batch, spec=spec, device=device)
    expected, attended = torch.empty_like(query), torch.empty_like(query)
    for window in (None, 5):
        scaling = spec.head_dim**-0.5
        reference_attention(query, expected, cache, batch, layer=0, scaling=scaling, window=window)
        attend_varlen(query, attended, cache, device_batch, layer=0, scaling=scaling, window=window)
        if not torch.allclose(attended.float(), expected.float(), rtol=_TOLERANCE, atol=_TOLERANCE):
            raise RuntimeError("the kernel that reads pages computes something else")
