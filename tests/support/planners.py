"""Planners for engines in tests: the real scheduler without a network, and ways to spoil what it answers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from executor_service.convert.plan import plan_from_response
from executor_service.convert.state import cluster_state
from executor_service.engine.books import Status
from executor_service.engine.plan import EvictMode, EvictReason, Plan
from executor_service.engine.planner import PlanUnavailableError
from executor_service.engine.snapshot import Snapshot
from metronome.scheduler.v1 import scheduler_pb2, state_pb2
from scheduler_service.convert import cluster_from, plan_message
from scheduler_service.core.plan import plan
from scheduler_service.core.policy import Eviction, Policy
from scheduler_service.core.validate import validate
from scheduler_service.core.verify import verify

EXECUTOR_ID = "executor-0"
RECOMPUTE = Policy(eviction=Eviction.RECOMPUTE)
SWAP = Policy(eviction=Eviction.SWAP)

Alteration = Callable[[Snapshot, Plan], Plan]


def real_plan(snapshot: Snapshot, policy: Policy) -> Plan:
    """The scheduler's plan, over every conversion that the network would ask for."""
    state = cluster_state(snapshot, executor_id=EXECUTOR_ID).SerializeToString()
    cluster = cluster_from(state_pb2.ClusterState.FromString(state), "state")
    validate(cluster)
    plans = plan(cluster, policy)
    violations = verify(cluster.executors[0], plans[0], policy)
    assert not violations, violations
    response = scheduler_pb2.PlanResponse(plans=map(plan_message, plans)).SerializeToString()
    return plan_from_response(scheduler_pb2.PlanResponse.FromString(response), executor_id=EXECUTOR_ID)


@dataclass(frozen=True, slots=True)
class Answer:
    """A pending plan that is worked out when it is waited for, from the state that was asked about."""

    work_out: Callable[[], Plan]
    round_trip_us: int = 0

    def result(self) -> Plan:
        return self.work_out()

    def cancel(self) -> None:
        """Nobody waits; there is nothing to stop."""


class LocalPlanner:
    """The real scheduler in process. ``alter`` may change each plan that it gives, or raise PlanUnavailableError.

    ``plans`` are those that the engine was given, in order.
    """

    def __init__(self, policy: Policy = RECOMPUTE, *alterations: Alteration) -> None:
        self.policy = policy
        self.alterations = list(alterations)
        self.plans: list[Plan] = []

    def request(self, snapshot: Snapshot) -> Answer:
        return Answer(lambda: self._plan(snapshot))

    def _plan(self, snapshot: Snapshot) -> Plan:
        plan = real_plan(snapshot, self.policy)
        for alter in self.alterations:
            plan = alter(snapshot, plan)
        self.plans.append(plan)
        return plan


def row_of(snapshot: Snapshot, request_id: int) -> int:
    """-1 where the request is not in the state."""
    rows = np.flatnonzero(snapshot.columns["id"] == request_id)
    return int(rows[0]) if len(rows) else -1


def num_tokens_of(snapshot: Snapshot, request_id: int) -> int:
    """Prompt and output tokens of a running request; 0 if it does not run."""
    row, columns = row_of(snapshot, request_id), snapshot.columns
    if row < 0 or columns["status"][row] != Status.RUNNING:
        return 0
    return int(columns["num_prompt_tokens"][row] + columns["num_output_tokens"][row])


def evicting(plan: Plan, request_id: int, mode: EvictMode) -> Plan:
    """The plan with this running request evicted instead of run."""
    stays = plan.scheduled != request_id
    others = plan.evict != request_id
    return replace(
        plan,
        scheduled=plan.scheduled[stays],
        num_tokens=plan.num_tokens[stays],
        evict=np.append(plan.evict[others], np.int64(request_id)),
        evict_modes=np.append(plan.evict_modes[others], np.int32(mode)),
        evict_reasons=np.append(plan.evict_reasons[others], np.int32(EvictReason.UNKNOWN)),
    )


@dataclass(slots=True, kw_only=True)
class EvictAtLength:
    """Evicts a request once, when it runs and has so many tokens, prompt and output together."""

    request_id: int
    length: int
    mode: EvictMode
    done: bool = False

    def __call__(self, snapshot: Snapshot, plan: Plan) -> Plan:
        if self.done or num_tokens_of(snapshot, self.request_id) != self.length:
            return plan
        self.done = True
        return evicting(plan, self.request_id, self.mode)


@dataclass(slots=True, kw_only=True)
class Outage:
    """No scheduler answers from the pass ``first`` on, until it is over."""

    first: int
    is_over: bool = False

    def __call__(self, snapshot: Snapshot, plan: Plan) -> Plan:
        if snapshot.iteration >= self.first and not self.is_over:
            raise PlanUnavailableError("connection refused")
        return plan
