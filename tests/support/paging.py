"""The plainest engine: block assignment and batches for tests of the model side, without a scheduler."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import torch

from executor_service.kv.cache import KVCache, KVCacheSpec
from executor_service.model.batch import RaggedBatch
from executor_service.sampling.adjustments import Adjuster
from executor_service.sampling.asked import NO_LOGPROBS
from executor_service.sampling.sampler import SamplingBatch


def shuffled_block_tables(num_requests: int, max_blocks: int, *, seed: int) -> np.ndarray:
    """[num_requests, max_blocks] int32: every request has blocks of its own, in random order."""
    blocks = np.random.default_rng(seed).permutation(num_requests * max_blocks)
    return blocks.reshape(num_requests, max_blocks).astype(np.int32)


def random_batch(seed: int, *, block_size: int, num_decodes: int, num_chunks: int) -> RaggedBatch:
    rng = np.random.default_rng(seed)
    decode_contexts = rng.integers(1, 100, size=num_decodes)
    chunk_lens = rng.integers(1, 40, size=num_chunks)
    # Half of the chunks begin a prompt, the others continue one.
    chunk_contexts = chunk_lens + rng.integers(0, 60, size=num_chunks) * rng.integers(0, 2, size=num_chunks)
    query_lens = np.concatenate([np.ones(num_decodes, dtype=np.int64), chunk_lens]).astype(np.int32)
    context_lens = np.concatenate([decode_contexts, chunk_contexts]).astype(np.int32)
    num_tokens = int(query_lens.sum())
    return RaggedBatch(
        token_ids=rng.integers(0, 100, size=num_tokens),
        positions=np.concatenate([np.arange(c - q, c) for q, c in zip(query_lens, context_lens, strict=True)]),
        query_lens=query_lens,
        context_lens=context_lens,
        block_tables=shuffled_block_tables(len(query_lens), -(-100 // block_size), seed=seed),
        num_decodes=num_decodes,
        logits_rows=np.arange(num_tokens),
    )


def filled_cache(
    batch: RaggedBatch,
    *,
    dtype: torch.dtype,
    block_size: int,
    num_kv_heads: int,
    head_dim: int = 16,
    device: str = "cpu",
) -> KVCache:
    """A cache with random content everywhere, so that reading a wrong or unused slot shows."""
    spec = KVCacheSpec(num_layers=2, num_kv_heads=num_kv_heads, head_dim=head_dim, block_size=block_size, dtype=dtype)
    kv_cache = KVCache(spec, num_blocks=int(batch.block_tables.max()) + 1, num_swap_blocks=0, device=device)
    num_slots = kv_cache.num_blocks * block_size
    generator = torch.Generator().manual_seed(7)
    for layer in range(spec.num_layers):
        keys, values = torch.randn(2, num_slots, num_kv_heads, head_dim, generator=generator).to(device, dtype)
        kv_cache.write(layer, keys, values, torch.arange(num_slots, device=device))
    return kv_cache


@dataclass(kw_only=True)
class Sequence:
    """A request as tokens, of which the first num_computed_tokens are in the cache."""

    token_ids: list[int]
    block_table: np.ndarray
    num_computed_tokens: int = 0
    output: list[int] = field(default_factory=list)

    @property
    def num_lacking(self) -> int:
        return len(self.token_ids) - self.num_computed_tokens


def ragged_batch(chunks: list[tuple[Sequence, int]]) -> RaggedBatch:
    """One pass of the given number of tokens of each sequence. Decodes must come first."""
    starts = [sequence.num_computed_tokens for sequence, _ in chunks]
    lens = [num_tokens for _, num_tokens in chunks]
    stops = [start + length for start, length in zip(starts, lens, strict=True)]
    ends = np.cumsum(lens)
    finished = [row for row, (sequence, n) in enumerate(chunks) if n == sequence.num_lacking]
    return RaggedBatch(
        token_ids=np.concatenate(
            [np.array(s.token_ids[a:b], dtype=np.int64) for (s, _), a, b in zip(chunks, starts, stops, strict=True)]
        ),
        positions=np.concatenate([np.arange(a, b) for a, b in zip(starts, stops, strict=True)]),
        query_lens=np.array(lens, dtype=np.int32),
        context_lens=np.array(stops, dtype=np.int32),
        block_tables=np.stack([sequence.block_table for sequence, _ in chunks]),
        num_decodes=next((row for row, n in enumerate(lens) if n != 1), len(lens)),
        logits_rows=np.array([ends[row] - 1 for row in finished], dtype=np.int64),
    )


def greedy(num_rows: int) -> SamplingBatch:
    return sampling_batch(num_rows)


def sampling_batch(
    num_rows: int,
    *,
    temperature: float = 0.0,
    top_k: int = 0,
    top_p: float = 1.0,
    min_p: float = 0.0,
    seed: int = 0,
    position: int = 0,
    num_logprobs: int = NO_LOGPROBS,
    adjusters: Mapping[int, Adjuster] | None = None,
) -> SamplingBatch:
    """Rows that all ask for the same."""
    return SamplingBatch(
        temperature=np.full(num_rows, temperature, dtype=np.float32),
        top_k=np.full(num_rows, top_k, dtype=np.int32),
        top_p=np.full(num_rows, top_p, dtype=np.float32),
        min_p=np.full(num_rows, min_p, dtype=np.float32),
        seed=np.full(num_rows, seed, dtype=np.uint64),
        position=np.full(num_rows, position, dtype=np.int64),
        num_logprobs=np.full(num_rows, num_logprobs, dtype=np.int8),
        adjusters=adjusters or {},
    )
