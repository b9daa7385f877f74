"""What no schedule can beat: bounds that small workloads can be worked out by hand for, and that no play is beyond."""

from __future__ import annotations

import importlib
from itertools import combinations
from pathlib import Path
from random import Random
from types import ModuleType

import numpy as np
import pytest

from metronome_lab.figures import Targets, figures_of
from metronome_lab.simulation import Fleet, simulate
from scheduler_service.core.policy import Ordering, Policy
from support.lab import drawn_workload, hardware_of, workload_of

BENCHMARKS = Path(__file__).parents[4] / "benchmarks"


@pytest.fixture
def bounds(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(BENCHMARKS)
    return importlib.import_module("harness.schedule_bounds")


def most_of_all_choices(jobs: list[tuple[int, int]], target: int) -> int:
    """By trying them; `jobs`: (arrival, work), ascending. Nobody is later for being done by arrival."""

    def are_in_time(chosen: tuple[tuple[int, int], ...]) -> bool:
        end = 0
        for arrival, work in chosen:
            end = max(end, arrival) + work
            if end > arrival + target:
                return False
        return True

    return max(n for n in range(len(jobs) + 1) if any(are_in_time(chosen) for chosen in combinations(jobs, n)))


@pytest.mark.parametrize("seed", range(60))
def test_no_choice_of_jobs_has_more_in_time(bounds: ModuleType, seed: int) -> None:
    random = Random(seed)
    # Bursts with pauses between them, so that the longest job is not always the one to drop.
    jobs = sorted((random.choice((0, 30, 60)) + random.randrange(12), random.randrange(1, 14)) for _ in range(11))
    arrivals, work = np.array(jobs, dtype=np.float64).T
    target = random.randrange(4, 25)
    assert bounds.most_in_time(arrivals, work, target) == most_of_all_choices(jobs, target)


def test_the_longest_is_not_dropped_where_the_machine_would_only_wait(bounds: ModuleType) -> None:
    # Without the first, the machine waits for the second until 9: the third gains nothing of the ten.
    arrivals, work = np.array([0.0, 9.0, 9.0]), np.array([10.0, 6.0, 5.0])
    assert bounds.most_in_time(arrivals, work, 11.0) == 2
    assert bounds.most_in_time(arrivals, work, 12.0) == 3


def test_bounds_of_two_prompts_that_come_together(bounds: ModuleType) -> None:
    # Prompts of 128 tokens, a full pass each: 1,000 us and 10 for each token.
    workload, alone = workload_of((0, 128, 1), (0, 128, 1)), Fleet(hardware=hardware_of())
    of_both = bounds.bounds_of(workload, alone, 2 * 2280)
    assert of_both.requests_per_s == pytest.approx(2 / 4560e-6)
    assert of_both.goodput_per_s == pytest.approx(of_both.requests_per_s)
    assert of_both.e2e_mean_ms == pytest.approx((2.28 + 4.56) / 2)

    assert bounds.bounds_of(workload, alone, 2 * 2280 - 1).goodput_per_s == pytest.approx(1 / 4560e-6)
    assert bounds.bounds_of(workload, alone, 2279).goodput_per_s == 0
    # Two executors are one that is twice as fast, but for what a prompt takes on one of them.
    two = Fleet(hardware=hardware_of(), num_executors=2)
    assert bounds.bounds_of(workload, two, 2280).goodput_per_s == pytest.approx(2 / 2280e-6)
    assert bounds.bounds_of(workload, two, 2279).goodput_per_s == 0


def test_what_an_earlier_prompt_had_is_no_work(bounds: ModuleType) -> None:
    block = np.zeros(1, dtype=np.int32)
    alike = workload_of((0, 600, 1), (0, 600, 1), prefixes=[block, block])
    fleet = Fleet(hardware=hardware_of())
    # 600 tokens and 88, at 10 us and their part of passes of 128 tokens.
    token_us = 10 + 1000 / 128
    assert bounds.bounds_of(alike, fleet, 20_000).requests_per_s == pytest.approx(2 / (688 * token_us * 1e-6))


def test_a_cache_that_holds_few_answers_at_once_bounds_how_full_passes_are(bounds: ModuleType) -> None:
    # 64 decodes each, which hold 64 to 127 tokens of the 128 that there are blocks for: two never share a pass.
    hardware, workload = hardware_of(num_blocks=8), workload_of(*[(0, 64, 65)] * 4)
    held = 64 + 64 * 64 + 64 * 63 // 2
    latency = hardware.latency
    own_us = 64 * latency.prefill_token_us + 64 * latency.decode_request_us
    own_us += (64 * 64 + 64 * 63 // 2) * latency.kv_token_us
    end_us = 4 * (own_us + latency.pass_us * held / 128)
    assert bounds.bounds_of(workload, Fleet(hardware=hardware), 10**9).requests_per_s == pytest.approx(4e6 / end_us)


def test_what_several_hold_together_counts_for_nobody(bounds: ModuleType) -> None:
    """Six answers to one prompt fit beside each other in a cache that holds one and a bit of as many prompts."""
    fleet = Fleet(hardware=hardware_of(num_blocks=64, max_model_len=600))
    columns = [(0, 513, 65), *[(20, 513, 65)] * 5]
    alike = workload_of(*columns, prefixes=[np.zeros(1, dtype=np.int32)] * 6)
    others = workload_of(*columns, prefixes=list(np.arange(6, dtype=np.int32)[:, None]))
    played = figures_of(simulate(alike, fleet, Policy()), Targets(ttft_us=2**60, itl_us=2**60))
    assert played.num_cached_tokens == 5 * 512
    most_of_others, most_of_alike = (bounds.bounds_of(w, fleet, 10**9).requests_per_s for w in (others, alike))
    assert most_of_others < played.requests_per_s <= most_of_alike


@pytest.mark.parametrize("ordering", [Ordering.FIFO, Ordering.SHORTEST_PREFILL_FIRST, Ordering.FEWEST_LATE])
@pytest.mark.parametrize("num_executors", [1, 2])
@pytest.mark.parametrize("num_blocks", [2000, 90])
def test_no_play_is_beyond_the_bounds(
    bounds: ModuleType, ordering: Ordering, num_executors: int, num_blocks: int
) -> None:
    workload = drawn_workload(60, mean_gap_ms=12.0 / num_executors)
    hardware = hardware_of(num_blocks=num_blocks, max_model_len=1400)
    fleet = Fleet(hardware=hardware, num_executors=num_executors)
    targets = Targets(ttft_us=40_000, itl_us=2**60)
    policy = Policy(ordering=ordering, target_time_to_first_token_us=targets.ttft_us)
    figures = figures_of(simulate(workload, fleet, policy), targets)
    best = bounds.bounds_of(workload, fleet, targets.ttft_us)
    assert figures.num_finished == len(workload)
    assert figures.e2e.mean_ms >= best.e2e_mean_ms
    assert figures.requests_per_s <= best.requests_per_s
    assert 0 < figures.goodput_per_s <= best.goodput_per_s <= best.requests_per_s
