"""When a plan is asked for: ahead while a pass runs, anew when requests arrived meanwhile."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

import numpy as np
import pytest

from executor_service.engine.plan import Plan, PlanSource
from executor_service.engine.planner import PendingPlan, PlanUnavailableError
from executor_service.engine.planning import Overlap, Planning
from executor_service.engine.snapshot import Snapshot, take
from support.engine import EngineUnderTest, engine_on_tokens, limits_of
from support.planners import RECOMPUTE, LocalPlanner


@dataclass
class Asked:
    """A pending plan that tells whether it was given up."""

    answer: Plan | PlanUnavailableError
    round_trip_us: int = 7
    given_up: bool = False

    def result(self) -> Plan:
        if isinstance(self.answer, PlanUnavailableError):
            raise self.answer
        return self.answer

    def cancel(self) -> None:
        self.given_up = True


@dataclass
class ScriptedPlanner:
    answers: list[Plan | PlanUnavailableError]
    asked: list[Asked] = field(default_factory=list)

    def request(self, snapshot: Snapshot) -> PendingPlan:
        self.asked.append(Asked(self.answers[len(self.asked)]))
        return self.asked[-1]


def plans(count: int) -> list[Plan | PlanUnavailableError]:
    return [Plan(iteration=iteration) for iteration in range(1, count + 1)]


def snapshot() -> Snapshot:
    return take(engine_on_tokens(limits_of()).books, now_us=1, latency=None)


def never() -> Snapshot:
    raise AssertionError("no state was to be taken")


def test_a_plan_asked_for_ahead_is_taken_and_no_other_is_asked_for() -> None:
    planner = ScriptedPlanner(plans(1))
    planning = Planning(planner, Overlap.ON)
    planning.ask_ahead(snapshot)
    obtained = planning.obtain(never)
    assert obtained.plan is planner.answers[0]
    assert (obtained.source, obtained.round_trip_us, obtained.failure) == (PlanSource.OVERLAPPED, 7, None)


def test_a_plan_is_taken_once() -> None:
    planning = Planning(ScriptedPlanner(plans(2)), Overlap.ON)
    planning.ask_ahead(snapshot)
    planning.obtain(never)
    obtained = planning.obtain(snapshot)
    assert obtained.source is PlanSource.DIRECT
    assert obtained.plan is not None
    assert obtained.plan.iteration == 2


def test_without_overlap_nothing_is_asked_for_ahead() -> None:
    planner = ScriptedPlanner(plans(1))
    planning = Planning(planner, Overlap.OFF)
    planning.ask_ahead(never)
    assert planner.asked == []
    assert planning.obtain(snapshot).source is PlanSource.DIRECT


def test_a_forgotten_plan_is_given_up_and_another_is_asked_for() -> None:
    planner = ScriptedPlanner(plans(2))
    planning = Planning(planner, Overlap.ON)
    planning.ask_ahead(snapshot)
    planning.forget()
    assert planner.asked[0].given_up
    assert planning.obtain(snapshot).plan is planner.answers[1]
    planning.forget()
    assert not planner.asked[1].given_up


@pytest.mark.parametrize("overlap", Overlap)
def test_without_an_answer_there_is_no_plan_and_the_reason_is_told(overlap: Overlap) -> None:
    planning = Planning(ScriptedPlanner([PlanUnavailableError("connection refused")]), overlap)
    planning.ask_ahead(snapshot)
    obtained = planning.obtain(snapshot)
    assert (obtained.plan, str(obtained.failure)) == (None, "no scheduler answers: connection refused")


def sources(served: EngineUnderTest) -> list[PlanSource]:
    return [record.plan_source for record in served.heard.passes]


def test_an_engine_asks_ahead_and_asks_anew_when_requests_arrive() -> None:
    served = engine_on_tokens(limits_of())
    served.submit([1, 2], 6)
    for _ in range(3):
        served.step()
    late = served.submit([3], 2)
    served.step()
    assert len(served.tokens(late)) == 1, "it waits for no further pass"
    served.run()
    assert sources(served) == [
        PlanSource.DIRECT,
        PlanSource.OVERLAPPED,
        PlanSource.OVERLAPPED,
        PlanSource.DIRECT,
        PlanSource.OVERLAPPED,
        PlanSource.OVERLAPPED,
    ]


def test_an_engine_without_overlap_asks_before_each_pass() -> None:
    served = engine_on_tokens(limits_of(), overlap=Overlap.OFF)
    served.submit([1, 2], 4)
    served.run()
    assert set(sources(served)) == {PlanSource.DIRECT}


def test_a_pass_is_told_in_figures() -> None:
    limits = limits_of(max_num_batched_tokens=16, max_num_seqs=2, num_swap_blocks=2)
    served = engine_on_tokens(limits)
    served.submit([1], 2)
    served.submit(range(20), 1)
    served.submit([1], 1)
    served.step()
    served.step()
    first, second = served.heard.passes
    assert (first.iteration, second.iteration) == (1, 2)
    assert (first.num_prefill_tokens, first.num_prefill_requests, first.num_decode_tokens) == (16, 2, 0)
    assert (first.num_running, first.num_waiting, first.num_admitted, first.num_finished) == (2, 1, 2, 0)
    assert (first.num_free_blocks, first.num_free_swap_blocks) == (6, 2)
    assert (second.num_prefill_tokens, second.num_decode_tokens, second.num_decode_requests) == (5, 1, 1)
    assert (second.num_running, second.num_finished, second.num_free_blocks) == (2, 2, 5)


def test_the_wait_for_a_plan_is_no_part_of_building_the_batch() -> None:
    def slow(snapshot: Snapshot, plan: Plan) -> Plan:
        time.sleep(0.2)
        return plan

    served = engine_on_tokens(limits_of(), planner=LocalPlanner(RECOMPUTE, slow))
    served.submit([1], 1)
    served.run()
    (record,) = served.heard.passes
    assert record.plan_wait_us >= 200_000
    assert record.build_us < record.plan_wait_us
    parts = np.array([record.plan_wait_us, record.build_us, record.forward_us, record.emit_us])
    assert parts.sum() <= record.total_us
