"""Figures, promises and charts of runs whose records are written by hand, or small enough to be worked out."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from metronome_lab.capacity import PRECISION, fewest_executors, highest_rate, meets
from metronome_lab.comparison import compare_runs
from metronome_lab.errors import LabError
from metronome_lab.fairness import fairness_of
from metronome_lab.figures import Targets, figures_of
from metronome_lab.order_promise import order_promise
from metronome_lab.records import GapRecords, Outcome, Records
from metronome_lab.report.charts import batch_composition, gantt, queue_length, tenant_service
from metronome_lab.runs import Run, Scenario
from metronome_lab.simulation import Fleet, simulate
from scheduler_service.core.policy import HeadOfLine, Ordering, Policy
from support.lab import drawn_workload, hardware_of, workload_of
from support.traces import TRACES

TRACE = TRACES / "azure_2023_conv_code.csv"
FIFO = Policy(chunk_size_tokens=64)


def records_of(*requests: tuple[int, int], **columns: object) -> Records:
    """Requests of (arrival, first run) in seconds, on one executor; all have run."""
    workload = workload_of(*((arrival * 1000, 10, 3) for arrival, _ in requests), **columns)
    records = Records(workload)
    records.requests.executor[:] = 0
    records.requests.first_run_us[:] = [first_run * 1_000_000 for _, first_run in requests]
    return records


def test_a_request_is_good_if_it_meets_both_targets() -> None:
    records = simulate(workload_of((0, 100, 3), (0, 300, 3)), Fleet(hardware=hardware_of()), FIFO)
    ttft_us = records.requests.first_token_us.tolist()

    def share_good(**targets: int) -> float:
        return figures_of(records, Targets(**({"ttft_us": 10**9, "itl_us": 10**9} | targets))).share_good

    assert share_good() == 1.0
    assert share_good(ttft_us=ttft_us[0]) == 0.5
    assert share_good(ttft_us=ttft_us[0] - 1) == 0.0
    assert share_good(itl_us=1) == 0.0


def test_figures_are_those_of_the_rows() -> None:
    workload = drawn_workload(40, mean_gap_ms=30)
    records = simulate(workload, Fleet(hardware=hardware_of(num_blocks=96, max_model_len=1300)), FIFO)

    figures = figures_of(records, Targets(ttft_us=10**6, itl_us=10**5))

    requests = records.requests
    assert figures.num_finished == 40
    assert figures.duration_s == requests.end_us.max() / 1e6
    assert figures.output_tokens_per_s == pytest.approx(workload.num_output_tokens.sum() / figures.duration_s)
    assert figures.ttft.mean_ms == pytest.approx((requests.first_token_us - workload.arrival_us).mean() / 1e3)
    assert figures.longest_wait_s == (requests.first_run_us - workload.arrival_us).max() / 1e6
    num_prefill_tokens = records.iterations.columns()["num_prefill_tokens"].sum()
    assert figures.prefill_tokens_per_s == pytest.approx(num_prefill_tokens / figures.duration_s)


def test_each_tenant_has_figures_of_its_own_requests() -> None:
    """One place: the second waits for the first, the third is ended while it waits."""
    columns = {"tenant": np.array([0, 1, 1]), "tenants": ("a", "b"), "deadline_us": np.array([0, 0, 2000])}
    records = simulate(
        workload_of((0, 64, 3), (0, 64, 1), (0, 64, 1), **columns), Fleet(hardware=hardware_of(max_num_seqs=1)), FIFO
    )

    figures = figures_of(records, Targets(ttft_us=10**6, itl_us=10**5))

    first, second = figures.tenants
    requests = records.requests
    assert (first.name, first.num_finished, first.num_requests) == ("a", 1, 1)
    assert (second.name, second.num_finished, second.num_requests) == ("b", 1, 2)
    assert figures.num_expired == 1
    assert (first.wait.mean_ms, second.wait.mean_ms) == (0, requests.first_run_us[1] / 1e3)
    assert (first.ttft.mean_ms, second.ttft.mean_ms) == tuple(requests.first_token_us[:2] / 1e3)
    assert (first.e2e.p99_ms, second.e2e.p99_ms) == tuple(requests.end_us[:2] / 1e3)
    assert figures.longest_gap_ms == requests.max_gap_us[0] / 1e3 > 0


def test_a_table_has_rows_for_tenants_where_there_are_several() -> None:
    both = compare_runs(runs_of("a"), Targets(ttft_us=10**6, itl_us=10**5)).rows()

    assert {"code: finished", "conv: TTFT mean / p50 / p99, ms"} <= both.keys()


def test_percentiles_of_gaps_are_known_within_a_quarter_of_a_percent() -> None:
    gaps_us, records = np.random.default_rng(1).integers(1, 10**6, 50_000), GapRecords()
    records.add(gaps_us)
    records.add(np.array([10**6]), times=50_000)

    all_gaps = np.concatenate([gaps_us, np.full(50_000, 10**6)])
    assert records.mean_us == all_gaps.mean()
    for percent in (5, 25, 45, 99):
        assert records.percentile_us(percent) == pytest.approx(np.percentile(all_gaps, percent), rel=0.0026)


def test_a_report_tells_how_planning_grows_with_the_fleet() -> None:
    scenario = Scenario(path=TRACE, stop=8)
    run = Run(name="fifo", scenario=scenario, fleet=Fleet(hardware=hardware_of(), num_executors=2), policy=FIFO)
    comparison = compare_runs([run], Targets(ttft_us=10**6, itl_us=10**5))

    measured = comparison.with_planning_times()

    added = measured.rows().keys() - comparison.rows().keys()
    assert added == {f"planning {count} executors, ms" for count in ("1", "10", "100", "1,000")}
    assert [chart.name for chart in measured.charts() if chart not in comparison.charts()][-1] == "planning"
    assert "Planning time against the size of the fleet" in measured.page()


def test_fairness_counts_while_both_tenants_wait() -> None:
    """Both have a request that waits from second 1 to 4; only then does it count who got how much."""
    columns = {"tenant": np.array([0, 1]), "tenants": ("a", "b")}
    records = records_of((0, 4), (1, 5), **columns)
    for end_s, tokens in ((0, (1000, 0)), (1, (30, 10)), (2, (20, 20)), (3, (10, 10)), (4, (0, 500))):
        records.service.add(np.array([end_s * 1_000_000 + 500_000]), np.array(tokens)[:, None])

    fairness = fairness_of(records)

    assert fairness.contended_s == 3.0
    assert fairness.jain == pytest.approx((60 + 40) ** 2 / (2 * (60**2 + 40**2)))
    assert fairness.largest_gap_tokens == 20


def test_one_tenant_is_served_fairly() -> None:
    assert fairness_of(simulate(workload_of((0, 9, 2)), Fleet(hardware=hardware_of()), FIFO)).jain == 1.0


PRIORITY = Policy(ordering=Ordering.PRIORITY, aging_seconds=10.0)
FEWEST_LATE = Policy(ordering=Ordering.FEWEST_LATE, aging_seconds=10.0)


@pytest.mark.parametrize(
    ("policy", "runs", "priorities", "num_broken"),
    [
        (FIFO, [(0, 1), (1, 2)], [0, 0], 0),
        (FIFO, [(0, 5), (1, 2), (1, 9), (2, 3)], [0, 0, 0, 0], 2),
        (FIFO, [(0, 5), (1, 5)], [0, 0], 0),
        (PRIORITY, [(0, 30), (9, 20)], [0, 0], 0),
        (PRIORITY, [(0, 30), (11, 20)], [0, 0], 1),
        (PRIORITY, [(0, 40), (19, 25)], [0, 1], 0),
        (PRIORITY, [(0, 40), (21, 25)], [0, 1], 1),
        (FEWEST_LATE, [(0, 30), (10, 20)], [0, 0], 0),
        (FEWEST_LATE, [(0, 30), (11, 20)], [0, 0], 1),
        (Policy(ordering=Ordering.FAIR), [(0, 5), (1, 2)], [0, 0], 1),
        (Policy(ordering=Ordering.EARLIEST_DEADLINE_FIRST), [(0, 5), (1, 2)], [0, 0], None),
        (Policy(head_of_line=HeadOfLine.SKIP), [(0, 5), (1, 2)], [0, 0], None),
    ],
)
def test_who_may_pass_whom_is_what_the_policy_promises(
    policy: Policy, runs: list[tuple[int, int]], priorities: list[int], num_broken: int | None
) -> None:
    records = records_of(*runs, priority=np.array(priorities))

    assert order_promise(records, policy).num_broken == num_broken


def test_under_fair_those_of_another_tenant_may_pass() -> None:
    records = records_of((0, 5), (1, 2), (2, 3), tenant=np.array([0, 1, 0]), tenants=("a", "b"))

    assert order_promise(records, Policy(ordering=Ordering.FAIR)).num_broken == 1


@pytest.mark.parametrize(("num_cached", "num_broken"), [(0, 1), (40, 0)])
def test_what_a_cache_holds_of_a_prompt_lets_it_pass(num_cached: int, num_broken: int) -> None:
    records = records_of((0, 5), (1, 2))
    records.requests.workload.num_prompt_tokens[:] = [20, 50]
    records.requests.num_cached_tokens[1] = num_cached

    policy = Policy(ordering=Ordering.SHORTEST_PREFILL_FIRST)
    assert order_promise(records, policy).num_broken == num_broken


@pytest.mark.parametrize(
    "ordering",
    [
        *(Ordering.FIFO, Ordering.PRIORITY),
        *(Ordering.SHORTEST_JOB_FIRST, Ordering.SHORTEST_PREFILL_FIRST, Ordering.FEWEST_LATE),
    ],
)
@pytest.mark.parametrize("shares_prefixes", [False, True])
def test_the_planner_keeps_its_promises(ordering: Ordering, shares_prefixes: bool) -> None:
    policy = Policy(ordering=ordering, aging_seconds=0.5)
    no_prefixes = {} if shares_prefixes else {"prefixes": [np.empty(0, dtype=np.int32)] * 40}
    workload = drawn_workload(40, mean_gap_ms=5, **no_prefixes)
    fleet = Fleet(hardware=hardware_of(num_blocks=96, max_num_seqs=4, max_model_len=1300))

    assert order_promise(simulate(workload, fleet, policy), policy).is_kept


def test_charts_show_what_was_recorded() -> None:
    workload = drawn_workload(40, mean_gap_ms=30)
    records = simulate(workload, Fleet(hardware=hardware_of(num_blocks=96, max_model_len=1300)), FIFO)
    runs, columns = {"fifo": records}, records.iterations.columns()

    decode, prefill = batch_composition(runs).panels[0].series
    span_s = records.end_us / 1e6 / len(decode.x)
    assert prefill.y.sum() * span_s == pytest.approx(columns["num_prefill_tokens"].sum())
    assert decode.y.sum() * span_s == pytest.approx(columns["num_decode_tokens"].sum())
    waiting = queue_length(runs).panels[0].series[0]
    assert 0 <= waiting.y.min() <= waiting.y.max() <= columns["num_waiting"].max() + 1e-6
    assert [line.y[-1] for line in tenant_service(runs).panels[0].series] == records.service.tokens.sum(axis=1).tolist()
    waits, _, answer = gantt(runs).panels[0].series
    assert (records.requests.outcome == Outcome.FINISHED).all()
    assert waits.x.tolist() == (workload.arrival_us / 1e6).tolist()
    assert answer.x_end is not None
    assert answer.x_end.tolist() == (records.requests.end_us / 1e6).tolist()


def runs_of(*names: str) -> list[Run]:
    scenario = Scenario(path=TRACE, stop=15, rate=0.5)
    fleet = Fleet(hardware=hardware_of(num_blocks=2000, max_model_len=20_000, max_num_batched_tokens=2048))
    return [Run(name=name, scenario=scenario, fleet=fleet, policy=FIFO) for name in names]


def test_runs_in_processes_give_what_they_give_in_this_one() -> None:
    targets = Targets(ttft_us=10**6, itl_us=10**5)

    here, there = (compare_runs(runs_of("a", "b"), targets, rates=(2.0,), jobs=jobs) for jobs in (1, 2))

    assert here.figures() == there.figures()
    assert here.goodput == there.goodput
    assert list(here.goodput) == ["a", "b"]


def test_a_report_needs_nothing_from_elsewhere() -> None:
    comparison = compare_runs(runs_of("<b>fifo</b>"), Targets(ttft_us=10**6, itl_us=10**5), rates=(0.5, 1.0))

    page = comparison.page()

    body = page[page.index("<body>") :]
    assert "src=" not in body
    assert "https://" not in page[: page.index("<script>")] + body
    assert "&lt;b&gt;fifo&lt;/b&gt;" in body
    for chart in comparison.charts():
        assert f'id="chart-{chart.name}"' in body


def test_the_highest_rate_meets_the_targets_and_a_little_more_does_not() -> None:
    run, targets = runs_of("fifo")[0], Targets(ttft_us=400_000, itl_us=20_000)

    found = highest_rate(run, targets)

    assert meets(figures_of(run.at_rate(found.rate).play(), targets), targets)
    assert not meets(figures_of(run.at_rate(found.rate * (1 + PRECISION)).play(), targets), targets)
    assert found.figures == figures_of(run.at_rate(found.rate).play(), targets)


def test_the_smallest_fleet_meets_the_targets_and_a_smaller_one_does_not() -> None:
    run, targets = runs_of("fifo")[0].at_rate(10.0), Targets(ttft_us=400_000, itl_us=20_000)

    found = fewest_executors(run, targets)

    def of(num_executors: int) -> bool:
        fleet = replace(run.fleet, num_executors=num_executors)
        return meets(figures_of(replace(run, fleet=fleet).play(), targets), targets)

    assert found.num_executors > 1
    assert of(found.num_executors)
    assert not of(found.num_executors - 1)


def test_what_no_rate_and_no_fleet_meets_is_said() -> None:
    impossible = Targets(ttft_us=1, itl_us=1)

    assert highest_rate(runs_of("fifo")[0], impossible).rate == 0.0
    with pytest.raises(LabError, match="does not meet the targets"):
        fewest_executors(replace(runs_of("fifo")[0], scenario=Scenario(path=TRACE, stop=1)), impossible)
