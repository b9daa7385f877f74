"""Runs of the lab: what is conserved, that they repeat byte for byte, and figures that can be worked out by hand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from executor_service.engine.plan import Plan
from executor_service.engine.snapshot import Snapshot
from executor_service.kv.prefix_cache import PrefixScope
from metronome_lab.errors import LabError
from metronome_lab.policies import named_policy, profile_names
from metronome_lab.records import NEVER, Outcome, Records
from metronome_lab.result_files import Format, write_results
from metronome_lab.simulated.executor import SimulatedExecutor
from metronome_lab.simulated.planners import CorePlanner
from metronome_lab.simulation import FOREVER_US, Fleet, simulate
from scheduler_service.core.placement import Placement
from scheduler_service.core.policy import Admission, Eviction, HeadOfLine, Ordering, Policy, Preemption
from support.lab import LATENCY, VerifyingPlanner, drawn_workload, hardware_of, workload_of

FIFO = Policy(chunk_size_tokens=64)
# What profiles have none of.
OTHERS = {
    "shortest-job-first": Policy(ordering=Ordering.SHORTEST_JOB_FIRST, admission=Admission.PREDICTIVE),
    "for-priority": Policy(ordering=Ordering.PRIORITY, preemption=Preemption.FOR_PRIORITY, eviction=Eviction.SWAP),
    "fair": Policy(ordering=Ordering.FAIR, head_of_line=HeadOfLine.SKIP),
    "fair-charged": Policy(ordering=Ordering.FAIR, kv_residency_charge=0.5, head_of_line=HeadOfLine.BACKFILL),
    "short-queue": Policy(max_num_waiting=3),
}
POLICIES = {name: named_policy(name) for name in profile_names()} | OTHERS


def tables(records: Records) -> dict[str, list[Any]]:
    """All that a run recorded, to compare."""
    columns = {**records.requests.columns(), **records.iterations.columns()}
    listed = {name: list(column) for name, column in columns.items()}
    return listed | {"gaps": list(records.gaps.distribution()[0]), "service": records.service.tokens.tolist()}


@pytest.mark.parametrize("name", POLICIES)
def test_every_request_ends_once_tokens_add_up_and_no_block_is_lost(name: str) -> None:
    workload = drawn_workload(24, mean_gap_ms=25).bounded_by(40)
    hardware = hardware_of(num_blocks=80, num_swap_blocks=40, max_num_seqs=6, max_model_len=1250)
    records = Records(workload)
    planner = VerifyingPlanner(POLICIES[name])
    executor = SimulatedExecutor(0, hardware, planner, records, policy=POLICIES[name])
    for index, arrival_us in enumerate(workload.arrival_us.tolist()):
        executor.advance(arrival_us)
        executor.books.check_integrity()
        executor.submit(index)
    executor.advance(FOREVER_US)

    assert executor.is_idle
    assert executor.books.block_pool.num_free == 80
    assert executor.books.swap_space.num_free == 40
    requests, iterations = records.requests, records.iterations.columns()
    finished = requests.outcome == Outcome.FINISHED
    assert (requests.outcome != Outcome.UNFINISHED).all()
    assert finished.sum() == iterations["num_finished"].sum() > 10
    assert (requests.outcome == Outcome.REJECTED).sum() == iterations["num_rejected"].sum()
    assert (requests.num_output_tokens[finished] == workload.num_output_tokens[finished]).all()
    num_tokens = iterations["num_prefill_tokens"] + iterations["num_decode_tokens"]
    assert requests.num_run_tokens.sum() == num_tokens.sum() == records.service.tokens.sum()
    assert (requests.num_recomputed_tokens >= 0).all()
    num_evicted = iterations["num_evicted_swap"] + iterations["num_evicted_recompute"]
    assert requests.num_preemptions.sum() == num_evicted.sum()
    assert records.gaps.count == (requests.num_output_tokens - 1).clip(min=0).sum()
    assert (np.diff(iterations["start_us"]) >= iterations["duration_us"][:-1]).all()


@pytest.mark.parametrize(
    ("name", "scope"),
    [*((name, PrefixScope.TENANT) for name in POLICIES), ("fifo", PrefixScope.OFF)],
    ids=lambda value: value if isinstance(value, str) else value.name,
)
def test_passes_played_ahead_are_what_a_plan_for_each_gives(name: str, scope: PrefixScope) -> None:
    workload = drawn_workload(14, mean_gap_ms=40, seed=2).bounded_by(50)
    hardware = hardware_of(num_blocks=96, num_swap_blocks=30, max_num_seqs=4, max_model_len=1300, prefix_scope=scope)
    fleet = Fleet(hardware=hardware)

    fast, plain = (simulate(workload, fleet, POLICIES[name], play_ahead=ahead) for ahead in (True, False))

    assert tables(fast) == tables(plain)
    assert plain.num_plans >= plain.iterations.num_iterations
    assert fast.num_plans < plain.num_plans or POLICIES[name].kv_residency_charge > 0


@pytest.mark.parametrize("scope", [PrefixScope.SHARED, PrefixScope.OFF], ids=lambda scope: scope.name)
@pytest.mark.parametrize("placement", Placement, ids=lambda placement: placement.name)
def test_who_places_sees_executors_that_were_played_ahead_as_they_are(placement: Placement, scope: PrefixScope) -> None:
    workload = drawn_workload(40, mean_gap_ms=8, seed=3).bounded_by(50)
    hardware = hardware_of(num_blocks=96, num_swap_blocks=30, max_num_seqs=4, max_model_len=1300, prefix_scope=scope)
    fleet = Fleet(hardware=hardware, num_executors=3, placement=placement)

    ahead, plain = (simulate(workload, fleet, FIFO, play_ahead=ahead) for ahead in (True, False))

    assert tables(ahead) == tables(plain)
    assert ahead.num_plans < plain.num_plans


def test_passes_played_ahead_end_where_a_deadline_passes() -> None:
    workload = drawn_workload(24, mean_gap_ms=30)
    workload = replace(workload, deadline_us=np.where(workload.tenant == 0, 150_000, 0))
    fleet = Fleet(hardware=hardware_of(num_blocks=96, max_num_seqs=4, max_model_len=1300))

    for policy in (FIFO, Policy(ordering=Ordering.EARLIEST_DEADLINE_FIRST, reject_missed_deadlines=True)):
        ahead, plain = (simulate(workload, fleet, policy, play_ahead=ahead) for ahead in (True, False))

        assert tables(ahead) == tables(plain)
        assert ahead.num_plans < plain.num_plans
        assert (ahead.requests.outcome == Outcome.EXPIRED).any()


@pytest.mark.parametrize("holds", [True, False])
@pytest.mark.parametrize("num_blocks", [90, 150, 400])  # all is lost soon; something is found; nothing is lost
def test_where_prompts_begin_alike_passes_played_ahead_are_what_a_plan_for_each_gives(
    num_blocks: int, holds: bool
) -> None:
    """Prompts of whole blocks among them: the last one is computed by each, although it can be found."""
    draw = np.random.default_rng(num_blocks)
    prompts = draw.choice([512, 528, 1024, 1040, 1100], 24)
    names = [[draw.integers(0, 3), draw.integers(3, 5)][: prompt // 512 - draw.integers(0, 2)] for prompt in prompts]
    columns = {"num_prompt_tokens": prompts.astype(np.int32), "prefixes": [np.array(n, dtype=np.int32) for n in names]}
    workload = replace(drawn_workload(24, mean_gap_ms=30).bounded_by(40), **columns)
    hardware = hardware_of(num_blocks=num_blocks, num_swap_blocks=30, max_num_seqs=4, max_model_len=1250)
    policy = Policy(chunk_size_tokens=64, watermark=0.0, hold_for_shared_prefix=holds)

    ahead, plain = (simulate(workload, Fleet(hardware=hardware), policy, play_ahead=ahead) for ahead in (True, False))

    assert tables(ahead) == tables(plain)
    assert ahead.num_plans < plain.num_plans
    assert (ahead.requests.num_cached_tokens > 0).any()


@pytest.mark.parametrize(
    ("placement", "file_format"),
    [*((placement, Format.PARQUET) for placement in Placement), (Placement.ROUND_ROBIN, Format.CSV)],
    ids=lambda value: value.name,
)
def test_the_same_settings_have_the_same_files(placement: Placement, file_format: Format, tmp_path: Path) -> None:
    fleet = Fleet(hardware=hardware_of(max_model_len=1300, num_blocks=96), num_executors=3, placement=placement)
    contents = []
    for directory in (tmp_path / "first", tmp_path / "second"):
        workload = drawn_workload(16, mean_gap_ms=10).with_estimates_off_by(0.5, seed=3)
        paths = write_results(simulate(workload, fleet, FIFO, seed=3), directory, file_format)
        contents.append([path.read_bytes() for path in paths])

    assert contents[0] == contents[1]
    assert len(contents[0]) == 2


def test_one_request_takes_what_the_latency_model_says() -> None:
    """A prompt of 100 tokens in two chunks, and an answer of three: two prefills and two decodes."""
    records = simulate(workload_of((5, 100, 3)), Fleet(hardware=hardware_of()), FIFO)

    iterations = records.iterations.columns()
    assert iterations["num_prefill_tokens"].tolist() == [64, 36, 0, 0]
    assert iterations["start_us"].tolist() == [5000, 5000 + 1640, 5000 + 3000, 5000 + 3000 + 1075]
    decodes_us = [round(1000 + 50 + 0.25 * context) for context in (101, 102)]
    assert iterations["duration_us"].tolist() == [1640, 1360, *decodes_us]
    assert records.requests.first_token_us.tolist() == [8000]
    assert records.requests.end_us.tolist() == [8000 + sum(decodes_us)] == [records.end_us]
    assert records.gaps.mean_us == sum(decodes_us) / 2


def test_a_pass_that_begins_before_an_arrival_is_not_disturbed_by_it() -> None:
    records = simulate(workload_of((0, 64, 2), (1, 32, 1)), Fleet(hardware=hardware_of()), FIFO)

    assert records.requests.first_run_us.tolist() == [0, 1640]


def test_who_arrives_as_a_pass_would_begin_is_in_it() -> None:
    arrivals = workload_of((0, 64, 2), (1, 32, 1))
    at_the_boundary = replace(arrivals, arrival_us=np.array([0, 1640]))

    records = simulate(at_the_boundary, Fleet(hardware=hardware_of()), FIFO)

    assert records.requests.first_run_us.tolist() == [0, 1640]


def test_a_wait_for_the_plan_is_paid_where_somebody_came() -> None:
    waiting = hardware_of(plan_wait_us=500)

    records = simulate(workload_of((0, 16, 3)), Fleet(hardware=waiting), FIFO)

    assert records.iterations.columns()["duration_us"][0] == 1000 + 160 + 500
    assert records.iterations.columns()["duration_us"][1] == round(1000 + 50 + 0.25 * 17)


def test_what_prompts_have_in_common_is_computed_once() -> None:
    blocks = np.array([7, 8], dtype=np.int32)
    workload = workload_of((0, 1100, 2), (9000, 1100, 2), prefixes=[blocks, blocks])
    fleet = Fleet(hardware=hardware_of(num_blocks=128, max_model_len=1300))

    records = simulate(workload, fleet, FIFO)

    assert records.requests.num_cached_tokens.tolist() == [0, 1024]
    assert records.requests.num_run_tokens.tolist() == [1101, 77]
    assert records.requests.num_recomputed_tokens.tolist() == [0, 0]


def test_tenants_do_not_find_each_others_prefixes_unless_they_may() -> None:
    blocks = np.array([7, 8], dtype=np.int32)
    columns = {"prefixes": [blocks, blocks], "tenant": np.array([0, 1]), "tenants": ("a", "b")}
    workload = workload_of((0, 1100, 2), (9000, 1100, 2), **columns)
    found = {}
    for scope in PrefixScope:
        fleet = Fleet(hardware=hardware_of(num_blocks=128, max_model_len=1300, prefix_scope=scope))
        found[scope] = simulate(workload, fleet, FIFO).requests.num_cached_tokens.tolist()

    assert found == {PrefixScope.TENANT: [0, 0], PrefixScope.SHARED: [0, 1024], PrefixScope.OFF: [0, 0]}


def test_a_swap_takes_its_time_both_ways() -> None:
    """Two answers outgrow the cache: the second is swapped out, and comes back when the first is complete."""
    workload = workload_of((0, 60, 40), (0, 60, 40))
    policy = Policy(eviction=Eviction.SWAP, watermark=0.0)
    hardware = hardware_of(num_blocks=9, prefix_scope=PrefixScope.OFF)
    with_copies, without = (
        simulate(workload, Fleet(hardware=replace(hardware, latency=latency)), policy).iterations.columns()
        for latency in (LATENCY, replace(LATENCY, swap_block_us=0.0))
    )

    copied_us = with_copies["duration_us"] - without["duration_us"]
    assert np.flatnonzero(copied_us).tolist() == [
        int(with_copies["num_evicted_swap"].argmax()),
        int(with_copies["num_resumed"].argmax()),
    ]
    assert set(copied_us[copied_us > 0].tolist()) == {20 * 4}


def test_a_request_is_ended_in_the_pass_in_which_its_deadline_passes_and_frees_its_place() -> None:
    """A prefill of 1,160 us, and decodes of a little more than 1,050: the fifth pass ends after 5 ms."""
    workload = workload_of((0, 16, 50), (0, 16, 1), deadline_us=np.array([5000, 0]))

    records = simulate(workload, Fleet(hardware=hardware_of(max_num_seqs=1)), FIFO)

    requests = records.requests
    assert requests.outcome.tolist() == [Outcome.EXPIRED, Outcome.FINISHED]
    assert requests.num_output_tokens.tolist() == [5, 1]
    assert 5000 <= requests.end_us[0] == requests.first_run_us[1] < 5000 + 1060


def test_a_request_that_waits_until_its_deadline_never_runs() -> None:
    workload = workload_of((0, 16, 50), (0, 16, 1), deadline_us=np.array([0, 5000]))

    requests = simulate(workload, Fleet(hardware=hardware_of(max_num_seqs=1)), FIFO).requests

    assert requests.outcome.tolist() == [Outcome.FINISHED, Outcome.EXPIRED]
    assert (requests.first_run_us[1], requests.num_run_tokens[1]) == (NEVER, 0)


def test_a_request_that_can_never_fit_is_refused_and_the_others_go_on() -> None:
    records = simulate(workload_of((0, 5000, 4), (1, 16, 4)), Fleet(hardware=hardware_of()), FIFO)

    assert records.requests.outcome.tolist() == [Outcome.REFUSED, Outcome.FINISHED]


def test_an_executor_refuses_what_its_queue_has_no_place_for() -> None:
    workload = workload_of(*((0, 64, 20) for _ in range(6)))
    fleet = Fleet(hardware=hardware_of(max_num_seqs=2, max_num_waiting=3))

    assert simulate(workload, fleet, FIFO).requests.outcome.tolist() == [Outcome.FINISHED] * 3 + [Outcome.REFUSED] * 3


def test_a_planner_that_runs_nobody_is_found_out() -> None:
    class Idle(CorePlanner):
        def plan(self, snapshot: Snapshot, executor_id: str) -> Plan:
            return Plan(iteration=snapshot.iteration)

    with pytest.raises(LabError, match="no plan runs any"):
        simulate(workload_of((0, 8, 1)), Fleet(hardware=hardware_of()), FIFO, planner=Idle(FIFO))


def test_executors_that_take_turns_get_the_same_number() -> None:
    workload = drawn_workload(40, mean_gap_ms=1)
    fleet = Fleet(
        hardware=hardware_of(num_blocks=96, max_model_len=1300), num_executors=4, placement=Placement.ROUND_ROBIN
    )

    assert np.bincount(simulate(workload, fleet, FIFO).requests.executor).tolist() == [10] * 4


def test_a_request_goes_where_its_prefix_is_cached() -> None:
    first, second = (np.array([number], dtype=np.int32) for number in (1, 2))
    requests = ((0, 600, 1), (0, 600, 1), (5000, 600, 1), (9000, 600, 1), (13000, 600, 1))
    workload = workload_of(*requests, prefixes=[first, second, second, first, second])
    fleet = Fleet(
        hardware=hardware_of(num_blocks=128, max_model_len=1300), num_executors=2, placement=Placement.CACHED_PREFIX
    )

    records = simulate(workload, fleet, FIFO)

    one, other = records.requests.executor[:2].tolist()
    assert {one, other} == {0, 1}
    assert records.requests.executor[2:].tolist() == [other, one, other]
    assert records.requests.num_cached_tokens.tolist() == [0, 0, 512, 512, 512]
