"""The next token of every row of logits.

Rules:
- What a request asks to be done to its logits comes first (adjustments.py), on a float32 copy of its row.
- Temperature below `GREEDY_TEMPERATURE` is greedy: the largest logit, the lowest id among equals.
- Else logits are divided by the temperature. Of the `top_k` largest, those are kept that are at least `min_p` times as
  probable as the most probable one, and of these the smallest set of the most probable tokens whose share reaches
  `top_p`. Exactly k are kept, even if the next one is as large.
- The draw inverts the cumulative distribution in float64 at a number that follows from seed and position alone.
- Everything done to a row depends on that row: rows are grouped by what they ask for, never by who else is there.
- A row with a NaN, with an infinity or with nothing but -inf is flagged and not sampled, and so is one of which the
  request's own rules leave nothing. Single logits of -inf are tokens that were ruled out.

Legend: S rows, R rows of a group, V vocabulary, C candidates.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from executor_service.model.transfer import to_device
from executor_service.sampling.adjustments import Adjuster, adjust
from executor_service.sampling.argmax import CHUNK_SIZE, argmax_rows, as_chunks, largest_of_rows, sum_of_rows
from executor_service.sampling.asked import NO_LOGPROBS
from executor_service.sampling.random import uniforms

GREEDY_TEMPERATURE = 1e-5
NOT_SAMPLED = -1  # the model's logits are no numbers
NOTHING_ALLOWED = -2  # the request's own rules leave no token

# Candidates that top-p looks at first, and how many times as many it looks at where they hold too little, up to the
# whole vocabulary. Of 262,144 logits 1,024 take 0.04 of the time of a sort of all, 16,384 take 0.13.
TOP_P_CANDIDATES = 1024
TOP_P_GROWTH = 16
# Rows of the whole vocabulary that are looked at in float32 at once. It bounds the copies, and on a CPU 16 rows of
# 262,144 stay in the cache from one step to the next.
FULL_ROWS_AT_ONCE = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingBatch:
    """How each row is sampled."""

    temperature: NDArray[np.float32]  # [S] >= 0
    top_k: NDArray[np.int32]  # [S] 0: off
    top_p: NDArray[np.float32]  # [S] in (0, 1]; 1: off
    min_p: NDArray[np.float32]  # [S] in [0, 1]; 0: off
    seed: NDArray[np.uint64]  # [S]
    position: NDArray[np.int64]  # [S] of the token to be sampled, in its request
    num_logprobs: NDArray[np.int8]  # [S] as in logprobs.py
    adjusters: Mapping[int, Adjuster] = field(default_factory=dict)  # of the rows whose logits are changed
    # Tokens of prompts whose log-probabilities are asked for. Their logits follow those of the rows that are sampled.
    prompt_token_ids: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, dtype=np.int64))  # [P]
    num_prompt_logprobs: NDArray[np.int8] = field(default_factory=lambda: np.empty(0, dtype=np.int8))  # [P]

    def __post_init__(self) -> None:
        columns = (self.temperature, self.top_k, self.top_p, self.min_p, self.seed, self.position, self.num_logprobs)
        assert len({len(column) for column in columns}) == 1, "sampling columns of unequal length"
        assert len(self.prompt_token_ids) == len(self.num_prompt_logprobs), "prompt columns of unequal length"

    def __len__(self) -> int:
        return len(self.temperature)

    @property
    def takes_largest(self) -> NDArray[np.bool_]:
        """[S] whether a row's largest logit, as the model gives it, is all that is asked of it."""
        largest: NDArray[np.bool_] = (self.temperature < GREEDY_TEMPERATURE) & (self.num_logprobs == NO_LOGPROBS)
        largest[list(self.adjusters)] = False
        return largest

    def only(self, rows: NDArray[np.int64]) -> SamplingBatch:
        """Some rows, and the tokens of prompts."""
        places = {row: place for place, row in enumerate(rows.tolist())}
        return SamplingBatch(
            adjusters={places[row]: adjuster for row, adjuster in self.adjusters.items() if row in places},
            prompt_token_ids=self.prompt_token_ids,
            num_prompt_logprobs=self.num_prompt_logprobs,
            temperature=self.temperature[rows],
            top_k=self.top_k[rows],
            top_p=self.top_p[rows],
            min_p=self.min_p[rows],
            seed=self.seed[rows],
            position=self.position[rows],
            num_logprobs=self.num_logprobs[rows],
        )


def sample(logits: torch.Tensor, sampling: SamplingBatch) -> torch.Tensor:
    """logits [S + P, V] of any float type. Returns [S] int64 on their device, or a negative number: NOT_SAMPLED where a
    row is not finite, NOTHING_ALLOWED where what it asks for leaves nothing.

    Copies nothing to the host, unless a row's top-p needs more than its first candidates.
    """
    logits = logits[: len(sampling)]
    tokens, maxima = argmax_rows(logits)
    as_they_are = np.ones(len(sampling), dtype=np.bool_)
    as_they_are[list(sampling.adjusters)] = False
    _choose(logits, maxima, sampling, as_they_are, tokens)
    # Those with a mask stand together, so that nobody else's row is masked with them.
    masked_first = sorted(sampling.adjusters, key=lambda row: not sampling.adjusters[row].has_mask)
    for start in range(0, len(masked_first), FULL_ROWS_AT_ONCE):
        rows = masked_first[start : start + FULL_ROWS_AT_ONCE]
        tokens[rows] = _sample_adjusted(logits, sampling, rows)
    return checked(tokens, maxima)


def checked(tokens: torch.Tensor, maxima: torch.Tensor) -> torch.Tensor:
    """tokens [S], or NOT_SAMPLED where the largest logit [S] of the row is no number."""
    return torch.where(maxima.isfinite(), tokens, NOT_SAMPLED)


