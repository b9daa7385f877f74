"""Paged attention as an attention implementation of transformers.

The module code of a model calls `paged_attention_forward` in every layer, in place of its own attention; the batch and
the cache travel as the keyword argument `paged_context` of the model's forward. The keys and values of the pass are
written to the cache first and then read from it with all that came before, so a chunk sees itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from executor_service.kv.cache import KVCache
from executor_service.model.attention_paged import paged_attention
from executor_service.model.attention_reference import reference_attention
from executor_service.model.device_batch import DeviceBatch

ATTN_IMPLEMENTATION = "metronome_paged"


@dataclass(frozen=True, slots=True, kw_only=True)
class PagedContext:
    """What a layer needs beside its own queries, keys and values."""

    kv_cache: KVCache
    batch: DeviceBatch


def register_paged_attention() -> None:
    """Make `attn_implementation="metronome_paged"` known to transformers. Idempotent.

    No mask function is registered under the name, so transformers builds no mask.
    """
    from transformers import AttentionInterface

    AttentionInterface.register(ATTN_IMPLEMENTATION, paged_attention_forward)


def paged_attention_forward(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    scaling: float,
    paged_context: PagedContext,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """query [1, H, T, D], key and value [1, K, T, D]. Returns [1, T, H, D] and no weights."""
    layer: int = module.layer_idx  # type: ignore[assignment]  # nn.Module types every attribute as Tensor or Module
    kv_cache, batch = paged_context.kv_cache, paged_context.batch
    queries, keys, values = (states[0].transpose(0, 1) for states in (query, key, value))  # [T, heads, D]
    kv_cache.write(layer, keys, values, batch.slot_mapping)
    if softcap is None and s_aux is None:
        attended = paged_attention(queries, kv_cache, batch.plan(sliding_window), layer=layer, scaling=scaling)
    else:
        attended = reference_attention(
            queries,
            kv_cache,
            batch.host,
            layer=layer,
            scaling=scaling,
            window=sliding_window,
            softcap=softcap,
            sinks=s_aux,
        )
    return attended.unsqueeze(0), None
