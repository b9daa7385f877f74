"""Fits the cost of a pass to the passes that were run.

Least squares of relative errors with coefficients >= 0 over recent passes, in terms of what a scheduler can foresee:
prompt tokens, decoding requests, tokens of KV that they read. A column that would come out negative is left out and the
rest is fitted again (the active-set idea of Lawson and Hanson's NNLS, enough for four columns).

Recent passes alone would not do. While nobody sends a prompt, no pass tells what a prompt token costs, and while the
same sixteen decode, none tells a pass from its decodes; and it is then that the next prompt comes. So passes with
prefills and those without are remembered apart, so many of each kind; and the costs lean towards those of a few passes
that were measured when the executor started (ridge regression): what recent passes do not tell apart keeps its
proportions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from executor_service.engine.snapshot import Latency

WINDOW = 128  # passes of each kind
MIN_PASSES = 4
REFIT_INTERVAL = 4
# How much a cost that is wrong by its whole amount weighs, in passes that are.
LEANING = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredPass:
    """What a pass held, and what it took."""

    num_prefill_tokens: int
    num_decodes: int
    num_kv_tokens: int  # that the decodes read
    time_us: int


def num_attended_tokens(num_tokens: NDArray[np.int32], context_lens: NDArray[np.int32]) -> int:
    """Tokens that those of some chunks attend to: each those before it, and itself.

    ``num_tokens``: [n] of each chunk; ``context_lens``: [n] tokens stored once it is computed.
    """
    chunks, ends = num_tokens.astype(np.int64), context_lens.astype(np.int64)
    return int((chunks * ends - chunks * (chunks - 1) // 2).sum())


class LatencyFitter:
    """Give it every pass; ``latency`` is None until it has seen enough of them."""

    def __init__(self, *, swap_block_us: float = 0.0, first_passes: Sequence[MeasuredPass] = ()) -> None:
        """``swap_block_us``: of one block, one way, as measured at the start; 0: not measured. ``first_passes``:
        measured then too, each quantity in other amounts; none: costs lean towards nothing.
        """
        self._with_prefills, self._of_decodes = _Window(), _Window()
        self._num_passes = 0
        self._swap_block_us = swap_block_us
        self._start: NDArray[np.float64] = np.zeros(4)
        self.latency: Latency | None = None
        if first_passes:
            features, times_us = _as_arrays(first_passes)
            self._start = fit_costs(features, times_us, leaning_to=self._start)
            self._publish(self._start, features, times_us)

    def add_pass(self, measured: MeasuredPass) -> None:
        window = self._with_prefills if measured.num_prefill_tokens else self._of_decodes
        window.add(measured)
        self._num_passes += 1
        if self._num_passes >= MIN_PASSES and self._num_passes % REFIT_INTERVAL == 0:
            features = np.concatenate([self._with_prefills.features, self._of_decodes.features])
            times_us = np.concatenate([self._with_prefills.times_us, self._of_decodes.times_us])
            self._publish(fit_costs(features, times_us, leaning_to=self._start), features, times_us)

    def add_copy(self, *, num_blocks: int, time_us: int) -> None:
        """Note a copy between device and swap space; recent ones weigh more."""
        measured = time_us / num_blocks
        self._swap_block_us = measured if not self._swap_block_us else 0.8 * self._swap_block_us + 0.2 * measured

    def _publish(
        self, costs: NDArray[np.float64], features: NDArray[np.float64], times_us: NDArray[np.float64]
    ) -> None:
        self.latency = Latency(
            pass_us=float(costs[0]),
            prefill_token_us=float(costs[1]),
            decode_request_us=float(costs[2]),
            kv_token_us=float(costs[3]),
            swap_block_us=self._swap_block_us,
            relative_error=float(np.mean(np.abs(features @ costs / times_us - 1))),
        )


class _Window:
    """The newest passes of a kind."""

    def __init__(self) -> None:
        self._features = np.zeros((WINDOW, 4))
        self._times_us = np.ones(WINDOW)
        self._num_passes = 0

    def add(self, measured: MeasuredPass) -> None:
        slot = self._num_passes % WINDOW
        features, times_us = _as_arrays([measured])
        self._features[slot], self._times_us[slot] = features[0], times_us[0]
        self._num_passes += 1

    @property
    def features(self) -> NDArray[np.float64]:
        return self._features[: self._num_passes]

    @property
    def times_us(self) -> NDArray[np.float64]:
        return self._times_us[: self._num_passes]


def _as_arrays(passes: Sequence[MeasuredPass]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """[n, 4] features: 1, prefill tokens, decodes, KV tokens read; and [n] microseconds, at least one."""
    rows = [(1.0, float(p.num_prefill_tokens), float(p.num_decodes), float(p.num_kv_tokens)) for p in passes]
    return np.array(rows), np.array([float(max(p.time_us, 1)) for p in passes])


def fit_costs(
    features: NDArray[np.float64], times_us: NDArray[np.float64], *, leaning_to: NDArray[np.float64]
) -> NDArray[np.float64]:
    """features [n, k], times_us [n], leaning_to [k], zeros where there is nothing to lean to. Returns [k] costs, >= 0.

    The costs to lean to are taken in proportion: all of them times the one factor that fits best.
    """
    relative = features / times_us[:, None]
    known = np.flatnonzero(leaning_to)
    leaning = np.zeros((len(known), len(leaning_to)))
    if len(known):
        predicted = relative @ leaning_to
        leaning[np.arange(len(known)), known] = (
            LEANING / (leaning_to * predicted.sum() / (predicted @ predicted))[known]
        )
    rows = np.concatenate([relative, leaning])
    targets = np.concatenate([np.ones(len(times_us)), np.full(len(known), LEANING)])
    # Columns of one length: a KV token costs a thousandth of a decode, and comes a thousand times as often.
    lengths = np.linalg.norm(rows, axis=0)
    scaled = rows / np.where(lengths > 0, lengths, 1.0)
    return _least_squares_not_negative(scaled, targets) / np.where(lengths > 0, lengths, 1.0)


def _least_squares_not_negative(features: NDArray[np.float64], targets: NDArray[np.float64]) -> NDArray[np.float64]:
    """features [n, k], targets [n]. Returns [k], all >= 0."""
    active = np.flatnonzero(features.any(axis=0))
    cost = np.zeros(features.shape[1])
    while len(active):
        fitted = np.linalg.lstsq(features[:, active], targets, rcond=None)[0]
        if (fitted >= 0).all():
            cost[active] = fitted
            break
        active = np.delete(active, np.argmin(fitted))
    return cost
