"""What a pass takes on a device: finer than the latency model that its executor tells a scheduler.

    pass + prefill tokens + decodes + groups of rows of logits + KV read by decodes + KV that chunks attend to + copies
         + what several tokens cost whatever their number + what a pass costs after a pause

Each decode has a row of logits, and each prompt that ends in the pass: the output layer, which is most of a small
model, is computed for these alone. They come in groups where a kernel computes so many rows at a time: the layer is
read once a group, and the ninth row costs more than the eighth. Attention of chunks grows with the tokens before each,
so that the end of a long prompt costs more than its beginning. One token is the product of each matrix with a vector,
several that of two matrices, by other code. And the first pass of an executor that had nothing to run for a while takes
longer, by as much whatever it holds. A latency model has none of these: an executor tells what it fits to such passes.

Passes vary about their costs, as `ratio_quantiles` say (see spread.py), and between two of them an executor does
something too (`between_us`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

import numpy as np
from numpy.typing import NDArray

from executor_service.engine.first_passes import first_passes
from executor_service.engine.latency import LatencyFitter, fit_costs
from executor_service.engine.limits import Limits
from executor_service.engine.snapshot import Latency
from metronome_lab.hardware.spread import ratio_quantiles

# How many rows kernels may compute at a time.
GROUPS = (1, 4, 8, 16, 32)
# What counts as a pause, in microseconds without anything to run. After shorter ones passes took what others do, after
# longer ones no more than after this.
PAUSE_US = 100_000
# Of fewer passes of a kind (after a pause, or of one token) it is not told by how much they differ: one that was
# disturbed would say it.
MIN_OF_A_KIND = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class PassCost:
    """Microseconds each, but for `ratio_quantiles`: of what passes take to what they cost; none: each takes just that.

    `logits_group_us`: for every `logits_group` rows of logits that a pass begins to fill. `several_tokens_us`: of a
    pass that holds more than one. `after_pause_us`: of the first after `PAUSE_US` or more. `between_us`: from the end
    of a pass to the next, where the plan is there.
    """

    pass_us: float
    prefill_token_us: float
    decode_request_us: float
    kv_token_us: float
    swap_block_us: float
    chunk_kv_token_us: float = 0.0
    logits_group_us: float = 0.0
    logits_group: int = 1
    several_tokens_us: float = 0.0
    after_pause_us: float = 0.0
    between_us: float = 0.0
    ratio_quantiles: tuple[float, ...] = ()

    @classmethod
    def of(cls, latency: Latency) -> Self:
        """Just what a latency model says."""
        return cls(
            pass_us=latency.pass_us,
            prefill_token_us=latency.prefill_token_us,
            decode_request_us=latency.decode_request_us,
            kv_token_us=latency.kv_token_us,
            swap_block_us=latency.swap_block_us,
        )

    def time_us(
        self,
        *,
        num_prefill_tokens: int,
        num_decodes: int,
        num_logits_rows: int,
        num_kv_tokens: int,
        num_chunk_kv_tokens: int = 0,
        num_copied_blocks: int = 0,
        is_after_pause: bool = False,
        ratio: float = 1.0,
    ) -> int:
        """Of a pass, at least 1. `num_kv_tokens`: of KV that the decodes read. `ratio`: to what it costs."""
        fixed_us = (
            self.pass_us
            + self.prefill_token_us * num_prefill_tokens
            + self.decode_request_us * num_decodes
            + self.logits_group_us * -(-num_logits_rows // self.logits_group)
            + self.chunk_kv_token_us * num_chunk_kv_tokens
            + self.swap_block_us * num_copied_blocks
            + self.several_tokens_us * (num_prefill_tokens + num_decodes > 1)
            + self.after_pause_us * is_after_pause
        )
        return max(round(ratio * (fixed_us + self.kv_token_us * num_kv_tokens)), 1)

    def fitter(self, limits: Limits) -> LatencyFitter:
        """The executor's own, as it stands when it has measured its first passes."""
        measured = tuple(
            one.measured(
                self.time_us(
                    num_prefill_tokens=one.num_prefill_tokens,
                    num_decodes=one.num_decodes,
                    num_logits_rows=max(one.num_decodes, 1),  # a chunk samples a token, too
                    num_kv_tokens=one.num_decodes * one.context_len,
                    num_chunk_kv_tokens=one.num_prefill_tokens * (one.num_prefill_tokens + 1) // 2,
                )
            )
            for one in first_passes(limits)
        )
        return LatencyFitter(swap_block_us=self.swap_block_us, first_passes=measured)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MeasuredPasses:
    """[n] passes of an executor, in order: what each held, and the microseconds that it took.

    `are_after_pauses`: whether the executor had nothing to run for `PAUSE_US` before each.
    """

    num_prefill_tokens: NDArray[np.int64]
    num_decodes: NDArray[np.int64]
    num_logits_rows: NDArray[np.int64]
    num_kv_tokens: NDArray[np.int64]
    num_chunk_kv_tokens: NDArray[np.int64]
    are_after_pauses: NDArray[np.bool_]
    times_us: NDArray[np.int64]

    def amounts(self, logits_group: int) -> NDArray[np.float64]:
        """[n, 8] what each pass costs for, in the order of `_COSTS`."""
        columns = (
            np.ones_like(self.times_us),
            self.num_prefill_tokens,
            self.num_decodes,
            self.num_kv_tokens,
            self.num_chunk_kv_tokens,
            -(-self.num_logits_rows // logits_group),
            self.num_prefill_tokens + self.num_decodes > 1,
            self.are_after_pauses,
        )
        return np.stack(columns, axis=1).astype(np.float64)

    def costs_us(self, cost: PassCost) -> NDArray[np.float64]:
        """[n] what each costs, copies aside."""
        costs: NDArray[np.float64] = np.array([getattr(cost, name) for name in _COSTS])
        return np.asarray(self.amounts(cost.logits_group) @ costs)


_COSTS = (
    "pass_us",
    "prefill_token_us",
    "decode_request_us",
    "kv_token_us",
    "chunk_kv_token_us",
    "logits_group_us",
    "several_tokens_us",
    "after_pause_us",
)
_KINDS = ("several_tokens_us", "after_pause_us")


def fit_pass_cost(passes: MeasuredPasses, *, swap_block_us: float, between_us: float = 0.0) -> PassCost:
    """The costs that explain most of the passes, in groups of the size that does; together they take as long.

    Least squares of relative errors would have all passes together take less than they did, since a pass may be
    disturbed and never is early: what it finds is made longer by as much. What they leave is the spread.
    """
    times_us = np.maximum(passes.times_us, 1).astype(np.float64)
    best: tuple[float, int, NDArray[np.float64]] | None = None
    for group in GROUPS:
        amounts = _told_apart(passes.amounts(group))
        costs = fit_costs(amounts, times_us, leaning_to=np.zeros(len(_COSTS)))
        error = float(np.mean((amounts @ costs / times_us - 1) ** 2))
        if best is None or error < best[0]:
            best = error, group, costs * (times_us.sum() / (amounts @ costs).sum())
    assert best is not None
    _, group, costs = best
    cost = PassCost(
        **dict(zip(_COSTS, costs.tolist(), strict=True)),
        logits_group=group,
        swap_block_us=swap_block_us,
        between_us=between_us,
    )
    return replace(cost, ratio_quantiles=ratio_quantiles(times_us / passes.costs_us(cost)))


def _told_apart(amounts: NDArray[np.float64]) -> NDArray[np.float64]:
    """[n, 8] the same, without the kinds of which there are too few passes, or too few that are not so."""
    columns = [_COSTS.index(name) for name in _KINDS]
    counts = amounts.sum(axis=0)
    rare = [n for n in columns if not MIN_OF_A_KIND <= counts[n] <= len(amounts) - MIN_OF_A_KIND]
    amounts[:, rare] = 0.0
    return amounts
