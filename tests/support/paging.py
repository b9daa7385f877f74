"""The plainest engine: block assignment and batches for tests of the model side, without a scheduler."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from executor_service.model.batch import RaggedBatch
from executor_service.sampling.adjustments import Adjuster
from executor_service.sampling.logprobs import NO_LOGPROBS
from executor_service.sampling.sampler import SamplingBatch


def shuffled_block_tables(num_requests: int, max_blocks: int, *, seed: int) -> np.ndarray:
    """[num_requests, max_blocks] int32: every request has blocks of its own, in random order."""
    blocks = np.random.default_rng(seed).permutation(num_requests * max_blocks)
    return blocks.reshape(num_requests, max_blocks).astype(np.int32)


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
