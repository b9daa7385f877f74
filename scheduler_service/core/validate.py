"""Whether a state is one that can be planned: ranges, duplicates, and figures that contradict each other.

The first fault found is raised as a `StateError` with the path of the field, the row where there is one, and the value
there. All checks are over whole columns; a row is looked for only once something is wrong. What passes here can be
planned: no later step raises for anything that a caller sent.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from scheduler_service.core.errors import ErrorReason, StateError
from scheduler_service.core.state import (
    COLUMN_NAMES,
    BoolArray,
    ClusterState,
    ExecutorLimits,
    ExecutorState,
    IntArray,
    LatencyModel,
    Requests,
    RequestStatus,
    Tenant,
)

MAX_EXECUTOR_ID_BYTES = 256

# Least value of each column, in the order of the matrix; columns that take any value have none to check.
_ANY = np.iinfo(np.int64).min
_TAKE_ANY = ("status", "arrival_time_us", "priority", "next_block_hash")
_LEAST_OF_COLUMN = {"id": 1, "num_prompt_tokens": 1, **dict.fromkeys(_TAKE_ANY, _ANY)}
_LEAST = np.array([_LEAST_OF_COLUMN.get(name, 0) for name in COLUMN_NAMES], dtype=np.int64)


def validate(cluster: ClusterState, field: str = "state") -> None:
    """Raise StateError for the first thing in the state that the contract does not allow. `field`: its path."""
    if cluster.now_us <= 0:
        raise _missing_or_out_of_range(f"{field}.now_us", cluster.now_us)
    _validate_tenants(cluster.tenants, f"{field}.tenants")
    _refuse_duplicates([executor.executor_id for executor in cluster.executors], f"{field}.executors", ".executor_id")
    for index, executor in enumerate(cluster.executors):
        _validate_executor(executor, max(len(cluster.tenants), 1), f"{field}.executors[{index}]")


def _validate_executor(executor: ExecutorState, num_tenants: int, field: str) -> None:
    if not executor.executor_id:
        raise StateError(f"{field}.executor_id", ErrorReason.MISSING_FIELD, "is required")
    if len(executor.executor_id.encode()) > MAX_EXECUTOR_ID_BYTES:
        raise out_of_range(f"{field}.executor_id", executor.executor_id)
    if executor.iteration <= 0:
        raise _missing_or_out_of_range(f"{field}.iteration", executor.iteration)
    _validate_limits(executor.limits, f"{field}.limits")
    _check_share(f"{field}.num_free_blocks", executor.num_free_blocks, executor.limits.num_blocks)
    _check_share(f"{field}.num_free_swap_blocks", executor.num_free_swap_blocks, executor.limits.num_swap_blocks)
    if executor.latency is not None:
        _validate_latency(executor.latency, f"{field}.latency")
    if len(executor.requests) > 0:
        _validate_requests(executor, num_tenants, f"{field}.requests")
        _validate_totals(executor, field)


def _validate_limits(limits: ExecutorLimits, field: str) -> None:
    for name in ("max_num_batched_tokens", "max_num_seqs", "block_size", "num_blocks", "max_model_len"):
        value = getattr(limits, name)
        if value <= 0:
            raise _missing_or_out_of_range(f"{field}.{name}", value)
    if limits.num_swap_blocks < 0:
        raise out_of_range(f"{field}.num_swap_blocks", limits.num_swap_blocks)
    if limits.max_num_waiting is not None and limits.max_num_waiting < 0:
        raise out_of_range(f"{field}.max_num_waiting", limits.max_num_waiting)


def _validate_latency(latency: LatencyModel, field: str) -> None:
    for name in ("pass_us", "prefill_token_us", "decode_request_us", "kv_token_us", "swap_block_us", "relative_error"):
        value = getattr(latency, name)
        if not (math.isfinite(value) and value >= 0):
            raise out_of_range(f"{field}.{name}", value)


def _validate_tenants(tenants: tuple[Tenant, ...], field: str) -> None:
    for index, tenant in enumerate(tenants):
        if not (math.isfinite(tenant.weight) and tenant.weight > 0):
            raise out_of_range(f"{field}.weight[{index}]", tenant.weight)
        if not (math.isfinite(tenant.service) and tenant.service >= 0):
            raise out_of_range(f"{field}.service[{index}]", tenant.service)
    _refuse_duplicates([tenant.name for tenant in tenants], f"{field}.name", "")


def validate_to_place(requests: Requests, num_tenants: int, field: str) -> None:
    """Raise StateError for the first thing that is wrong with requests that no executor has yet."""
    if len(requests) > 0:
        _validate_rows(requests, num_tenants, field)
        elsewhere = ~requests.having(RequestStatus.WAITING)
        _refuse_rows(elsewhere, f"{field}.status", requests.status, ErrorReason.INCONSISTENT)


def _validate_rows(requests: Requests, num_tenants: int, field: str) -> None:
    status = requests.status
    unknown = (status < min(RequestStatus).value) | (status > max(RequestStatus).value)
    _refuse_rows(unknown, f"{field}.status", status, ErrorReason.UNKNOWN_VALUE)
    too_small = requests.matrix.min(axis=1) < _LEAST
    if too_small.any():
        column = int(too_small.argmax())
        values = requests.matrix[column]
        _refuse_rows(values < _LEAST[column], f"{field}.{COLUMN_NAMES[column]}", values, ErrorReason.OUT_OF_RANGE)
    _refuse_rows(requests.tenant >= num_tenants, f"{field}.tenant", requests.tenant, ErrorReason.OUT_OF_RANGE)
    _refuse_rows(
        requests.num_computed_tokens >= requests.num_tokens,
        f"{field}.num_computed_tokens",
        requests.num_computed_tokens,
        ErrorReason.INCONSISTENT,
    )
    _refuse_duplicate_ids(requests.id, field)


def _validate_requests(executor: ExecutorState, num_tenants: int, field: str) -> None:
    requests, limits = executor.requests, executor.limits
    _validate_rows(requests, num_tenants, field)
    swapped = requests.having(RequestStatus.SWAPPED)
    room = np.where(swapped, limits.num_swap_blocks, limits.num_blocks)
    stored = requests.num_blocks * limits.block_size
    for wrong, column_name in (
        (requests.num_blocks > room, "num_blocks"),
        (requests.num_shared_blocks > requests.num_blocks, "num_shared_blocks"),
        (requests.num_computed_tokens > stored, "num_blocks"),
    ):
        values = requests.matrix[COLUMN_NAMES.index(column_name)]
        _refuse_rows(wrong, f"{field}.{column_name}", values, ErrorReason.INCONSISTENT)


def _validate_totals(executor: ExecutorState, field: str) -> None:
    requests, limits = executor.requests, executor.limits
    on_device = requests.having(RequestStatus.RUNNING) | requests.having(RequestStatus.LOADING)
    num_on_device = int(on_device.sum())
    if num_on_device > limits.max_num_seqs:
        raise _inconsistent(f"{field}.limits.max_num_seqs", limits.max_num_seqs, f"{num_on_device} requests run")
    held = int(((requests.num_blocks - requests.num_shared_blocks) * on_device).sum())
    if held + executor.num_free_blocks > limits.num_blocks:
        raise _inconsistent(
            f"{field}.num_free_blocks", executor.num_free_blocks, f"requests hold {held} of {limits.num_blocks} blocks"
        )
    swapped = int((requests.num_blocks * requests.having(RequestStatus.SWAPPED)).sum())
    if swapped + executor.num_free_swap_blocks > limits.num_swap_blocks:
        raise _inconsistent(
            f"{field}.num_free_swap_blocks",
            executor.num_free_swap_blocks,
            f"requests hold {swapped} of {limits.num_swap_blocks} swap blocks",
        )


def _refuse_rows(wrong: BoolArray, field: str, values: IntArray, reason: ErrorReason) -> None:
    if wrong.any():
        row = int(wrong.argmax())
        value = str(values[row])
        raise StateError(f"{field}[{row}]", reason, f"{value} {_WORDS[reason]}", {"value": value})


def _refuse_duplicate_ids(ids: IntArray, field: str) -> None:
    ascending = np.sort(ids)
    again = ascending[1:][ascending[1:] == ascending[:-1]]
    if len(again) > 0:
        row = int(np.flatnonzero(np.isin(ids, again))[1])
        value = str(ids[row])
        raise StateError(f"{field}.id[{row}]", ErrorReason.DUPLICATE, f"{value} stands twice", {"value": value})


def _refuse_duplicates(names: Sequence[str], field: str, suffix: str) -> None:
    seen: set[str] = set()
    for index, name in enumerate(names):
        if name in seen:
            raise StateError(
                f"{field}[{index}]{suffix}", ErrorReason.DUPLICATE, f"{name!r} stands twice", {"value": name}
            )
        seen.add(name)


_WORDS = {
    ErrorReason.OUT_OF_RANGE: "is out of range",
    ErrorReason.INCONSISTENT: "contradicts the rest of the row",
    ErrorReason.UNKNOWN_VALUE: "is no known value",
}


def out_of_range(field: str, value: object) -> StateError:
    """The error for a number that is not in its range."""
    return StateError(field, ErrorReason.OUT_OF_RANGE, f"{value} is out of range", {"value": str(value)})


def _missing_or_out_of_range(field: str, value: int) -> StateError:
    """Zero is what a number that was not sent reads as."""
    if value == 0:
        return StateError(field, ErrorReason.MISSING_FIELD, "is required and not 0")
    return out_of_range(field, value)


def _inconsistent(field: str, value: int, why: str) -> StateError:
    return StateError(field, ErrorReason.INCONSISTENT, f"{value} contradicts the state: {why}", {"value": str(value)})


def _check_share(field: str, value: int, total: int) -> None:
    if not 0 <= value <= total:
        raise out_of_range(field, value)
