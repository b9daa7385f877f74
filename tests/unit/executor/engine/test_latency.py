"""The cost of a pass, fitted from the passes that ran."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from executor_service.engine.latency import MIN_PASSES, WINDOW, LatencyFitter, MeasuredPass
from executor_service.engine.snapshot import Latency

COSTS = (900.0, 25.0, 110.0, 0.5)  # a pass, a prefill token, a decode, a token of KV


def fed(fitter: LatencyFitter, count: int, costs: tuple[float, ...] = COSTS, noise: float = 0.0) -> Latency | None:
    """Half of the passes have prefills."""
    rng = np.random.default_rng(0)
    for index in range(count):
        decodes = int(rng.integers(1, 8))
        add(
            fitter,
            index % 2 * int(rng.integers(1, 64)),
            decodes,
            decodes * int(rng.integers(1, 200)),
            costs,
            noise,
            rng,
        )
    return fitter.latency


def add(
    fitter: LatencyFitter,
    num_prefill_tokens: int,
    num_decodes: int,
    num_kv_tokens: int,
    costs: tuple[float, ...] = COSTS,
    noise: float = 0.0,
    rng: np.random.Generator | None = None,
) -> None:
    fitter.add_pass(measured(num_prefill_tokens, num_decodes, num_kv_tokens, costs, noise, rng))


def measured(
    num_prefill_tokens: int,
    num_decodes: int,
    num_kv_tokens: int,
    costs: tuple[float, ...] = COSTS,
    noise: float = 0.0,
    rng: np.random.Generator | None = None,
) -> MeasuredPass:
    features: NDArray[np.float64] = np.array([1, num_prefill_tokens, num_decodes, num_kv_tokens], float)
    disturbance = 0.0 if rng is None else noise * rng.standard_normal()
    return MeasuredPass(
        num_prefill_tokens=num_prefill_tokens,
        num_decodes=num_decodes,
        num_kv_tokens=num_kv_tokens,
        time_us=int(features @ np.array(costs) + disturbance),
    )


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
        add(fitter, count, 0, 0, (1000.0, 10.0, 0.0, 0.0))
    assert as_tuple(fitter.latency) == pytest.approx((1000, 10, 0, 0))


def test_old_passes_are_forgotten() -> None:
    fitter = LatencyFitter()
    fed(fitter, 2 * WINDOW, (5000.0, 1.0, 1.0, 1.0))
    assert as_tuple(fed(fitter, 2 * WINDOW)) == pytest.approx(COSTS, rel=0.02, abs=0.1)


def test_copies_are_averaged_and_recent_ones_weigh_more() -> None:
    fitter = LatencyFitter()
    fitter.add_copy(num_blocks=4, time_us=400)
    fitter.add_copy(num_blocks=1, time_us=200)
    latency = fed(fitter, MIN_PASSES)
    assert latency is not None
    assert latency.swap_block_us == pytest.approx(120)


# As a warm-up would: decodes by number and by context, chunks by length.
FIRST_PASSES = tuple(
    measured(*amounts) for amounts in ((0, 1, 16), (0, 32, 512), (0, 16, 8192), (32, 0, 0), (256, 0, 0))
)


def test_the_first_passes_alone_make_a_model() -> None:
    assert as_tuple(LatencyFitter(first_passes=FIRST_PASSES).latency) == pytest.approx(COSTS, rel=0.02)


def test_what_a_prompt_token_costs_is_not_forgotten_while_nobody_sends_one() -> None:
    fitter = LatencyFitter()
    fed(fitter, 2 * WINDOW)
    for length in range(10 * WINDOW):
        add(fitter, 0, 8, 8 * (100 + length))
    assert as_tuple(fitter.latency) == pytest.approx(COSTS, rel=0.02)


def test_what_passes_do_not_tell_apart_keeps_its_proportions() -> None:
    """The machine is half as fast as it was, and nothing has run but the same 16 decodes."""
    fitter = LatencyFitter(first_passes=FIRST_PASSES)
    slower = tuple(2 * cost for cost in COSTS)
    for _ in range(WINDOW):
        add(fitter, 0, 16, 1600, slower)
    assert as_tuple(fitter.latency) == pytest.approx(slower, rel=0.02)


def test_the_first_passes_hold_nothing_back_that_recent_ones_tell() -> None:
    fitter = LatencyFitter(first_passes=FIRST_PASSES)
    slower = tuple(3 * cost for cost in COSTS)
    assert as_tuple(fed(fitter, 4 * WINDOW, slower)) == pytest.approx(slower, rel=0.05)
