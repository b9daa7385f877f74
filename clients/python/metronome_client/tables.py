"""States from NumPy arrays or plain lists, and plans as plain values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from metronome.scheduler.v1 import plan_pb2, state_pb2

_STATUS = "REQUEST_STATUS_"


def request_table(**columns: Iterable[Any]) -> state_pb2.RequestTable:
    """Write a table of requests: each column a list, tuple or NumPy array by its name in the contract.

    `status` takes names without their prefix ("RUNNING") as well as numbers. Columns that are left out are 0 in every
    row. Raises TypeError for a column that the contract does not have, and ValueError for values that a column cannot
    hold.
    """
    table = state_pb2.RequestTable()
    for name, values in columns.items():
        if name not in state_pb2.RequestTable.DESCRIPTOR.fields_by_name:
            raise TypeError(f"a request table has no column {name!r}")
        listed = values.tolist() if hasattr(values, "tolist") else list(values)
        if name == "status":
            listed = [state_pb2.RequestStatus.Value(_STATUS + v) if isinstance(v, str) else v for v in listed]
        getattr(table, name).extend(listed)
    return table


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """A plan for one pass of one executor, by request id.

    `scheduled`: tokens to run; `evict`: "SWAP" or "RECOMPUTE"; `reject` and `reasons`: names of the contract's `Reason`
    without their prefix; a value that this client does not know is its number.
    """

    executor_id: str
    iteration: int
    scheduled: Mapping[int, int]
    admit: tuple[int, ...]
    resume: tuple[int, ...]
    evict: Mapping[int, str]
    reject: Mapping[int, str]
    reasons: Mapping[int, str]


def decision(plan: plan_pb2.ExecutorPlan) -> Decision:
    """Read a plan. `reasons` has one for every request where the plan was asked for with `explain`."""
    reasons = {
        id: _name(plan_pb2.Reason.DESCRIPTOR, reason, "REASON_")
        for table in (plan.scheduled, plan.evict, plan.reject, plan.admit, plan.resume, plan.explanations)
        for id, reason in zip(table.id, table.reason, strict=False)
    }
    modes = [_name(plan_pb2.EvictMode.DESCRIPTOR, mode, "EVICT_MODE_") for mode in plan.evict.mode]
    return Decision(
        executor_id=plan.executor_id,
        iteration=plan.iteration,
        scheduled=dict(zip(plan.scheduled.id, plan.scheduled.num_tokens, strict=True)),
        admit=tuple(plan.admit.id),
        resume=tuple(plan.resume.id),
        evict=dict(zip(plan.evict.id, modes, strict=True)),
        reject={id: reasons[id] for id in plan.reject.id},
        reasons=reasons,
    )


def _name(enum: Any, number: int, prefix: str) -> str:
    known = enum.values_by_number.get(number)
    return known.name.removeprefix(prefix) if known is not None else str(number)
