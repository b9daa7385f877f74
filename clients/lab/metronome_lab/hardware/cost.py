"""What a pass takes on a device: finer than the latency model that its executor tells a scheduler.

    pass + prefill tokens + decodes + groups of decodes + KV read by decodes + KV that chunks attend to + copies

Decodes come in groups where a kernel computes so many rows at a time: the output layer is read once a group, and the
ninth decode costs more than the eighth. Attention of chunks grows with the tokens before each, so that the end of a
long prompt costs more than its beginning. A latency model has neither: an executor tells what it fits to such passes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from executor_service.engine.first_passes import first_passes
from executor_service.engine.latency import LatencyFitter, fit_costs
from executor_service.engine.limits import Limits
from executor_service.engine.snapshot import Latency

# How many rows kernels may compute at a time.
GROUPS = (1, 4, 8, 16, 32)


@dataclass(frozen=True, slots=True, kw_only=True)
class PassCost:
    """Microseconds each. `decode_group_us`: for every `decode_group` decodes that a pass begins to fill."""

    pass_us: float
    prefill_token_us: float
    decode_request_us: float
    kv_token_us: float
    swap_block_us: float
    chunk_kv_token_us: float = 0.0
    decode_group_us: float = 0.0
    decode_group: int = 1

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
        num_kv_tokens: int,
        num_chunk_kv_tokens: int = 0,
        num_copied_blocks: int = 0,
    ) -> int:
        """Of a pass, at least 1. `num_kv_tokens`: of KV that the decodes read."""
        fixed_us = (
            self.pass_us
            + self.prefill_token_us * num_prefill_tokens
            + self.decode_request_us * num_decodes
            + self.decode_group_us * -(-num_decodes // self.decode_group)
            + self.chunk_kv_token_us * num_chunk_kv_tokens
            + self.swap_block_us * num_copied_blocks
        )
        return max(round(fixed_us + self.kv_token_us * num_kv_tokens), 1)

    def fitter(self, limits: Limits) -> LatencyFitter:
        """The executor's own, as it stands when it has measured its first passes."""
        measured = tuple(
            one.measured(
                self.time_us(
                    num_prefill_tokens=one.num_prefill_tokens,
                    num_decodes=one.num_decodes,
                    num_kv_tokens=one.num_decodes * one.context_len,
                    num_chunk_kv_tokens=one.num_prefill_tokens * (one.num_prefill_tokens + 1) // 2,
                )
            )
            for one in first_passes(limits)
        )
        return LatencyFitter(swap_block_us=self.swap_block_us, first_passes=measured)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MeasuredPasses:
    """[n] passes of an executor: what each held, and the microseconds that it took."""

    num_prefill_tokens: NDArray[np.int64]
    num_decodes: NDArray[np.int64]
    num_kv_tokens: NDArray[np.int64]
    num_chunk_kv_tokens: NDArray[np.int64]
    times_us: NDArray[np.int64]


def fit_pass_cost(passes: MeasuredPasses, *, swap_block_us: float) -> PassCost:
    """The costs that explain most of the passes, in groups of the size that does; together they take as long.

    Least squares of relative errors would have all passes together take less than they did, since a pass may be
    disturbed and never is early: what it finds is made longer by as much.
    """
    columns = (passes.num_prefill_tokens, passes.num_decodes, passes.num_kv_tokens, passes.num_chunk_kv_tokens)
    times_us = np.maximum(passes.times_us, 1).astype(np.float64)
    best: tuple[float, int, NDArray[np.float64]] | None = None
    for group in GROUPS:
        num_groups = -(-passes.num_decodes // group) if group > 1 else np.zeros_like(passes.num_decodes)
        features = np.stack([np.ones(len(times_us)), *columns, num_groups], axis=1).astype(np.float64)
        costs = fit_costs(features, times_us, leaning_to=np.zeros(features.shape[1]))
        error = float(np.mean((features @ costs / times_us - 1) ** 2))
        if best is None or error < best[0]:
            best = error, group, costs * (times_us.sum() / (features @ costs).sum())
    assert best is not None
    _, group, costs = best
    return PassCost(
        pass_us=float(costs[0]),
        prefill_token_us=float(costs[1]),
        decode_request_us=float(costs[2]),
        kv_token_us=float(costs[3]),
        chunk_kv_token_us=float(costs[4]),
        decode_group_us=float(costs[5]),
        decode_group=group,
        swap_block_us=swap_block_us,
    )
