"""A scheduler that is gone, or answers nonsense, keeps nobody who runs from finishing."""

from __future__ import annotations

import numpy as np
import pytest

from executor_service.engine.books import Status
from executor_service.engine.plan import Plan, PlanSource
from executor_service.engine.planning import Overlap
from executor_service.engine.snapshot import Snapshot
from support.engine import engine_on_tokens, limits_of
from support.planners import RECOMPUTE, SWAP, Alteration, LocalPlanner, Outage
from support.three_requests import NEW, assert_served, submit_all
from support.token_runner import true_tokens


@pytest.mark.parametrize("overlap", Overlap)
def test_without_a_scheduler_those_that_run_finish_and_those_that_wait_go_on_later(overlap: Overlap) -> None:
    outage = Outage(first=4)
    limits = limits_of(max_num_seqs=2, num_blocks=4, num_swap_blocks=4)
    served = engine_on_tokens(limits, planner=LocalPlanner(SWAP, outage), overlap=overlap)
    submit_all(served)
    assert served.engine.planning_failure == ""
    for _ in range(50):
        served.step()
    assert_served(served, 1, 2)
    assert served.status(3) is Status.WAITING
    assert served.tokens(3) == []
    sources = {record.plan_source for record in served.heard.passes if record.iteration >= 4}
    assert sources == {PlanSource.SAFE}
    failure = "no scheduler answers: connection refused"
    assert (served.heard.outages[0], served.engine.planning_failure) == (failure, failure)
    outage.is_over = True
    while len(served.books):
        served.step()
    assert_served(served, 3)
    assert served.engine.planning_failure == ""
    iterations = [record.iteration for record in served.heard.passes]
    assert iterations == list(range(1, len(iterations) + 1))  # only passes are numbered, whatever lay between them
    assert served.is_empty


def test_an_outage_in_a_full_cache_finishes_all_that_ever_ran() -> None:
    """Safe plans evict and bring back by themselves."""
    limits = limits_of(num_blocks=6, num_swap_blocks=2)
    served = engine_on_tokens(limits, planner=LocalPlanner(SWAP, Outage(first=2)))
    prompts = [[seed] * 20 for seed in range(4)]
    ids = [served.submit(prompt, 60) for prompt in prompts]
    served.step()
    started = [id for id in ids if served.status(id) is Status.RUNNING]
    assert len(started) > 1
    for _ in range(500):
        served.step()
    for request_id in started:
        assert served.tokens(request_id) == true_tokens(prompts[request_id - 1], 60)
    assert all(served.status(id) is Status.WAITING for id in ids if id not in started)
    assert served.engine.counters.num_evicted_recompute > 0


def unknown_ids(snapshot: Snapshot, plan: Plan) -> Plan:
    return Plan(iteration=plan.iteration, scheduled=np.array([999]), num_tokens=np.array([1], dtype=np.int32))


def absurd_numbers(snapshot: Snapshot, plan: Plan) -> Plan:
    return Plan(
        iteration=plan.iteration,
        scheduled=plan.scheduled,
        num_tokens=np.full(len(plan.scheduled), 2**31 - 1, dtype=np.int32),
        admit=plan.admit,
        resume=plan.resume,
    )


def another_iteration(snapshot: Snapshot, plan: Plan) -> Plan:
    return Plan(iteration=-5)


@pytest.mark.parametrize("garbage", [unknown_ids, absurd_numbers, another_iteration])
def test_a_scheduler_that_always_answers_garbage_keeps_nobody_from_finishing(garbage: Alteration) -> None:
    spoil_from_3: Alteration = lambda snapshot, plan: plan if snapshot.iteration < 3 else garbage(snapshot, plan)  # noqa: E731
    served = engine_on_tokens(limits_of(), planner=LocalPlanner(RECOMPUTE, spoil_from_3))
    submit_all(served)
    for _ in range(2):
        served.step()
    late = served.submit([1], 2)
    for _ in range(60):
        served.step()
    assert_served(served, 1, 2, 3)
    assert served.status(late) is Status.WAITING
    assert served.engine.counters.num_refused_plans >= NEW - 2
    served.engine.cancel(late)
    served.run()


def test_an_empty_plan_loses_nobody() -> None:
    empty_plans = iter(range(2))

    def nothing_twice(snapshot: Snapshot, plan: Plan) -> Plan:
        is_empty = snapshot.iteration == 3 and next(empty_plans, None) is not None
        return Plan(iteration=plan.iteration) if is_empty else plan

    served = engine_on_tokens(limits_of(), planner=LocalPlanner(RECOMPUTE, nothing_twice))
    submit_all(served)
    ran = [served.step() for _ in range(5)]
    assert ran == [True, True, False, False, True]
    served.run()
    assert_served(served, 1, 2, 3)
