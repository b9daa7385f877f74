"""Paged attention by matrix products over gathered blocks, correct on any device.

The query heads that share a KV head are queries of that head, so grouped queries need no copy of keys. Measured on a
CPU with one KV head of 256 against `scaled_dot_product_attention` after the same gather: prefill of 512 tokens takes
0.4 of its time in bfloat16 and 0.7 in float32, decodes 0.9; one SDPA a request takes 1.4 to 2.5 times its time for
decodes.

Legend: T tokens, g decodes of a group, n queries of a block, H query heads, K KV heads, G = H / K, C keys,
D head dimension.
"""

from __future__ import annotations

import torch

from executor_service.kv.cache import KVCache
from executor_service.model.device_batch import DecodeGroup, PrefillChunk, QueryBlock


def attend_decode_groups(
    query: torch.Tensor,
    output: torch.Tensor,
    kv_cache: KVCache,
    groups: tuple[DecodeGroup, ...],
    *,
    layer: int,
    scaling: float,
) -> None:
    """Attend from the decodes of query [T, H, D] to what the cache holds for each, into output [T, H, D]."""
    for group in groups:
        keys, values = kv_cache.gather(layer, group.blocks)
        queries = query.index_select(0, group.rows)
        output.index_copy_(0, group.rows, _attend_decodes(queries, keys, values, group, scaling))


def attend_prefill_chunks(
    query: torch.Tensor,
    output: torch.Tensor,
    kv_cache: KVCache,
    chunks: tuple[PrefillChunk, ...],
    *,
    layer: int,
    scaling: float,
) -> None:
    """The same for prefill chunks."""
    for chunk in chunks:
        keys, values = kv_cache.gather(layer, chunk.blocks)
        for block in chunk.query_blocks:
            output[block.start : block.stop] = _attend_block(
                query[block.start : block.stop],
                keys[block.key_start : block.key_stop],
                values[block.key_start : block.key_stop],
                block,
                scaling,
            )


def _attend_decodes(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, group: DecodeGroup, scaling: float
) -> torch.Tensor:
    """query [g, H, D], keys and values [g * C, K, D]. Returns [g, H, D]."""
    num_decodes, num_heads, head_dim = query.shape
    num_kv_heads = keys.shape[1]
    keys, values = (
        # A view for one KV head, a copy of what is still in the cache of the CPU for more.
        gathered.view(num_decodes, -1, num_kv_heads, head_dim)
        .transpose(1, 2)
        .reshape(num_decodes * num_kv_heads, -1, head_dim)
        for gathered in (keys, values)
    )  # [g * K, C, D]
    grouped = query.reshape(num_decodes * num_kv_heads, -1, head_dim)  # [g * K, G, D]
    mask = group.mask.repeat_interleave(num_kv_heads, dim=0)
    scores = torch.baddbmm(mask, grouped, keys.transpose(1, 2), alpha=scaling)  # [g * K, G, C]
    return torch.bmm(torch.softmax(scores, dim=-1), values).view(num_decodes, num_heads, head_dim)


def _attend_block(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, block: QueryBlock, scaling: float
) -> torch.Tensor:
    """query [n, H, D], keys and values [C, K, D]. Returns [n, H, D]."""
    num_queries, num_heads, head_dim = query.shape
    num_keys, num_kv_heads, _ = keys.shape
    num_groups = num_heads // num_kv_heads
    grouped = query.view(num_queries, num_kv_heads, num_groups, head_dim).transpose(0, 1)  # [K, n, G, D]
    grouped = grouped.reshape(num_kv_heads, num_queries * num_groups, head_dim)
    unused = query.new_empty(1, 1, 1)  # beta=0 ignores it
    scores = torch.baddbmm(unused, grouped, keys.permute(1, 2, 0), beta=0, alpha=scaling)  # [K, n * G, C]
    by_query = scores.view(num_kv_heads, num_queries, num_groups, num_keys)
    by_query[..., -num_queries:] += block.causal_mask
    if block.window_mask is not None:
        by_query[..., : block.window_mask.shape[-1]] += block.window_mask
    attended = torch.bmm(torch.softmax(scores, dim=-1), values.transpose(0, 1))  # [K, n * G, D]
    attended = attended.view(num_kv_heads, num_queries, num_groups, head_dim).transpose(0, 1)
    return attended.reshape(num_queries, num_heads, head_dim)
