"""The ragged batch on the device: all that attention needs, computed once a pass and not once a layer.

Layers differ only in their sliding window, so there is one plan for each distinct window, made when the first layer
asks for it:

- decodes, sorted by the KV they read and cut into groups: a group is one gather and one attention call. Sorting keeps
  the padding of a group small, and its size keeps what was gathered in the cache of a CPU until it is read again.
- prefill chunks: one gather each, and one attention call for each block of queries.

A sliding layer gathers only the blocks that its window reaches. A window that no context exceeds is no window.

Legend: T tokens, R requests, g requests of a group, n queries of a block, K keys gathered (of each request).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from executor_service.kernels.layer import LayerPass
from executor_service.kv.cache import KEY_AND_VALUE, KVCacheSpec
from executor_service.model.batch import RaggedBatch
from executor_service.model.transfer import to_device

# Keys and values of one group of decodes. Two to four MiB were best on a CPU with 1 MiB of L2 a core and 32 MiB of L3:
# 64 requests of 256 tokens took 0.75 of the time of one gather for all, 1 MiB took 1.2 times the best.
DECODE_GROUP_BYTES = 4 * 2**20

# Queries of one attention call of a prefill chunk: of the keys after the last of them nothing is computed. For a prompt
# of 512 tokens 128 took 0.55 of the time of one call in bfloat16; 64 took 1.1 times as long as 128.
QUERY_BLOCK_SIZE = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeGroup:
    """Decodes that are attended to in one call."""

    rows: torch.Tensor  # [g] int64, their tokens in T
    blocks: torch.Tensor  # [g * K / block_size] int64, request by request
    mask: torch.Tensor  # [g, 1, K] additive, of the model's dtype


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryBlock:
    """Some tokens of a chunk, and the keys that any of them sees: keys [key_start, key_stop) of those gathered.

    All see all of them, except at the two ends: the last n keys are the queries themselves, and a window moves on
    with each query. So masks are small, whatever the context.
    """

    start: int  # in T
    stop: int
    key_start: int
    key_stop: int
    causal_mask: torch.Tensor  # [n, 1, n] additive, for the last n keys
    window_mask: torch.Tensor | None  # [n, 1, w] additive, for the first w keys


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefillChunk:
    """One request's chunk: one gather, one attention call for each of its query blocks."""

    blocks: torch.Tensor  # [ceil(K / block_size)] int64
    query_blocks: tuple[QueryBlock, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RaggedTables:
    """The whole batch as a kernel takes it that finds the pages itself."""

    query_starts: torch.Tensor  # [R + 1] int32, first token of each request in T, and T
    context_lens: torch.Tensor  # [R] int32
    block_tables: torch.Tensor  # [R, max_blocks] int32
    max_query_len: int
    max_context_len: int


class DeviceBatch:
    """Tensors of one pass."""

    def __init__(self, batch: RaggedBatch, *, spec: KVCacheSpec, device: torch.device) -> None:
        self.host = batch
        self.input_ids = to_device(torch.from_numpy(batch.token_ids), device).unsqueeze(0)  # [1, T] int64
        self.position_ids = to_device(torch.from_numpy(batch.positions), device).unsqueeze(0)  # [1, T] int64
        self.slot_mapping = to_device(torch.from_numpy(batch.slot_mapping(spec.block_size)), device)  # [T] int64
        self.logits_rows = to_device(torch.from_numpy(batch.logits_rows), device)  # [S] int64
        self._spec = spec
        self._device = device
        self._longest_context = int(batch.context_lens.max())
        self._decode_groups: dict[int | None, tuple[DecodeGroup, ...]] = {}
        self._prefill_chunks: dict[int | None, tuple[PrefillChunk, ...]] = {}

    @cached_property
    def ragged_tables(self) -> RaggedTables:
        batch = self.host

        def column(values: NDArray[np.integer[Any]]) -> torch.Tensor:
            return to_device(torch.from_numpy(np.ascontiguousarray(values, dtype=np.int32)), self._device)

        return RaggedTables(
            query_starts=column(batch.query_starts()),
            context_lens=column(batch.context_lens),
            block_tables=column(batch.block_tables),
            max_query_len=int(batch.query_lens.max()),
            max_context_len=self._longest_context,
        )

    @cached_property
    def chunk_starts(self) -> NDArray[np.int64]:
        """[number of chunks + 1], the first token of each chunk in T, and T."""
        return self.host.query_starts()[self.host.num_decodes :]

    @cached_property
    def layer_pass(self) -> LayerPass:
        """The whole batch as the kernel of a layer takes it."""
        batch = self.host
        rows = batch.logits_rows
        requests = np.searchsorted(batch.query_starts(), rows, side="right") - 1  # [S]
        return LayerPass(
            slot_mapping=self.slot_mapping,
            block_tables=batch.block_tables,
            context_lens=batch.context_lens,
            chunk_starts=self.chunk_starts,
            num_decodes=batch.num_decodes,
            block_size=self._spec.block_size,
            rows=np.ascontiguousarray(rows),
            row_tables=batch.block_tables[requests],
            row_context_lens=(batch.positions[rows] + 1).astype(np.int32),
        )

    @property
    def entered_blocks(self) -> torch.Tensor:
        """[B] int64, the blocks whose first slot is written in this pass."""
        return to_device(torch.from_numpy(self.host.entered_blocks(self._spec.block_size)), self._device)

    def decode_groups(self, window: int | None) -> tuple[DecodeGroup, ...]:
        """The decodes, for layers of this sliding window (None: full attention)."""
        reach = self._reach(window)
        if reach not in self._decode_groups:
            self._decode_groups[reach] = tuple(_decode_groups(self.host, reach, self._spec, self._device))
        return self._decode_groups[reach]

    def prefill_chunks(self, window: int | None) -> tuple[PrefillChunk, ...]:
        """The prefill chunks, likewise."""
        reach = self._reach(window)
        if reach not in self._prefill_chunks:
            self._prefill_chunks[reach] = tuple(_prefill_chunks(self.host, reach, self._spec, self._device))
        return self._prefill_chunks[reach]

    def _reach(self, window: int | None) -> int | None:
        return None if window is None or window >= self._longest_context else window


def _decode_groups(
    batch: RaggedBatch, window: int | None, spec: KVCacheSpec, device: torch.device
) -> Iterator[DecodeGroup]:
    context_lens = batch.context_lens[: batch.num_decodes].astype(np.int64)
    first_keys = _first_keys(context_lens - 1, window)
    first_blocks = first_keys // spec.block_size
    num_blocks = -(-context_lens // spec.block_size) - first_blocks
    longest_first = np.argsort(-num_blocks, kind="stable")
    max_blocks = DECODE_GROUP_BYTES // _layer_bytes_per_block(spec)
    start = 0
    while start < batch.num_decodes:
        width = int(num_blocks[longest_first[start]])
        rows = longest_first[start : start + max(1, max_blocks // width)]
        columns = first_blocks[rows, None] + np.arange(width)  # [g, width]
        # A shorter request repeats its last block; the mask hides what that gathers.
        columns = np.minimum(columns, (first_blocks + num_blocks)[rows, None] - 1)
        blocks = batch.block_tables[rows[:, None], columns]
        key_positions = first_blocks[rows, None] * spec.block_size + np.arange(width * spec.block_size)  # [g, K]
        visible = (key_positions >= first_keys[rows, None]) & (key_positions < context_lens[rows, None])
        yield DecodeGroup(
            rows=to_device(torch.from_numpy(rows), device),  # a decode's row in T is its row in R
            blocks=to_device(torch.from_numpy(blocks.astype(np.int64).ravel()), device),
            mask=_additive(visible[:, None, :], spec.dtype, device),
        )
        start += len(rows)


def _prefill_chunks(
    batch: RaggedBatch, window: int | None, spec: KVCacheSpec, device: torch.device
) -> Iterator[PrefillChunk]:
    starts = batch.query_starts()
    for request in range(batch.num_decodes, batch.num_requests):
        context_len, query_len = int(batch.context_lens[request]), int(batch.query_lens[request])
        query_positions = np.arange(context_len - query_len, context_len)
        first_keys = _first_keys(query_positions, window)  # [query_len]
        first_block = int(first_keys[0]) // spec.block_size
        gathered_from = first_block * spec.block_size  # position of the first key that is gathered
        blocks = batch.block_tables[request, first_block : -(-context_len // spec.block_size)]
        yield PrefillChunk(
            blocks=to_device(torch.from_numpy(blocks.astype(np.int64)), device),
            query_blocks=tuple(
                _query_block(
                    query_positions[first : first + QUERY_BLOCK_SIZE] - gathered_from,
                    first_keys[first : first + QUERY_BLOCK_SIZE] - gathered_from,
                    start=int(starts[request]) + first,
                    dtype=spec.dtype,
                    device=device,
                )
                for first in range(0, query_len, QUERY_BLOCK_SIZE)
            ),
        )


def _query_block(
    query_positions: NDArray[np.int64],
    first_keys: NDArray[np.int64],
    *,
    start: int,
    dtype: torch.dtype,
    device: torch.device,
) -> QueryBlock:
    """Both [n], counted from the first key that is gathered."""
    num_queries = len(query_positions)
    num_left = first_keys - first_keys[0]  # [n] keys that the window of the first query shows and this one's does not
    left_columns = np.arange(int(num_left[-1]))
    window_mask = _additive((left_columns >= num_left[:, None])[:, None, :], dtype, device)
    return QueryBlock(
        start=start,
        stop=start + num_queries,
        key_start=int(first_keys[0]),
        key_stop=int(query_positions[-1]) + 1,
        causal_mask=_additive(np.tri(num_queries, dtype=np.bool_)[:, None, :], dtype, device),
        window_mask=window_mask if len(left_columns) else None,
    )


def _first_keys(query_positions: NDArray[np.int64], window: int | None) -> NDArray[np.int64]:
    """The first key that each query sees; a window of w shows a query itself and the w - 1 keys before it."""
    if window is None:
        return np.zeros_like(query_positions)
    return np.maximum(query_positions - window + 1, 0)


def _additive(visible: NDArray[np.bool_], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    mask = torch.zeros(visible.shape, dtype=dtype)
    return to_device(mask.masked_fill_(torch.from_numpy(~visible), float("-inf")), device)


def _layer_bytes_per_block(spec: KVCacheSpec) -> int:
    return KEY_AND_VALUE * spec.block_size * spec.num_kv_heads * spec.head_dim * spec.dtype.itemsize