def _sample_adjusted(logits: torch.Tensor, sampling: SamplingBatch, rows: list[int]) -> torch.Tensor:
    """Rows that are changed before they are sampled. Returns their tokens, or NOTHING_ALLOWED."""
    adjusted = logits[rows].float()  # a copy, by the index already
    adjust(adjusted, [sampling.adjusters[row] for row in rows])
    tokens, maxima = argmax_rows(adjusted)
    every_row = np.ones(len(rows), dtype=np.bool_)
    _choose(adjusted, maxima, sampling.only(np.array(rows)), every_row, tokens)
    return torch.where(maxima == float("-inf"), NOTHING_ALLOWED, tokens)


def _choose(
    logits: torch.Tensor,
    maxima: torch.Tensor,
    sampling: SamplingBatch,
    rows: NDArray[np.bool_],
    tokens: torch.Tensor,
) -> None:
    """Overwrite the `tokens` [S], which are those of the maxima, of those of the ``rows`` that are not greedy."""
    sampled = rows & (sampling.temperature >= GREEDY_TEMPERATURE)
    if not sampled.any():
        return
    draws = uniforms(sampling.seed, sampling.position)
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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Wanted:
    """The columns of one group of rows, on the device; all [R] or [R, 1]."""

    rows: torch.Tensor  # [R] int64
    temperature: torch.Tensor  # [R, 1] float32
    top_k: torch.Tensor  # [R, 1] int64
    top_p: torch.Tensor  # [R, 1] float64
    min_p: torch.Tensor | None  # [R, 1] float32; None: nobody asks for it
    draws: torch.Tensor  # [R, 1] float64

    @classmethod
    def of(
        cls, sampling: SamplingBatch, draws: NDArray[np.float64], rows: NDArray[np.int64], device: torch.device
    ) -> _Wanted:
        def column(values: NDArray[Any], dtype: torch.dtype) -> torch.Tensor:
            return to_device(torch.from_numpy(values[rows]), device).to(dtype).unsqueeze(1)

        return cls(
            rows=to_device(torch.from_numpy(rows), device),
            temperature=column(sampling.temperature, torch.float32),
            top_k=column(sampling.top_k, torch.int64),
            top_p=column(sampling.top_p, torch.float64),
            min_p=column(sampling.min_p, torch.float32) if sampling.min_p[rows].any() else None,
            draws=column(draws, torch.float64),
        )

    def only(self, index: torch.Tensor) -> _Wanted:
        return _Wanted(
            rows=self.rows[index],
            temperature=self.temperature[index],
            top_k=self.top_k[index],
            top_p=self.top_p[index],
            min_p=None if self.min_p is None else self.min_p[index],
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
    values, ids = largest_of_rows(logits[wanted.rows], num_candidates)  # [R, C]
    weights = _weights(values, maxima[wanted.rows], wanted).double()
    rank = torch.arange(num_candidates, device=logits.device)
    weights = weights.masked_fill(rank >= wanted.top_k, 0.0)
    kept_mass = wanted.top_p * weights.sum(dim=-1, keepdim=True)
    tokens[wanted.rows] = _draw_within(weights, ids, kept_mass, wanted.draws)


def _sample_top_p(
    logits: torch.Tensor, maxima: torch.Tensor, wanted: _Wanted, num_candidates: int, tokens: torch.Tensor
) -> None:
    """Rows with top-p alone. Writes their `tokens`; where the candidates hold too little, more are looked at."""
    rows = logits[wanted.rows]
    total = sum_of_rows(_weights(rows, maxima[wanted.rows], wanted))
    values, ids = largest_of_rows(rows, num_candidates)  # [R, C]
    weights = _weights(values, maxima[wanted.rows], wanted).double()
    kept_mass = wanted.top_p * total
    tokens[wanted.rows] = _draw_within(weights, ids, kept_mass, wanted.draws)
    if num_candidates < logits.shape[1]:
        too_little = (weights.sum(dim=-1, keepdim=True) < kept_mass).squeeze(1)
        if bool(too_little.any()):  # the copy to the host that `sample` speaks of
            more = min(TOP_P_GROWTH * num_candidates, logits.shape[1])
            _sample_top_p(logits, maxima, wanted.only(too_little), more, tokens)


def _sample_any(logits: torch.Tensor, maxima: torch.Tensor, wanted: _Wanted, tokens: torch.Tensor) -> None:
    """Rows without top-k and top-p: no sort, but inversion over chunks and then inside the chunk that was hit."""
    weights = _weights(logits[wanted.rows], maxima[wanted.rows], wanted)  # [R, V] float32
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


def _weights(values: torch.Tensor, maxima: torch.Tensor, wanted: _Wanted) -> torch.Tensor:
    """exp((value - row maximum) / temperature) in float32: the probabilities, up to a factor for each row.

    Below min-p it is 0. The most probable token has weight 1, so min-p is a bound on weights as it is.
    """
    weights = (values.float() - maxima.float().unsqueeze(1)).div_(wanted.temperature).exp_()
    if wanted.min_p is not None:
        # A factor of 0 or 1 as float32: on a CPU four times as fast as a mask of booleans.
        weights.mul_(torch.ge(weights, wanted.min_p, out=torch.empty_like(weights)))
    return weights


def _first_above(cumulative: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """[R, 1] index of the first cumulative weight above the target, so never of a token without weight.

    Rounding may put a target at or above the last sum; the draw is then the last index that has weight. Rows of NaN get
    some index inside.
    """
    index = torch.searchsorted(cumulative, target, right=True)
    last = torch.searchsorted(cumulative, cumulative[:, -1:].contiguous())
    return torch.minimum(index, last).clamp(max=cumulative.shape[1] - 1)
