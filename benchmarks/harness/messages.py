"""A state of the core as the message that an executor would send."""

from __future__ import annotations

from executor_service.convert.state import request_table
from metronome.scheduler.v1 import scheduler_pb2, state_pb2
from scheduler_service.core.state import COLUMN_NAMES, ExecutorState


def plan_request(executor: ExecutorState) -> scheduler_pb2.PlanRequest:
    """All columns are there, as in what the executor service sends; the policy is the service's own."""
    state = state_pb2.ClusterState(now_us=executor.now_us)
    for tenant in executor.tenants:
        state.tenants.name.append(tenant.name)
        state.tenants.weight.append(tenant.weight)
        state.tenants.service.append(tenant.service)
    message = state.executors.add(
        executor_id=executor.executor_id,
        iteration=executor.iteration,
        num_free_blocks=executor.num_free_blocks,
        num_free_swap_blocks=executor.num_free_swap_blocks,
        requests=request_table({name: getattr(executor.requests, name) for name in COLUMN_NAMES}),
    )
    for field, settings in (("limits", executor.limits), ("latency", executor.latency)):
        for name in settings.__slots__ if settings is not None else ():
            if (value := getattr(settings, name)) is not None:
                setattr(getattr(message, field), name, value)
    return scheduler_pb2.PlanRequest(state=state)
