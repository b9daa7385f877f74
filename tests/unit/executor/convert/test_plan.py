"""Answers of a scheduler, taken apart; what is no plan for this executor is refused."""

from __future__ import annotations

from typing import Any

import pytest

from executor_service.convert.plan import MalformedPlanError, plan_from_response
from executor_service.engine.plan import EvictMode, Rejection
from metronome.scheduler.v1 import plan_pb2 as pb
from metronome.scheduler.v1 import scheduler_pb2 as scheduler


def response_of(*plans: pb.ExecutorPlan) -> scheduler.PlanResponse:
    return scheduler.PlanResponse(plans=plans)


def test_every_list_arrives() -> None:
    message = pb.ExecutorPlan(
        executor_id="a",
        iteration=2**40,
        scheduled=pb.ScheduledTable(id=[1, 2**50], num_tokens=[1, 512]),
        admit=pb.TransitionTable(id=[2]),
        resume=pb.TransitionTable(id=[3]),
        evict=pb.EvictTable(id=[4, 5], mode=[pb.EVICT_MODE_SWAP, pb.EVICT_MODE_RECOMPUTE]),
        reject=pb.RejectTable(id=[6], reason=[pb.REASON_REJECTED_EXCEEDS_BLOCKS], needed=[13], available=[8]),
        predicted_time_us=77,
        kv_residency_charge=0.5,
    )
    plan = plan_from_response(response_of(message), executor_id="a")
    assert plan.iteration == 2**40
    assert (plan.scheduled.tolist(), plan.num_tokens.tolist()) == ([1, 2**50], [1, 512])
    assert (plan.admit.tolist(), plan.resume.tolist(), plan.evict.tolist()) == ([2], [3], [4, 5])
    assert plan.evict_modes.tolist() == [EvictMode.SWAP, EvictMode.RECOMPUTE]
    detail = "REJECTED_EXCEEDS_BLOCKS: needs 13, there are 8"
    rejection = Rejection(id=6, detail=detail, reason="REJECTED_EXCEEDS_BLOCKS", needed=13, available=8)
    assert plan.reject == (rejection,)
    assert (plan.predicted_us, plan.kv_residency_charge) == (77, 0.5)


def test_an_empty_plan_is_a_plan() -> None:
    plan = plan_from_response(response_of(pb.ExecutorPlan(executor_id="a", iteration=3)), executor_id="a")
    assert plan.iteration == 3
    assert len(plan.scheduled) == len(plan.num_tokens) == len(plan.evict) == len(plan.reject) == 0


def test_a_reason_that_nobody_knows_yet_is_given_as_its_number() -> None:
    unknown: Any = 999
    reject = pb.RejectTable(id=[6], reason=[unknown], needed=[1], available=[0])
    plan = plan_from_response(response_of(pb.ExecutorPlan(executor_id="a", reject=reject)), executor_id="a")
    assert plan.reject[0].detail.startswith("reason 999")


@pytest.mark.parametrize(
    "plans",
    [
        [],
        [pb.ExecutorPlan(executor_id="b")],
        [pb.ExecutorPlan(executor_id="a"), pb.ExecutorPlan(executor_id="b")],
        [pb.ExecutorPlan(executor_id="a")] * 2,
        [pb.ExecutorPlan()],
        [
            pb.ExecutorPlan(
                executor_id="a",
                reject=pb.RejectTable(id=[1, 2], reason=[pb.REASON_REJECTED_EXCEEDS_BLOCKS], needed=[1], available=[0]),
            )
        ],
        [pb.ExecutorPlan(executor_id="a", reject=pb.RejectTable(id=[1]))],
        [pb.ExecutorPlan(executor_id="a", kv_residency_charge=float("nan"))],
        [pb.ExecutorPlan(executor_id="a", kv_residency_charge=-0.5)],
        [pb.ExecutorPlan(executor_id="a", kv_residency_charge=1e6 + 1)],
    ],
)
def test_what_is_not_one_plan_for_this_executor_is_refused(plans: list[pb.ExecutorPlan]) -> None:
    with pytest.raises(MalformedPlanError):
        plan_from_response(response_of(*plans), executor_id="a")
