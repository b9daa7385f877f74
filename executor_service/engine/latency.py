"""Fits the cost of a pass to the passes that were run.

Least squares with coefficients >= 0 over a window of recent passes, in terms of what a scheduler can foresee: prompt
tokens, decoding requests, tokens of KV that they read. A column that would come out negative is left out and the rest
is fitted again (the active-set idea of Lawson and Hanson's NNLS, enough for four columns).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from executor_service.engine.snapshot import Latency

WINDOW = 256
MIN_PASSES = 4
REFIT_INTERVAL = 4


class LatencyFitter:
    """Give it every pass; ``latency`` is None until it has seen enough of them."""

    def __init__(self, *, swap_block_us: float = 0.0) -> None:
        """``swap_block_us``: of one block, one way, as measured at the start; 0: not measured."""
        self._features = np.zeros((WINDOW, 4))  # 1, prefill tokens, decodes, KV tokens read
        self._times_us = np.zeros(WINDOW)
        self._num_passes = 0
        self._swap_block_us = swap_block_us
        self.latency: Latency | None = None

    def add_pass(self, *, num_prefill_tokens: int, num_decodes: int, num_kv_tokens: int, time_us: int) -> None:
        slot = self._num_passes % WINDOW
        self._features[slot] = (1, num_prefill_tokens, num_decodes, num_kv_tokens)
        self._times_us[slot] = time_us
        self._num_passes += 1
        if self._num_passes >= MIN_PASSES and self._num_passes % REFIT_INTERVAL == 0:
            self._fit()

    def add_copy(self, *, num_blocks: int, time_us: int) -> None:
        """Note a copy between device and swap space; recent ones weigh more."""
        measured = time_us / num_blocks
        self._swap_block_us = measured if not self._swap_block_us else 0.8 * self._swap_block_us + 0.2 * measured

    def _fit(self) -> None:
        count = min(self._num_passes, WINDOW)
        features, times_us = self._features[:count], self._times_us[:count]
        cost = _least_squares_not_negative(features, times_us)
        relative_error = float(np.mean(np.abs(features @ cost - times_us) / np.maximum(times_us, 1)))
        self.latency = Latency(
            pass_us=float(cost[0]),
            prefill_token_us=float(cost[1]),
            decode_request_us=float(cost[2]),
            kv_token_us=float(cost[3]),
            swap_block_us=self._swap_block_us,
            relative_error=relative_error,
        )


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
