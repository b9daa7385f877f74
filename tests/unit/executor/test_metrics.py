"""What an executor's metrics say of what an engine did, without a process around it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import prometheus_client
import pytest
from prometheus_client import CollectorRegistry

from executor_service.engine.apply import RefusalReason
from executor_service.engine.books import Status
from executor_service.engine.plan import EvictMode, EvictReason
from executor_service.engine.record import Ending
from executor_service.engine.request import Usage
from executor_service.metrics import buckets
from executor_service.metrics.collector import SHORTFALLS, WAITING_REASONS, waiting_by_reason
from executor_service.metrics.histogram import Histogram
from executor_service.metrics.tally import Tally
from executor_service.metrics.tenants import OTHER, UNNAMED, TenantLabels
from metronome.scheduler.v1 import plan_pb2
from support.engine import EngineUnderTest, engine_on_tokens, limits_of
from support.planners import RECOMPUTE, SWAP, LocalPlanner, Outage

USAGE = Usage(
    num_prompt_tokens=5,
    num_output_tokens=7,
    num_cached_tokens=0,
    num_preemptions=0,
    queue_time_us=1_000,
    time_to_first_token_us=2_000,
    total_time_us=9_000,
)
ENDING = Ending(
    request_id="r",
    iteration=1,
    tenant="",
    reason="STOP",
    is_answered=True,
    usage=USAGE,
    prefill_time_us=1_000,
    decode_time_us=7_000,
)


def tallied(engine: EngineUnderTest, tally: Tally | None = None) -> Tally:
    """What the metrics are after all that an engine has told."""
    tally = tally or Tally(TenantLabels(10))
    for record, measures in zip(engine.heard.passes, engine.heard.measures, strict=True):
        tally.pass_done(record, measures)
    for ending in engine.heard.endings:
        tally.request_ended(ending)
    return tally


@pytest.mark.parametrize("bounds", [buckets.PASS_SECONDS, buckets.TOKENS, buckets.FIRST_TOKEN_SECONDS])
def test_a_histogram_counts_as_that_of_the_library(bounds: tuple[float, ...]) -> None:
    theirs = prometheus_client.Histogram("time", "", buckets=bounds, registry=CollectorRegistry())
    ours = Histogram(bounds)
    values = [0.0, *bounds, *(bound * 1.001 for bound in bounds), 1e9]
    for value in values:
        theirs.observe(value)
    ours.add_all(values)
    (family,) = theirs.collect()
    expected = {sample.labels["le"]: sample.value for sample in family.samples if sample.name == "time_bucket"}
    assert dict(ours.buckets) == expected
    assert ours.sum == sum(values)


def test_a_million_tenants_make_no_more_series_than_were_asked_for() -> None:
    labels = TenantLabels(3)
    tally = Tally(labels)
    for tenant in ("", "first", "second"):
        tally.request_ended(replace(ENDING, tenant=tenant))
    assert {labels.of(f"tenant-{number}") for number in range(1_000_000)} == {OTHER}
    for number in range(1_000):
        tally.request_ended(replace(ENDING, tenant=f"tenant-{number}"))
    assert tally.tenant_requests == {UNNAMED: 1, "first": 1, "second": 1, OTHER: 1_000}
    assert tally.tenant_output_tokens == {UNNAMED: 7, "first": 7, "second": 7, OTHER: 7_000}


def test_without_room_for_any_tenant_all_are_one() -> None:
    assert TenantLabels(0).of("") == TenantLabels(0).of("a") == OTHER


@pytest.mark.parametrize(("policy", "mode"), [(SWAP, "SWAP"), (RECOMPUTE, "RECOMPUTE")], ids=["swap", "recompute"])
def test_evictions_are_told_by_mode_and_reason_and_what_they_lose_is_computed_again(policy: object, mode: str) -> None:
    engine = engine_on_tokens(limits_of(num_blocks=4, num_swap_blocks=8), planner=LocalPlanner(policy))
    first, second = engine.submit([1] * 16, 30), engine.submit([2] * 16, 30)
    engine.run()
    tally = tallied(engine)
    counters = engine.engine.counters
    num_evicted = counters.num_evicted_swap + counters.num_evicted_recompute
    assert tally.evictions[mode, "OUT_OF_BLOCKS"] == num_evicted > 0
    assert tally.evictions.total() == num_evicted
    assert tally.tokens["prefill"] + tally.tokens["recomputed"] == counters.num_prefill_tokens
    # Each prompt once; and with the tokens computed again the newest one, whose KV was not there before.
    assert tally.tokens["prefill"] == 32 + counters.num_evicted_recompute
    assert (tally.tokens["recomputed"] > 0) == (mode == "RECOMPUTE")
    assert tally.tokens["prefill"] + tally.tokens["decode"] == 32 + 2 * 29
    assert [len(engine.tokens(request)) for request in (first, second)] == [30, 30]


def test_each_token_is_timed_once_and_each_request() -> None:
    engine = engine_on_tokens(limits_of())
    for new in (1, 5, 9):
        engine.submit([new] * 4, new)
    cancelled = engine.submit([7] * 4, 50)
    engine.step_until_tokens(cancelled, 3)
    engine.engine.cancel(cancelled)
    engine.run()
    tally = tallied(engine)

    def count(histogram: Histogram) -> float:
        return histogram.buckets[-1][1]

    num_tokens = engine.engine.counters.num_output_tokens
    assert count(tally.first_token_time) == count(tally.queue_time) == 4
    assert count(tally.token_gap) == num_tokens - 4
    assert count(tally.request_time) == count(tally.prefill_time) == count(tally.output_tokens) == 3
    assert tally.output_tokens.sum == 15
    assert tally.requests_ended["LENGTH"] == 3
    assert tally.requests_ended["CANCELLED"] == 1
    assert tally.requests_ended.total() == 4
    assert tally.tenant_output_tokens[UNNAMED] == num_tokens
    assert count(tally.iteration_time) == len(engine.heard.passes) == tally.plans.total()
    assert all(count(part) == len(engine.heard.passes) for part in tally.part_times.values())


def test_a_refused_plan_is_told_by_what_was_wrong_with_it() -> None:
    planner = LocalPlanner(RECOMPUTE, lambda snapshot, plan: replace(plan, iteration=99))
    engine = engine_on_tokens(limits_of(), planner=planner)
    engine.submit([1], 1)
    engine.step()
    assert engine.heard.refusal_reasons == [RefusalReason.STALE]


def test_an_eviction_without_a_reason_that_is_known_is_one_for_unknown_reasons() -> None:
    assert EvictReason(0) is EvictReason(77) is EvictReason.UNKNOWN
    assert EvictReason(20).name == plan_pb2.Reason.Name(20).removeprefix("REASON_EVICTED_")
    assert EvictReason(21).name == plan_pb2.Reason.Name(21).removeprefix("REASON_EVICTED_")
    assert [mode.name for mode in EvictMode] == ["SWAP", "RECOMPUTE"]


def test_every_reason_of_the_contract_to_wait_has_a_label() -> None:
    names = (name.removeprefix("REASON_") for name in dict(plan_pb2.Reason.items()))
    waiting = [name.removeprefix("WAITING_").removeprefix("FOR_").lower() for name in names if "WAITING" in name]
    assert list(SHORTFALLS) == waiting


def test_who_waits_for_blocks_is_told_from_who_waits_for_a_scheduler_and_who_was_evicted() -> None:
    engine = engine_on_tokens(limits_of(num_blocks=4), planner=LocalPlanner(RECOMPUTE))
    engine.submit([1] * 40, 20)
    engine.step()
    engine.submit([2] * 40, 20)
    engine.submit([3] * 40, 20)
    engine.step()
    engine.step()
    waits = waiting_by_reason(engine.engine.gauges)
    assert {reason: count for reason, count in waits.items() if count} == {"blocks": 2}
    assert set(waits) == set(WAITING_REASONS)
    engine.run()
    assert set(waiting_by_reason(engine.engine.gauges).values()) == {0}

    alone = engine_on_tokens(limits_of(), planner=LocalPlanner(RECOMPUTE, Outage(first=1)))
    alone.submit([1], 1)
    alone.step()
    waits = waiting_by_reason(alone.engine.gauges)
    assert {reason: count for reason, count in waits.items() if count} == {"no_plan": 1}


def test_gauges_tell_tenants_apart() -> None:
    engine = engine_on_tokens(limits_of())
    engine.submit([1], 5, tenant="a")
    engine.submit([1], 5, tenant="b")
    engine.submit([1], 5, tenant="b")
    engine.step()
    gauges = engine.engine.gauges
    assert gauges.num_requests_by_tenant(Status.RUNNING) == {"a": 1, "b": 2}
    assert gauges.num_requests_by_tenant(Status.WAITING) == {"a": 0, "b": 0}
    assert gauges.num_requests(Status.RUNNING) == 3
    assert gauges.num_free_blocks == engine.books.block_pool.num_free
    engine.run()
    assert engine.engine.gauges.num_requests_by_tenant(Status.RUNNING) == {}
    assert np.isclose(gauges.time_us, engine.engine.gauges.time_us, rtol=1)
