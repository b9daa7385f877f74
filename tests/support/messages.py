"""The core's states and policies as messages: the way that an executor goes."""

from __future__ import annotations

from metronome.scheduler.v1 import scheduler_pb2, state_pb2
from scheduler_service.convert import policy_message
from scheduler_service.core.policy import Policy
from scheduler_service.core.state import COLUMN_NAMES, ExecutorState

_LIMITS = tuple(field.name for field in state_pb2.ExecutorLimits.DESCRIPTOR.fields)
_LATENCY = tuple(field.name for field in state_pb2.LatencyModel.DESCRIPTOR.fields)


def request_of(executor: ExecutorState, policy: Policy, *, explain: bool = False) -> scheduler_pb2.PlanRequest:
    """Asks for the plan of one executor."""
    tenants = state_pb2.TenantTable(
        name=[tenant.name for tenant in executor.tenants],
        weight=[tenant.weight for tenant in executor.tenants],
        service=[tenant.service for tenant in executor.tenants],
    )
    state = state_pb2.ClusterState(now_us=executor.now_us, executors=[executor_message(executor)], tenants=tenants)
    return scheduler_pb2.PlanRequest(state=state, policy=policy_message(policy), explain=explain)


def executor_message(executor: ExecutorState) -> state_pb2.ExecutorState:
    """The state of one executor; all columns are sent."""
    limits = {name: getattr(executor.limits, name) for name in _LIMITS}
    message = state_pb2.ExecutorState(
        executor_id=executor.executor_id,
        iteration=executor.iteration,
        limits=state_pb2.ExecutorLimits(**{name: value for name, value in limits.items() if value is not None}),
        num_free_blocks=executor.num_free_blocks,
        num_free_swap_blocks=executor.num_free_swap_blocks,
        draining=executor.draining,
    )
    if executor.latency is not None:
        message.latency.CopyFrom(state_pb2.LatencyModel(**{name: getattr(executor.latency, name) for name in _LATENCY}))
    if len(executor.prefixes) > 0:
        message.cached_prefixes.parent.extend(executor.prefixes.parent.tolist())
        message.cached_prefixes.num_free_blocks.extend(executor.prefixes.num_free_blocks.tolist())
    for name in COLUMN_NAMES:
        getattr(message.requests, name).extend(getattr(executor.requests, name).tolist())
    return message
