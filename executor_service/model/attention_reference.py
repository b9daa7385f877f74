"""Paged attention, plain and slow: what every fast path is tested against.

One request at a time: gather its whole context, score every query against every key in float32, mask, softmax, weigh.
It also serves the rare models whose scores are capped or that have attention sinks, which no fused kernel of torch
for the CPU computes.

Legend: T tokens, n tokens of one request, C its context, H query heads, K KV heads, G = H / K, D head dimension.
"""

from __future__ import annotations

import torch

from executor_service.kv.cache import KVCache
from executor_service.model.batch import RaggedBatch
from executor_service.model.transfer import to_device


def reference_attention(
    query: torch.Tensor,
    output: torch.Tensor,
    kv_cache: KVCache,
    batch: RaggedBatch,
    *,
    first_request: int = 0,
    layer: int,
    scaling: float,
    window: int | None = None,
    softcap: float | None = None,
    sinks: torch.Tensor | None = None,
) -> None:
    """Attend from query [T, H, D] to what the cache holds for each request but the first ones, into output [T, H, D].

    `softcap` bounds a score s to softcap * tanh(s / softcap) (Gemma 2); `sinks` [H] are scores that take part in the
    softmax and carry no value (gpt-oss).
    """
    block_size = kv_cache.spec.block_size
    starts = batch.query_starts()
    for request in range(first_request, batch.num_requests):
        context_len = int(batch.context_lens[request])
        start, stop = int(starts[request]), int(starts[request + 1])
        blocks = torch.from_numpy(batch.block_tables[request, : -(-context_len // block_size)].astype("int64"))
        keys, values = kv_cache.gather(layer, to_device(blocks, query.device))
        positions = torch.arange(context_len - (stop - start), context_len, device=query.device)
        output[start:stop] = _attend(
            query[start:stop].float(),
            keys[:context_len].float(),
            values[:context_len].float(),
            _visible(positions, context_len, window),
            scaling,
            softcap,
            sinks,
        ).to(query.dtype)


def _visible(positions: torch.Tensor, context_len: int, window: int | None) -> torch.Tensor:
    """[n, C] whether a query sees a key: itself and what came before, within the window."""
    distance = positions[:, None] - torch.arange(context_len, device=positions.device)
    return (distance >= 0) & (distance < (window or context_len))


def _attend(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    visible: torch.Tensor,
    scaling: float,
    softcap: float | None,
    sinks: torch.Tensor | None,
) -> torch.Tensor:
    """query [n, H, D], keys and values [C, K, D], all float32. Returns [n, H, D]."""
    num_tokens, num_heads, head_dim = query.shape
    num_kv_heads = keys.shape[1]
    grouped = query.view(num_tokens, num_kv_heads, num_heads // num_kv_heads, head_dim)
    scores = torch.einsum("nkgd,ckd->nkgc", grouped, keys) * scaling
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    scores = scores.masked_fill(~visible[:, None, None, :], float("-inf"))
    if sinks is not None:
        sink_scores = sinks.float().view(1, num_kv_heads, -1, 1).expand(num_tokens, -1, -1, 1)
        scores = torch.cat((scores, sink_scores), dim=-1)
    weights = torch.softmax(scores, dim=-1)[..., : keys.shape[0]]
    return torch.einsum("nkgc,ckd->nkgd", weights, values).reshape(num_tokens, num_heads, head_dim)
