"""Paged attention as an attention implementation of transformers.

The module code of a model calls `paged_attention_forward` in every layer, in place of its own attention; the batch and
the cache travel as the keyword argument `paged_context` of the model's forward. The keys and values of the pass are
written to the cache first and then read from it with all that came before, so a chunk sees itself.

Decodes and chunks go to compiled kernels where there are some, which read pages in place. Else they are matrix
products over gathered pages; what those do not serve goes to the reference. On CUDA a kernel of FlashAttention takes
all at once, where there is one that reads pages.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from executor_service.kernels.cpu import Contexts, CpuKernels
from executor_service.kv.cache import KVCache
from executor_service.model.attention_paged import attend_decode_groups, attend_prefill_chunks
from executor_service.model.attention_reference import reference_attention
from executor_service.model.attention_varlen import attend_varlen
from executor_service.model.device_batch import DeviceBatch

ATTN_IMPLEMENTATION = "metronome_paged"


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionOptions:
    """What a layer asks of its attention."""

    scaling: float
    window: int | None = None
    softcap: float | None = None
    sinks: torch.Tensor | None = None  # [H]


@dataclass(frozen=True, slots=True, kw_only=True)
class PagedContext:
    """What a layer needs beside its own queries, keys and values."""

    kv_cache: KVCache
    batch: DeviceBatch
    kernels: CpuKernels | None
    by_varlen: bool = False  # the device has a kernel that reads pages

    def write_and_attend(
        self,
        layer: int,
        queries: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        options: AttentionOptions,
    ) -> torch.Tensor:
        """queries [T, H, D], keys and values [T, K, D], which are stored first. Returns [T, H, D]."""
        self.kv_cache.write(layer, keys, values, self.batch.slot_mapping, self.kernels)
        return self.attend(layer, queries, options)

    def attend(self, layer: int, queries: torch.Tensor, options: AttentionOptions) -> torch.Tensor:
        """queries [T, H, D], whose keys and values are in the cache. Returns [T, H, D], contiguous."""
        kv_cache, batch, kernels, scaling = self.kv_cache, self.batch, self.kernels, options.scaling
        attended = torch.empty_like(queries, memory_format=torch.contiguous_format)
        is_plain = options.softcap is None and options.sinks is None
        if self.by_varlen and is_plain:
            attend_varlen(queries, attended, kv_cache, batch, layer=layer, scaling=scaling, window=options.window)
            return attended
        num_decodes = batch.host.num_decodes
        num_served = 0 if kernels is None else self._attend_by_kernels(kernels, layer, queries, attended, options)
        if num_served == batch.host.num_requests:
            return attended
        if is_plain:
            if num_served < num_decodes:
                groups = batch.decode_groups(options.window)
                attend_decode_groups(queries, attended, kv_cache, groups, layer=layer, scaling=scaling)
            chunks = batch.prefill_chunks(options.window)
            attend_prefill_chunks(queries, attended, kv_cache, chunks, layer=layer, scaling=scaling)
        else:
            reference_attention(
                queries,
                attended,
                kv_cache,
                batch.host,
                first_request=num_served,
                layer=layer,
                scaling=scaling,
                window=options.window,
                softcap=options.softcap,
                sinks=options.sinks,
            )
        return attended

    def _attend_by_kernels(
        self,
        kernels: CpuKernels,
        layer: int,
        queries: torch.Tensor,
        attended: torch.Tensor,
        options: AttentionOptions,
    ) -> int:
        """Returns how many requests that served: the decodes, or all."""
        host = self.batch.host
        key_blocks, value_blocks = self.kv_cache.layer_blocks(layer)
        num_decodes, num_requests = host.num_decodes, host.num_requests
        sinks = None if options.sinks is None else options.sinks.float()

        def contexts(requests: slice) -> Contexts:
            return Contexts(
                key_blocks=key_blocks,
                value_blocks=value_blocks,
                block_tables=host.block_tables[requests],
                context_lens=host.context_lens[requests],
                scaling=options.scaling,
                window=options.window,
                softcap=options.softcap,
                sinks=sinks,
            )

        if num_decodes:
            kernels.attend_decodes(queries, attended, contexts(slice(num_decodes)))
        if num_decodes == num_requests or not kernels.serves_chunks(queries.shape[-1]):
            return num_decodes
        chunks = contexts(slice(num_decodes, None))
        kernels.attend_chunks(queries, attended, chunks, self.batch.chunk_starts)
        return num_requests


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
    queries, keys, values = (states[0].transpose(0, 1) for states in (query, key, value))  # [T, heads, D]
    options = AttentionOptions(scaling=scaling, window=sliding_window, softcap=softcap, sinks=s_aux)
    return paged_context.write_and_attend(layer, queries, keys, values, options).unsqueeze(0), None
