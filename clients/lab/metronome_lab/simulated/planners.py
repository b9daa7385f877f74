"""Who makes the plans: the planning core in this process, or a scheduler service over the network."""

from __future__ import annotations

from functools import lru_cache
from typing import Protocol

import numpy as np

from executor_service.convert.plan import plan_from_response
from executor_service.convert.state import cluster_state
from executor_service.engine.common_prefixes import CommonPrefixes
from executor_service.engine.limits import Limits
from executor_service.engine.plan import Plan, Rejection
from executor_service.engine.snapshot import Latency, Snapshot
from metronome.scheduler.v1 import scheduler_pb2
from metronome_client import SchedulerClient
from scheduler_service.convert import policy_message
from scheduler_service.core.executor_plan import ExecutorPlan, Reason
from scheduler_service.core.plan import plan_executor
from scheduler_service.core.policy import Policy
from scheduler_service.core.state import (
    COLUMN_NAMES,
    NO_PREFIXES,
    CachedPrefixes,
    ExecutorLimits,
    ExecutorState,
    LatencyModel,
    Requests,
    Tenants,
)


class Planner(Protocol):
    """Plans a pass; the same state has the same plan. `is_core`: it need not be asked, as the core plans alike here."""

    is_core: bool

    def plan(self, snapshot: Snapshot, executor_id: str) -> Plan: ...


class CorePlanner:
    """The planning core itself, without protobuf between: arrays in, arrays out."""

    is_core = True

    def __init__(self, policy: Policy) -> None:
        self._policy = policy

    def plan(self, snapshot: Snapshot, executor_id: str) -> Plan:
        return engine_plan(plan_executor(core_state(snapshot, executor_id), self._policy))


def core_state(snapshot: Snapshot, executor_id: str) -> ExecutorState:
    """A snapshot as the planning core reads it."""
    matrix = np.empty((len(COLUMN_NAMES), snapshot.num_requests), dtype=np.int64)
    for row, name in enumerate(COLUMN_NAMES):
        matrix[row] = snapshot.columns[name]
    return ExecutorState(
        executor_id=executor_id,
        iteration=snapshot.iteration,
        now_us=snapshot.now_us,
        limits=_limits(snapshot.limits),
        num_free_blocks=snapshot.num_free_blocks,
        num_free_swap_blocks=snapshot.num_free_swap_blocks,
        latency=None if snapshot.latency is None else _model(snapshot.latency),
        requests=Requests(matrix),
        prefixes=NO_PREFIXES if snapshot.common_prefixes is None else _prefixes(snapshot.common_prefixes),
        tenants=Tenants(snapshot.tenants, np.ones(len(snapshot.tenants)), snapshot.tenant_service),
    )


@lru_cache(maxsize=16)  # of kinds of executors there are few
def _limits(limits: Limits) -> ExecutorLimits:
    return ExecutorLimits(
        max_num_batched_tokens=limits.max_num_batched_tokens,
        max_num_seqs=limits.max_num_seqs,
        block_size=limits.block_size,
        num_blocks=limits.num_blocks,
        num_swap_blocks=limits.num_swap_blocks,
        max_model_len=limits.max_model_len,
        max_num_waiting=limits.max_num_waiting,
    )


@lru_cache(maxsize=16)
def _model(latency: Latency) -> LatencyModel:
    return LatencyModel(
        pass_us=latency.pass_us,
        prefill_token_us=latency.prefill_token_us,
        decode_request_us=latency.decode_request_us,
        kv_token_us=latency.kv_token_us,
        swap_block_us=latency.swap_block_us,
        relative_error=latency.relative_error,
    )


def _prefixes(common: CommonPrefixes) -> CachedPrefixes:
    return CachedPrefixes(common.parent.astype(np.int64), common.num_free_blocks.astype(np.int64))


class RecordingPlanner(CorePlanner):
    """Plans, and keeps the states that it was asked about."""

    def __init__(self, policy: Policy) -> None:
        super().__init__(policy)
        self.asked: list[Snapshot] = []

    def plan(self, snapshot: Snapshot, executor_id: str) -> Plan:
        self.asked.append(snapshot)
        return super().plan(snapshot, executor_id)


class ServicePlanner:
    """A scheduler service, asked as an executor asks it. Raises MetronomeError where it does not answer."""

    is_core = False

    def __init__(self, client: SchedulerClient, policy: Policy) -> None:
        self._client = client
        self._policy = policy_message(policy)

    def plan(self, snapshot: Snapshot, executor_id: str) -> Plan:
        state = cluster_state(snapshot, executor_id=executor_id)
        request = scheduler_pb2.PlanRequest(state=state, policy=self._policy)
        return plan_from_response(self._client.plan(request), executor_id=executor_id)


def engine_plan(plan: ExecutorPlan) -> Plan:
    """A plan as the engine reads it."""
    rejections = zip(
        plan.reject.id.tolist(),
        plan.reject.reason.tolist(),
        plan.reject.needed.tolist(),
        plan.reject.available.tolist(),
        strict=True,
    )
    return Plan(
        iteration=plan.iteration,
        scheduled=plan.scheduled.id,
        num_tokens=plan.scheduled.num_tokens.astype(np.int32),
        admit=plan.admit.id,
        resume=plan.resume.id,
        evict=plan.evict.id,
        evict_modes=plan.evict.mode.astype(np.int32),
        reject=tuple(
            Rejection(id=id, detail="", reason=Reason(reason).name, needed=needed, available=available)
            for id, reason, needed, available in rejections
        ),
        predicted_us=plan.predicted_time_us,
        kv_residency_charge=plan.kv_residency_charge,
    )
