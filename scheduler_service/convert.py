"""Protobuf in, columns out, and back. The only module that knows both the contract and the core.

Names and enum numbers are the same on both sides, so most of it is written once for all fields. A column that is left
out is 0 in every row; one that has not the length of `id` is refused, and so is an enum value that nobody knows. What
the figures mean is not looked at here: that is `core/validate.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import IntEnum
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from metronome.scheduler.v1 import plan_pb2, policy_pb2, scheduler_pb2, state_pb2
from scheduler_service.columns import TableLayout
from scheduler_service.core.errors import ErrorReason, PolicyError, StateError
from scheduler_service.core.executor_plan import (
    Evictions,
    EvictMode,
    ExecutorPlan,
    Rejections,
    Scheduled,
    Transitions,
)
from scheduler_service.core.placement import Assignment, Placement
from scheduler_service.core.policy import (
    Admission,
    BatchComposition,
    Eviction,
    HeadOfLine,
    Ordering,
    Policy,
    Preemption,
    PrefillSharing,
    Victim,
)
from scheduler_service.core.state import (
    COLUMN_NAMES,
    NO_PREFIXES,
    CachedPrefixes,
    ClusterState,
    ExecutorLimits,
    ExecutorState,
    FloatArray,
    IntArray,
    LatencyModel,
    Requests,
    Tenants,
)
from scheduler_service.core.validate import out_of_range
from scheduler_service.core.verify import Violation

POLICY_ENUMS: dict[str, type[IntEnum]] = {
    "ordering": Ordering,
    "ordering_within_tenant": Ordering,
    "admission": Admission,
    "preemption": Preemption,
    "victim": Victim,
    "eviction": Eviction,
    "prefill_sharing": PrefillSharing,
    "batch_composition": BatchComposition,
    "head_of_line": HeadOfLine,
}

_REQUIRED_COLUMNS = ("id", "status", "num_prompt_tokens")
_REQUIRED_ROWS = tuple(map(COLUMN_NAMES.index, _REQUIRED_COLUMNS))
_REQUEST_TABLE = TableLayout(state_pb2.RequestTable)
_PLAN_TABLES = {
    "scheduled": TableLayout(plan_pb2.ScheduledTable),
    "admit": TableLayout(plan_pb2.TransitionTable),
    "resume": TableLayout(plan_pb2.TransitionTable),
    "evict": TableLayout(plan_pb2.EvictTable),
    "reject": TableLayout(plan_pb2.RejectTable),
}
_EXPLANATION_TABLE = TableLayout(plan_pb2.ExplanationTable)
_LATENCY_FIELDS = tuple(field.name for field in state_pb2.LatencyModel.DESCRIPTOR.fields)
_LIMIT_FIELDS = tuple(field.name for field in state_pb2.ExecutorLimits.DESCRIPTOR.fields)

_Table = TypeVar("_Table", Scheduled, Transitions, Evictions, Rejections)


def cluster_from(message: state_pb2.ClusterState, field: str) -> ClusterState:
    """The state in a message. `field`: its path, for errors. Raises StateError."""
    now_us, tenants = message.now_us, _tenants_from(message.tenants, f"{field}.tenants")
    executors = tuple(
        _executor_from(executor, now_us, tenants, f"{field}.executors[{i}]")
        for i, executor in enumerate(message.executors)
    )
    return ClusterState(now_us=now_us, executors=executors, tenants=tenants)


def _executor_from(message: state_pb2.ExecutorState, now_us: int, tenants: Tenants, field: str) -> ExecutorState:
    if not message.HasField("limits"):
        raise _missing(f"{field}.limits")
    limits = {name: getattr(message.limits, name) for name in _LIMIT_FIELDS}
    if not message.limits.HasField("max_num_waiting"):
        limits["max_num_waiting"] = None
    latency = None
    if message.HasField("latency"):
        latency = LatencyModel(**{name: getattr(message.latency, name) for name in _LATENCY_FIELDS})
    return ExecutorState(
        executor_id=message.executor_id,
        iteration=message.iteration,
        now_us=now_us,
        limits=ExecutorLimits(**limits),
        num_free_blocks=message.num_free_blocks,
        num_free_swap_blocks=message.num_free_swap_blocks,
        latency=latency,
        requests=requests_from(message.requests, f"{field}.requests"),
        prefixes=_prefixes_from(message.cached_prefixes, f"{field}.cached_prefixes")
        if message.HasField("cached_prefixes")
        else NO_PREFIXES,
        tenants=tenants,
        draining=message.draining,
    )


def requests_from(message: state_pb2.RequestTable, field: str) -> Requests:
    """The columns of a request table. Raises StateError for a column that is missing or of another length than `id`."""
    num_rows = len(message.id)
    columns = _REQUEST_TABLE.views(message, num_rows)
    if columns is None or any(columns[row] is None for row in _REQUIRED_ROWS):
        columns = _columns_of(message, COLUMN_NAMES, _REQUIRED_COLUMNS, field)
    absent = np.zeros(num_rows, dtype=np.int64)
    present = [absent if column is None else column for column in columns]
    # One copy of all columns rather than one of each.
    requests = Requests(np.concatenate(present, dtype=np.int64).reshape(len(present), num_rows))
    # The contract lets a prompt be cached whole. Its last token is computed again all the same: the next one is sampled
    # from it. So to the core such a request has all but that token.
    cached_whole = requests.num_computed_tokens == requests.num_prompt_tokens
    if np.count_nonzero(cached_whole) > 0:
        requests.num_computed_tokens[cached_whole & (requests.num_output_tokens == 0)] -= 1
    return requests


def _prefixes_from(message: state_pb2.CachedPrefixTable, field: str) -> CachedPrefixes:
    num_free_blocks, parent = np.asarray(message.num_free_blocks), np.asarray(message.parent)
    if len(parent) == 0:
        parent = np.zeros(len(num_free_blocks))
    if len(parent) != len(num_free_blocks):
        lengths = {"length": str(len(parent)), "expected": str(len(num_free_blocks))}
        description = f"has {len(parent)} rows, and num_free_blocks has {len(num_free_blocks)}"
        raise StateError(f"{field}.parent", ErrorReason.COLUMN_LENGTH, description, lengths)
    return CachedPrefixes(parent.astype(np.int64), num_free_blocks.astype(np.int64))


def _columns_of(message: Any, names: Sequence[str], required: Sequence[str], field: str) -> list[NDArray[Any] | None]:
    """The columns of a table, `id` first and None for one that is left out, checked for their lengths."""
    columns = [np.asarray(column) if len(column := getattr(message, name)) > 0 else None for name in names]
    if all(column is None for column in columns):
        return columns
    for name in required:
        if columns[names.index(name)] is None:
            raise _missing(f"{field}.{name}")
    for name, column in zip(names, columns, strict=True):
        if column is not None and len(column) != len(message.id):
            lengths = {"length": str(len(column)), "expected": str(len(message.id))}
            description = f"has {len(column)} rows, and id has {len(message.id)}"
            raise StateError(f"{field}.{name}", ErrorReason.COLUMN_LENGTH, description, lengths)
    return columns


def _tenants_from(message: state_pb2.TenantTable, field: str) -> Tenants:
    names = tuple(message.name)
    columns: list[FloatArray] = []
    for name, absent in (("weight", 1.0), ("service", 0.0)):
        column = np.array(getattr(message, name), dtype=np.float64)
        if len(column) == 0:
            column = np.full(len(names), absent)
        if len(column) != len(names):
            lengths = {"length": str(len(column)), "expected": str(len(names))}
            description = f"has {len(column)} rows, and name has {len(names)}"
            raise StateError(f"{field}.{name}", ErrorReason.COLUMN_LENGTH, description, lengths)
        columns.append(column)
    return Tenants(names, *columns)


def placement_from(request: scheduler_pb2.PlaceRequest) -> Placement:
    """How to place; LEAST_LOADED where the request does not say. Raises StateError for an unknown value."""
    try:
        return Placement(request.placement) if request.placement else Placement.LEAST_LOADED
    except ValueError:
        metadata = {"value": str(request.placement)}
        description = f"{request.placement} is no known value"
        raise StateError("placement", ErrorReason.UNKNOWN_VALUE, description, metadata) from None


def num_cached_tokens_from(request: scheduler_pb2.PlaceRequest, num_executors: int) -> IntArray:
    """Cached prefix tokens: [num_requests, num_executors]. Raises StateError for another number of figures."""
    shape = (len(request.requests.id), num_executors)
    if len(request.num_cached_tokens) == 0:
        return np.zeros(shape, dtype=np.int64)
    given = np.asarray(request.num_cached_tokens, dtype=np.int64)
    if len(given) != shape[0] * shape[1]:
        lengths = {"length": str(len(given)), "expected": str(shape[0] * shape[1])}
        description = f"has {len(given)} figures, and there are {shape[0]} requests and {shape[1]} executors"
        raise StateError("num_cached_tokens", ErrorReason.COLUMN_LENGTH, description, lengths)
    if (given < 0).any():
        row = int((given < 0).argmax())
        raise out_of_range(f"num_cached_tokens[{row}]", int(given[row]))
    return given.reshape(shape)


def assignment_messages(assignments: Iterable[Assignment]) -> list[scheduler_pb2.Assignment]:
    """The messages of where requests go."""
    return [
        scheduler_pb2.Assignment(
            id=assignment.id,
            executor_id=assignment.executor_id,
            reason=0 if assignment.reason is None else assignment.reason.value,  # type: ignore[arg-type]
            estimated_wait_us=assignment.estimated_wait_us,
        )
        for assignment in assignments
    ]


def policy_from(message: policy_pb2.Policy, field: str) -> Policy:
    """The policy in a message; what it leaves out has the default. Raises PolicyError for an unknown enum value."""
    settings: dict[str, Any] = {}
    for setting, value in message.ListFields():
        enum = POLICY_ENUMS.get(setting.name)
        settings[setting.name] = value if enum is None else _choice(enum, value, f"{field}.{setting.name}")
    return Policy(**settings)


def _choice(enum: type[IntEnum], number: int, field: str) -> IntEnum:
    try:
        return enum(number)
    except ValueError:
        metadata = {"value": str(number)}
        raise PolicyError(field, ErrorReason.UNKNOWN_VALUE, f"{number} is no known value", metadata) from None


def policy_message(policy: Policy) -> policy_pb2.Policy:
    """The message of a policy, every setting given that is not unbounded."""
    settings = {field.name: getattr(policy, field.name) for field in policy_pb2.Policy.DESCRIPTOR.fields}
    return policy_pb2.Policy(**{name: value for name, value in settings.items() if value is not None})


def plan_message(plan: ExecutorPlan) -> plan_pb2.ExecutorPlan:
    """The message of a plan."""
    composition = plan.composition
    message = plan_pb2.ExecutorPlan(
        executor_id=plan.executor_id,
        iteration=plan.iteration,
        composition=plan_pb2.PassComposition(
            num_prefill_tokens=composition.num_prefill_tokens,
            num_decode_tokens=composition.num_decode_tokens,
            num_prefill_requests=composition.num_prefill_requests,
            num_decode_requests=composition.num_decode_requests,
        ),
        predicted_time_us=plan.predicted_time_us,
        digest=plan.digest,
        kv_residency_charge=plan.kv_residency_charge,
    )
    for name, layout in _PLAN_TABLES.items():
        table = getattr(plan, name)
        if len(table.id) > 0:
            layout.fill(getattr(message, name), table)
    if plan.shortfall is not None:
        message.shortfall.id = plan.shortfall.id
        message.shortfall.reason = plan.shortfall.reason.value  # type: ignore[assignment]
        message.shortfall.needed = plan.shortfall.needed
        message.shortfall.available = plan.shortfall.available
    if plan.explanations is not None:
        message.explanations.SetInParent()
        _EXPLANATION_TABLE.fill(message.explanations, plan.explanations)
    return message


def plan_from(message: plan_pb2.ExecutorPlan, field: str) -> ExecutorPlan:
    """The lists of a plan to verify. Raises StateError for columns of unequal length and for unknown modes."""
    evict = _table_from(Evictions, message.evict, ("id", "mode"), f"{field}.evict")
    modes = [mode.value for mode in EvictMode]
    for row, mode in enumerate(evict.mode.tolist()):
        if mode not in modes:
            raise StateError(
                f"{field}.evict.mode[{row}]", ErrorReason.UNKNOWN_VALUE, f"{mode} is no mode", {"value": str(mode)}
            )
    return ExecutorPlan(
        executor_id=message.executor_id,
        iteration=message.iteration,
        scheduled=_table_from(Scheduled, message.scheduled, ("id", "num_tokens"), f"{field}.scheduled"),
        admit=_table_from(Transitions, message.admit, ("id",), f"{field}.admit"),
        resume=_table_from(Transitions, message.resume, ("id",), f"{field}.resume"),
        evict=evict,
        reject=_table_from(Rejections, message.reject, ("id",), f"{field}.reject"),
        digest=message.digest,
        kv_residency_charge=message.kv_residency_charge,
    )


def _table_from(table: type[_Table], message: Any, required: Sequence[str], field: str) -> _Table:
    names = table.__slots__
    columns = _columns_of(message, names, required, field)
    absent = np.zeros(len(message.id), dtype=np.int64)
    return table(
        **{
            name: absent if column is None else column.astype(np.int64)
            for name, column in zip(names, columns, strict=True)
        }
    )


def violation_messages(violations: Iterable[Violation]) -> list[scheduler_pb2.Violation]:
    """The messages of what is broken."""
    return [
        scheduler_pb2.Violation(
            executor_id=violation.executor_id,
            invariant=violation.invariant.value,  # type: ignore[arg-type]
            ids=violation.ids,
            description=violation.description,
        )
        for violation in violations
    ]


def _missing(field: str) -> StateError:
    return StateError(field, ErrorReason.MISSING_FIELD, "is required")
