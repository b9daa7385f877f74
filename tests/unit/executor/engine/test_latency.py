"""The cost of a pass, fitted from the passes that ran."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from executor_service.engine.latency import MIN_PASSES, WINDOW, LatencyFitter
from executor_service.engine.snapshot import Latency

COSTS = (900.0, 25.0, 110.0, 0.5)  # a pass, a prefill token, a decode, a token of KV


def fed(fitter: LatencyFitter, count: int, costs: tuple[float, ...] = COSTS, noise: float = 0.0) -> Latency | None:
    rng = np.random.default_rng(0)
    for _ in range(count):
        prefill, decodes = int(rng.integers(0, 64)), int(rng.integers(0, 8))
        features: NDArray[np.float64] = np.array([1, prefill, decodes, decodes * int(rng.integers(1, 200))], float)
        time_us = int(features @ np.array(costs) + noise * rng.standard_normal())
        fitter.add_pass(
            num_prefill_tokens=prefill, num_decodes=decodes, num_kv_tokens=int(features[3]), time_us=time_us
        )
    return fitter.latency


def as_tuple(latency: Latency | None) -> tuple[float, ...]:
    assert latency is not None
    return (latency.pass_us, latency.prefill_token_us, latency.decode_request_us, latency.kv_token_us)


def test_planted_costs_are_recovered() -> None:
    latency = fed(LatencyFitter(), 128)
    assert as_tuple(latency) == pytest.approx(COSTS, rel=0.02, abs=0.1)
    assert latency is not None
    assert latency.relative_error < 0.01


def test_noise_moves_them_a_little() -> None:
    assert as_tuple(fed(LatencyFitter(), 256, noise=20.0))[:3] == pytest.approx(COSTS[:3], rel=0.15)


def test_too_few_passes_say_nothing() -> None:
    fitter = LatencyFitter()
    assert fed(fitter, MIN_PASSES - 1) is None
    assert fed(fitter, 1) is not None


@pytest.mark.parametrize("costs", [(900.0, 25.0, -60.0, 1.0), (-500.0, 25.0, 110.0, 0.5), (50.0, 0.0, 0.0, 0.0)])
def test_no_cost_is_negative(costs: tuple[float, ...]) -> None:
    assert min(as_tuple(fed(LatencyFitter(), 128, costs, noise=30.0))) >= 0


def test_what_never_ran_costs_nothing_yet() -> None:
    fitter = LatencyFitter()
    for count in range(MIN_PASSES):
        fitter.add_pass(num_prefill_tokens=count, num_decodes=0, num_kv_tokens=0, time_us=1000 + 10 * count)
    assert as_tuple(fitter.latency) == pytest.approx((1000, 10, 0, 0))


def test_old_passes_are_forgotten() -> None:
    fitter = LatencyFitter()
    fed(fitter, WINDOW, (5000.0, 1.0, 1.0, 1.0))
    assert as_tuple(fed(fitter, WINDOW)) == pytest.approx(COSTS, rel=0.02, abs=0.1)


def test_copies_are_averaged_and_recent_ones_weigh_more() -> None:
    fitter = LatencyFitter()
    fitter.add_copy(num_blocks=4, time_us=400)
    fitter.add_copy(num_blocks=1, time_us=200)
    latency = fed(fitter, MIN_PASSES)
    assert latency is not None
    assert latency.swap_block_us == pytest.approx(120)
