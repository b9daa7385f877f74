"""How far passes lie from what they cost: fitted, written, and drawn by simulated executors."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from metronome_lab.errors import LabError
from metronome_lab.hardware.cost import PAUSE_US, PassCost
from metronome_lab.hardware.profile import Hardware, load_hardware, write_hardware
from metronome_lab.hardware.spread import MIN_PASSES, SHARES, drawn_ratios, ratio_quantiles
from metronome_lab.policies import named_policy
from metronome_lab.records import Records
from metronome_lab.simulation import Fleet, simulate
from support.lab import drawn_workload, hardware_of, workload_of

COST = PassCost(
    pass_us=2000.0, prefill_token_us=30.0, decode_request_us=40.0, kv_token_us=0.5, swap_block_us=20.0, between_us=100.0
)
QUANTILES = (0.8, 0.85, 0.88, 0.92, 0.97, 1.05, 1.15, 1.25, 1.6)
FIFO = named_policy("fifo")


def drawn(quantiles: tuple[float, ...], count: int, *seed: int) -> list[float]:
    return list(islice(drawn_ratios(quantiles, seed=seed), count))


def durations_us(hardware: Hardware, *, seed: int = 0, num_executors: int = 1) -> dict[int, list[int]]:
    """What the passes of each executor took."""
    workload = drawn_workload(40, mean_gap_ms=20.0)
    records = simulate(workload, Fleet(hardware=hardware, num_executors=num_executors), FIFO, seed=seed)
    passes = records.iterations.columns()
    return {n: passes["duration_us"][passes["executor"] == n].tolist() for n in range(num_executors)}


def spread_hardware(cost: PassCost = COST) -> Hardware:
    return replace(hardware_of(num_blocks=400), cost=replace(cost, ratio_quantiles=QUANTILES))


def test_a_known_spread_is_found_again() -> None:
    ratios = np.random.default_rng(5).lognormal(0.0, 0.1, 20_000) * 3
    found = np.array(ratio_quantiles(ratios))
    assert found == pytest.approx(np.quantile(ratios, SHARES) / ratios.mean(), rel=0.01)


def test_one_pass_that_was_stopped_for_long_changes_little() -> None:
    ratios = np.random.default_rng(5).lognormal(0.0, 0.1, 500)
    disturbed = ratios.copy()
    disturbed[17] = 1000.0
    assert ratio_quantiles(disturbed) == pytest.approx(ratio_quantiles(ratios), rel=0.02)


def test_of_few_passes_no_spread_is_told() -> None:
    ratios = np.linspace(0.9, 1.1, MIN_PASSES)
    assert ratio_quantiles(ratios[1:]) == ()
    assert len(ratio_quantiles(ratios)) == len(SHARES)


@given(
    st.lists(st.floats(0.05, 20.0), min_size=len(SHARES), max_size=len(SHARES)).map(sorted), st.integers(0, 2**64 - 1)
)
def test_what_is_drawn_has_a_mean_of_one_and_the_proportions_of_the_quantiles(
    quantiles: list[float], seed: int
) -> None:
    ratios = np.array(drawn(tuple(quantiles), 4000, seed))
    assert ratios.max() / ratios.min() <= quantiles[-1] / quantiles[0] * (1 + 1e-9)
    assert ratios.mean() == pytest.approx(1.0, abs=6 * ratios.std() / np.sqrt(len(ratios)) + 1e-9)


def test_the_quantiles_of_what_is_drawn_are_those_given() -> None:
    ratios = np.array(drawn(QUANTILES, 50_000, 1))
    assert np.quantile(ratios, SHARES) / np.median(ratios) == pytest.approx(np.array(QUANTILES) / 0.97, rel=0.01)


def test_the_same_seed_gives_the_same_run_and_another_another() -> None:
    hardware = spread_hardware()
    assert durations_us(hardware, seed=3) == durations_us(hardware, seed=3)
    assert durations_us(hardware, seed=3) != durations_us(hardware, seed=4)
    assert durations_us(hardware, seed=-1) != durations_us(hardware, seed=1)


def test_each_executor_has_its_own_stream_whatever_their_number() -> None:
    # Passes of one token in one request each: what differs is what was drawn.
    cost = replace(COST, kv_token_us=0.0, ratio_quantiles=QUANTILES)
    hardware = replace(hardware_of(), cost=cost)

    def of(number: int) -> list[int]:
        workload = workload_of(*((index // number * 1000, 1, 5) for index in range(3 * number)))
        passes = simulate(workload, Fleet(hardware=hardware, num_executors=number), FIFO).iterations.columns()
        return [passes["duration_us"][passes["executor"] == one].tolist() for one in range(number)]

    (alone,), (first, second) = of(1), of(2)
    assert first == alone
    assert second != alone
    assert len(second) == len(alone)


def test_passes_together_take_what_they_cost() -> None:
    plain, spread = replace(hardware_of(num_blocks=400), cost=COST), spread_hardware()
    took = [sum(durations_us(spread, seed=seed)[0]) for seed in range(10)]
    assert np.mean(took) == pytest.approx(sum(durations_us(plain)[0]), rel=0.02)


def test_without_a_spread_no_seed_matters() -> None:
    hardware = replace(hardware_of(num_blocks=400), cost=COST)
    assert durations_us(hardware, seed=1) == durations_us(hardware, seed=2)


def test_an_executor_learns_from_what_its_passes_took() -> None:
    workload = drawn_workload(40, mean_gap_ms=20.0)

    def plans(quantiles: Iterable[float]) -> Records:
        cost = replace(COST, ratio_quantiles=tuple(quantiles))
        hardware = replace(hardware_of(num_blocks=400), cost=cost)
        return simulate(workload, Fleet(hardware=hardware), named_policy("metronome"))

    one, other = plans(()).iterations.columns(), plans(QUANTILES).iterations.columns()
    assert one["num_prefill_tokens"].tolist() != other["num_prefill_tokens"].tolist()


@pytest.mark.parametrize(("gap_us", "more_us"), [(PAUSE_US - 1, 0), (PAUSE_US, 5000)])
def test_the_first_pass_after_a_pause_takes_longer(gap_us: int, more_us: int) -> None:
    cost = replace(COST, kv_token_us=0.0, after_pause_us=5000.0)
    first_us = 2000 + 30 + 5000 + 100  # it had nothing to run before
    workload = replace(workload_of((0, 1, 1), (1, 1, 2)), arrival_us=np.array([0, first_us + gap_us]))
    passes = simulate(workload, Fleet(hardware=replace(hardware_of(), cost=cost)), FIFO).iterations.columns()
    assert passes["duration_us"].tolist() == [first_us, 2000 + 30 + more_us + 100, 2000 + 40 + 100]


def test_several_tokens_cost_more_whatever_their_number() -> None:
    cost = replace(COST, several_tokens_us=700.0)
    alone, two, many = (
        cost.time_us(num_prefill_tokens=prefill, num_decodes=decodes, num_logits_rows=decodes, num_kv_tokens=0)
        for prefill, decodes in ((0, 1), (0, 2), (98, 2))
    )
    assert (alone, two, many) == (2040, 2780, 2780 + 98 * 30)


def test_a_spread_is_read_as_it_was_written(tmp_path: Path) -> None:
    hardware = spread_hardware(replace(COST, after_pause_us=5.0, several_tokens_us=6.0))
    write_hardware(hardware, tmp_path / "mine.toml")
    assert load_hardware(str(tmp_path / "mine.toml")).cost == hardware.cost


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("ratio_quantiles = 1.0", "cost.ratio_quantiles is 1.0"),
        ("ratio_quantiles = [1.0, 1.1]", "cost.ratio_quantiles is"),
        ("ratio_quantiles = [1, 1, 1, 1, 1, 1, 1, 1, 0.9]", "cost.ratio_quantiles is"),
        ("ratio_quantiles = [0, 1, 1, 1, 1, 1, 1, 1, 1]", "cost.ratio_quantiles is"),
        ("ratio_quantiles = [1, 1, 1, 1, 1, 1, 1, 1, inf]", "cost.ratio_quantiles is"),
        ("ratio_quantiles = [1, 1, 1, 1, 1, 1, 1, 1, true]", "cost.ratio_quantiles is"),
        ("ratio_quantiles = [1, 1, 1, 1, 1, 1, 1, 1, '2']", "cost.ratio_quantiles is"),
        ("after_pause_us = -1", "cost.after_pause_us is -1"),
        ("between_us = nan", "cost.between_us is nan"),
    ],
)
def test_a_spread_that_cannot_be_is_refused(line: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    write_hardware(hardware_of(), path)
    path.write_text(path.read_text() + f"\n[cost]\npass_us = 5\n{line}\n")
    with pytest.raises(LabError, match=message) as refused:
        load_hardware(str(path))
    assert refused.value.remedy.startswith("give ")
