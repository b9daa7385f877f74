"""The next token of every row of logits.

Rules:
- Temperature below `GREEDY_TEMPERATURE` is greedy: the largest logit, the lowest id among equals.
- Else logits are divided by the temperature, the `top_k` largest are kept, then the smallest set of the most probable
  tokens whose share of what top-k kept reaches `top_p`. Exactly k are kept, even if the next one is as large.
- The draw inverts the cumulative distribution in float64 at a number that follows from seed and position alone.
- Everything done to a row depends on that row: rows are grouped by what they ask for, never by who else is there.
- A row with a NaN, with an infinity or with nothing but -inf is flagged and not sampled. Single logits of -inf are
  tokens that were ruled out.

Legend: S rows, R rows of a group, V vocabulary, C candidates.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from executor_service.sampling.argmax import CHUNK_SIZE, argmax_rows, as_chunks
from executor_service.sampling.random import uniforms

GREEDY_TEMPERATURE = 1e-5
NOT_SAMPLED = -1

# Candidates that top-p looks at before it sorts the whole vocabulary; 1,024 of 262,144 take 0.06 of a sort's time.
TOP_P_CANDIDATES = 1024
# Rows that are sampled from the whole vocabulary at once, to bound the float32 copy of their logits.
FULL_ROWS_AT_ONCE = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingBatch:
    """How each row is sampled."""

    temperature: NDArray[np.float32]  # [S] >= 0
    top_k: NDArray[np.int32]  # [S] 0: off
    top_p: NDArray[np.float32]  # [S] in (0, 1]; 1: off
    seed: NDArray[np.uint64]  # [S]
    position: NDArray[np.int64]  # [S] of the token to be sampled, in its request

    def __post_init__(self) -> None:
        lengths = {len(column) for column in (self.temperature, self.top_k, self.top_p, self.seed, self.position)}
        assert len(lengths) == 1, "sampling columns of unequal length"

    def __len__(self) -> int:
        return len(self.temperature)


def sample(logits: torch.Tensor, sampling: SamplingBatch) -> torch.Tensor:
    """logits [S, V] of any float type. Returns [S] int64 on their device, NOT_SAMPLED where a row is not finite.

    Copies nothing to the host, unless a row's top-p needs more than its first candidates.
    """
    tokens, maxima = argmax_rows(logits)
    draws = uniforms(sampling.seed, sampling.position)
    sampled = sampling.temperature >= GREEDY_TEMPERATURE
    limited = (sampling.top_k > 0) & (sampling.top_k < logits.shape[1])

    def wanted(rows: NDArray[np.bool_]) -> _Wanted:
        return _Wanted.of(sampling, draws, np.flatnonzero(rows), logits.device)

    for num_candidates, rows in _by_top_k(sampling.top_k, sampled & limited):
        _sample_top_k(logits, maxima, wanted(rows), min(num_candidates, logits.shape[1]), tokens)
    nucleus = sampled & ~limited & (sampling.top_p < 1)
    if nucleus.any():
        _sample_top_p(logits, maxima, wanted(nucleus), min(TOP_P_CANDIDATES, logits.shape[1]), tokens)
    unrestricted = np.flatnonzero(sampled & ~limited & (sampling.top_p >= 1))
    for start in range(0, len(unrestricted), FULL_ROWS_AT_ONCE):
        rows_at_once = unrestricted[start : start + FULL_ROWS_AT_ONCE]
        _sample_any(logits, maxima, _Wanted.of(sampling, draws, rows_at_once, logits.device), tokens)
    return torch.where(maxima.isfinite(), tokens, NOT_SAMPLED)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Wanted:
    """The columns of one group of rows, on the device; all [R] or [R, 1]."""

    rows: torch.Tensor  # [R] int64
    temperature: torch.Tensor  # [R, 1] float32
    top_k: torch.Tensor  # [R, 1] int64
    top_p: torch.Tensor  # [R, 1] float64
    draws: torch.Tensor  # [R, 1] float64

    @classmethod
    def of(
        cls, sampling: SamplingBatch, draws: NDArray[np.float64], rows: NDArray[np.int64], device: torch.device
    ) -> _Wanted:
        def column(values: NDArray[Any], dtype: torch.dtype) -> torch.Tensor:
            return torch.from_numpy(values[rows]).to(device=device, dtype=dtype).unsqueeze(1)

        return cls(
            rows=torch.from_numpy(rows).to(device),
            temperature=column(sampling.temperature, torch.float32),
            top_k=column(sampling.top_k, torch.int64),
            top_p=column(sampling.top_p, torch.float64),
            draws=column(draws, torch.float64),
        )

    def only(self, index: torch.Tensor) -> _Wanted:
        return _Wanted(
            rows=self.rows[index],
            temperature=self.temperature[index],
            top_k=self.top_k[index],
            top_p=self.top_p[index],
            draws=self.draws[index],
        )


def _by_top_k(top_k: NDArray[np.int32], rows: NDArray[np.bool_]) -> Iterator[tuple[int, NDArray[np.bool_]]]:
    """Groups of rows by top-k rounded up to a power of two, so that groups are few, with that number."""
    rounded_up = 2 ** np.ceil(np.log2(np.maximum(top_k, 1))).astype(np.int64)
    for num_candidates in np.unique(rounded_up[rows]).tolist():
        yield num_candidates, rows & (rounded_up == num_candidates)


def _sample_top_k(
    logits: torch.Tensor, maxima: torch.Tensor, wanted: _Wanted, num_candidates: int, tokens: torch.Tensor
) -> None:
    """Rows with top-k <= num_candidates, and perhaps top-p among those. Writes their `tokens`."""
    values, ids = _largest(logits[wanted.rows], num_candidates)  # [R, C]
    weights = _weights(values, maxima[wanted.rows], wanted.temperature).double()
    rank = torch.arange(num_candidates, device=logits.device)
    weights = weights.masked_fill(rank >= wanted.top_k, 0.0)
    kept_mass = wanted.top_p * weights.sum(dim=-1, keepdim=True)
    tokens[wanted.rows] = _draw_within(weights, ids, kept_mass, wanted.draws)


def _sample_top_p(
    logits: torch.Tensor, maxima: torch.Tensor, wanted: _Wanted, num_candidates: int, tokens: torch.Tensor
) -> None:
    """Rows with top-p alone. Writes their `tokens`; rows whose candidates hold too little are sorted as a whole."""
    rows = logits[wanted.rows]
    total = _weights(rows, maxima[wanted.rows], wanted.temperature).sum(dim=-1, keepdim=True, dtype=torch.float64)
    values, ids = _largest(rows, num_candidates)  # [R, C]
    weights = _weights(values, maxima[wanted.rows], wanted.temperature).double()
    kept_mass = wanted.top_p * total
    tokens[wanted.rows] = _draw_within(weights, ids, kept_mass, wanted.draws)
    if num_candidates < logits.shape[1]:
        too_little = (weights.sum(dim=-1, keepdim=True) < kept_mass).squeeze(1)
        if bool(too_little.any()):  # the copy to the host that `sample` speaks of
            _sample_top_p(logits, maxima, wanted.only(too_little), logits.shape[1], tokens)


def _sample_any(logits: torch.Tensor, maxima: torch.Tensor, wanted: _Wanted, tokens: torch.Tensor) -> None:
    """Rows without top-k and top-p: no sort, but inversion over chunks and then inside the chunk that was hit."""
    weights = _weights(logits[wanted.rows], maxima[wanted.rows], wanted.temperature)  # [R, V] float32
    chunks = as_chunks(weights, padding=0.0)
    cumulative = chunks.sum(dim=-1, dtype=torch.float64).cumsum(dim=-1)  # [R, V / chunk]
    target = wanted.draws * cumulative[:, -1:]
    hit = _first_above(cumulative, target)  # [R, 1]
    before = torch.where(hit > 0, cumulative.gather(1, (hit - 1).clamp(min=0)), 0.0)
    within = chunks[torch.arange(len(hit), device=hit.device), hit[:, 0]].double().cumsum(dim=-1)
    tokens[wanted.rows] = (hit * CHUNK_SIZE + _first_above(within, target - before)).squeeze(1)


def _draw_within(
    weights: torch.Tensor, ids: torch.Tensor, kept_mass: torch.Tensor, draws: torch.Tensor
) -> torch.Tensor:
    """Draw [R] from candidates [R, C] in falling order, of which the first that reach `kept_mass` are kept."""
    before = weights.cumsum(dim=-1) - weights
    # The first candidate is always kept: rounding must not turn a tiny top-p into an empty set.
    before[:, 0] = 0.0
    cumulative = weights.masked_fill(before >= kept_mass, 0.0).cumsum(dim=-1)
    chosen = _first_above(cumulative, draws * cumulative[:, -1:])
    return ids.gather(1, chosen).squeeze(1)


def _largest(rows: torch.Tensor, num_candidates: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The largest logits [R, C] in falling order and their ids; equals in rising order of ids."""
    if num_candidates == rows.shape[1]:
        return rows.sort(dim=-1, descending=True, stable=True)
    ids = rows.topk(num_candidates, dim=-1).indices.sort(dim=-1).values
    values, order = rows.gather(1, ids).sort(dim=-1, descending=True, stable=True)
    return values, ids.gather(1, order)


def _weights(values: torch.Tensor, maxima: torch.Tensor, temperature: torch.Tensor) -> torch.Tensor:
    """exp((value - row maximum) / temperature) in float32: the probabilities, up to a factor for each row."""
    return (values.float() - maxima.float().unsqueeze(1)).div_(temperature).exp_()


def _first_above(cumulative: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """[R, 1] index of the first cumulative weight above the target, so never of a token without weight.

    Rounding may put a target at or above the last sum; the draw is then the last index that has weight. Rows of NaN get
    some index inside.
    """
    index = torch.searchsorted(cumulative, target, right=True)
    last = torch.searchsorted(cumulative, cumulative[:, -1:].contiguous())
    return torch.minimum(index, last).clamp(max=cumulative.shape[1] - 1)
