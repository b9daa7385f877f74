"""Plan messages to plans."""

from __future__ import annotations

import numpy as np

from executor_service.engine.plan import Plan, Rejection
from metronome.scheduler.v1 import plan_pb2 as pb
from metronome.scheduler.v1 import scheduler_pb2 as scheduler

MAX_KV_RESIDENCY_CHARGE = 1e6


class MalformedPlanError(ValueError):
    """The answer of a scheduler is not one plan for this executor."""


def plan_from_response(response: scheduler.PlanResponse, *, executor_id: str) -> Plan:
    """Raises MalformedPlanError. Whether the plan can be applied is for the engine to check."""
    if len(response.plans) != 1 or response.plans[0].executor_id != executor_id:
        planned = [plan.executor_id for plan in response.plans]
        raise MalformedPlanError(f"answered with plans for {planned}, asked for one for {executor_id!r}")
    plan = response.plans[0]
    return Plan(
        iteration=plan.iteration,
        scheduled=np.asarray(plan.scheduled.id, dtype=np.int64),
        num_tokens=np.asarray(plan.scheduled.num_tokens, dtype=np.int32),
        admit=np.asarray(plan.admit.id, dtype=np.int64),
        resume=np.asarray(plan.resume.id, dtype=np.int64),
        evict=np.asarray(plan.evict.id, dtype=np.int64),
        evict_modes=np.asarray(plan.evict.mode, dtype=np.int32),
        evict_reasons=np.asarray(plan.evict.reason, dtype=np.int32),
        shortfall_reason=_reason_name(plan.shortfall.reason) if plan.HasField("shortfall") else "",
        reject=_rejections(plan.reject),
        predicted_us=plan.predicted_time_us,
        kv_residency_charge=_charge(plan.kv_residency_charge),
    )


def _charge(kv_residency_charge: float) -> float:
    # Written so that NaN, which is above and below nothing, is refused too: it would stay in the books for ever.
    if not 0 <= kv_residency_charge <= MAX_KV_RESIDENCY_CHARGE:
        raise MalformedPlanError(f"answered with a charge of {kv_residency_charge} tokens for a block held")
    return kv_residency_charge


def _rejections(table: pb.RejectTable) -> tuple[Rejection, ...]:
    waits_us = table.estimated_wait_us or [0] * len(table.id)  # a column that schedulers may leave out
    columns = (table.id, table.reason, table.needed, table.available, waits_us)
    if len({len(column) for column in columns}) != 1:
        raise MalformedPlanError("answered with rejections in columns of unequal length")
    return tuple(
        Rejection(
            id=request_id,
            detail=f"{_reason_name(reason)}: needs {needed}, there are {available}",
            reason=_reason_name(reason),
            needed=needed,
            available=available,
            estimated_wait_us=wait_us,
        )
        for request_id, reason, needed, available, wait_us in zip(*columns, strict=True)
    )


def _reason_name(reason: int) -> str:
    known = pb.Reason.DESCRIPTOR.values_by_number.get(reason)
    return known.name.removeprefix("REASON_") if known else f"reason {reason}"
