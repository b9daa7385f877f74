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

# Least value of each column that does not take any.
_LEAST = dict.fromkeys(COLUMN_NAMES, 0) | {"id": 1, "num_prompt_tokens": 1}
for _takes_any in ("status", "arrival_time_us", "priority", "next_block_hash"):
    del _LEAST[_takes_any]
_LEAST_STATUS, _GREATEST_STATUS = min(RequestStatus).value, max(RequestStatus).value

_POSITIVE_LIMITS = ("max_num_batched_tokens", "max_num_seqs", "block_size", "num_blocks", "max_model_len")
_TIMES = ("pass_us", "prefill_token_us", "decode_request_us", "kv_token_us", "swap_block_us", "relative_error")


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
    _validate_limits(executor.limits, field)
    if not 0 <= executor.num_free_blocks <= executor.limits.num_blocks:
        raise out_of_range(f"{field}.num_free_blocks", executor.num_free_blocks)
    if not 0 <= executor.num_free_swap_blocks <= executor.limits.num_swap_blocks:
        raise out_of_range(f"{field}.num_free_swap_blocks", executor.num_free_swap_blocks)
    if executor.latency is not None:
        _validate_latency(executor.latency, field)
    if len(executor.requests) > 0:
        _validate_rows(executor.requests, num_tenants, f"{field}.requests")
        _validate_blocks(executor, f"{field}.requests")
        _validate_totals(executor, field)


def _validate_limits(limits: ExecutorLimits, field: str) -> None:
    for name in _POSITIVE_LIMITS:
        value = getattr(limits, name)
        if value <= 0:
            raise _missing_or_out_of_range(f"{field}.limits.{name}", value)
    if limits.num_swap_blocks < 0:
        raise out_of_range(f"{field}.limits.num_swap_blocks", limits.num_swap_blocks)
    if limits.max_num_waiting is not None and limits.max_num_waiting < 0:
        raise out_of_range(f"{field}.limits.max_num_waiting", limits.max_num_waiting)


def _validate_latency(latency: LatencyModel, field: str) -> None:
    for name in _TIMES:
        value = getattr(latency, name)
        if not 0 <= value < math.inf:
            raise out_of_range(f"{field}.latency.{name}", value)


def _validate_tenants(tenants: tuple[Tenant, ...], field: str) -> None:
    for index, tenant in enumerate(tenants):
        if not 0 < tenant.weight < math.inf:
            raise out_of_range(f"{field}.weight[{index}]", tenant.weight)
        if not 0 <= tenant.service < math.inf:
            raise out_of_range(f"{field}.service[{index}]", tenant.service)
    _refuse_duplicates([tenant.name for tenant in tenants], f"{field}.name", "")


def validate_to_place(requests: Requests, num_tenants: int, field: str) -> None:
    """Raise StateError for the first thing that is wrong with requests that no executor has yet."""
    if len(requests) > 0:
        _validate_rows(requests, num_tenants, field)
        elsewhere = ~requests.having(RequestStatus.WAITING)
        _refuse_rows(elsewhere, f"{field}.status", requests.status, ErrorReason.INCONSISTENT)


def _validate_rows(requests: Requests, num_tenants: int, field: str) -> None:
    """What each row must be, wherever it stands. The extremes of a column tell whether there is a row to look for."""
    least, greatest, status = requests.least, requests.greatest, requests.status
    if least["status"] < _LEAST_STATUS or greatest["status"] > _GREATEST_STATUS:
        unknown = (status < _LEAST_STATUS) | (status > _GREATEST_STATUS)
        _refuse_rows(unknown, f"{field}.status", status, ErrorReason.UNKNOWN_VALUE)
    for name, bound in _LEAST.items():
        if least[name] < bound:
            values = requests.matrix[COLUMN_NAMES.index(name)]
            _refuse_rows(values < bound, f"{field}.{name}", values, ErrorReason.OUT_OF_RANGE)
    if greatest["tenant"] >= num_tenants:
        _refuse_rows(requests.tenant >= num_tenants, f"{field}.tenant", requests.tenant, ErrorReason.OUT_OF_RANGE)
    lacks_nothing = requests.num_lacking_tokens < 1
    _refuse_rows(lacks_nothing, f"{field}.num_computed_tokens", requests.num_computed_tokens, ErrorReason.INCONSISTENT)
    _refuse_duplicate_ids(requests.id, field)


def _validate_blocks(executor: ExecutorState, field: str) -> None:
    """That each row holds the blocks for what it has computed, and no more than there are."""
    requests, limits = executor.requests, executor.limits
    num_blocks, shared = requests.num_blocks, requests.num_shared_blocks
    if requests.anyone_swapped or requests.greatest["num_blocks"] > limits.num_blocks:
        room = np.where(requests.having(RequestStatus.SWAPPED), limits.num_swap_blocks, limits.num_blocks)
        _refuse_rows(num_blocks > room, f"{field}.num_blocks", num_blocks, ErrorReason.INCONSISTENT)
    if requests.greatest["num_shared_blocks"] > 0:
        _refuse_rows(shared > num_blocks, f"{field}.num_shared_blocks", shared, ErrorReason.INCONSISTENT)
    lacks_block = requests.num_computed_tokens > num_blocks * limits.block_size
    _refuse_rows(lacks_block, f"{field}.num_blocks", num_blocks, ErrorReason.INCONSISTENT)


def _validate_totals(executor: ExecutorState, field: str) -> None:
    requests, limits = executor.requests, executor.limits
    on_device = requests.on_device
    if len(on_device) > limits.max_num_seqs:
        raise _inconsistent(f"{field}.limits.max_num_seqs", limits.max_num_seqs, f"{len(on_device)} requests run")
    held = int((on_device.num_blocks - on_device.num_shared_blocks).sum())
    if held + executor.num_free_blocks > limits.num_blocks:
        raise _inconsistent(
            f"{field}.num_free_blocks", executor.num_free_blocks, f"requests hold {held} of {limits.num_blocks} blocks"
        )
    if not requests.anyone_swapped:
        return
    swapped = int(requests.num_blocks.dot(requests.having(RequestStatus.SWAPPED)))
    if swapped + executor.num_free_swap_blocks > limits.num_swap_blocks:
        raise _inconsistent(
            f"{field}.num_free_swap_blocks",
            executor.num_free_swap_blocks,
            f"requests hold {swapped} of {limits.num_swap_blocks} swap blocks",
        )


def _refuse_rows(wrong: BoolArray, field: str, values: IntArray, reason: ErrorReason) -> None:
    if np.count_nonzero(wrong) > 0:
        row = int(wrong.argmax())
        value = str(values[row])
        raise StateError(f"{field}[{row}]", reason, f"{value} {_WORDS[reason]}", {"value": value})


def _refuse_duplicate_ids(ids: IntArray, field: str) -> None:
    ascending = np.sort(ids)
    again = ascending[1:] == ascending[:-1]
    if np.count_nonzero(again) > 0:
        row = int(np.flatnonzero(np.isin(ids, ascending[1:][again]))[1])
        value = str(ids[row])
        raise StateError(f"{field}.id[{row}]", ErrorReason.DUPLICATE, f"{value} stands twice", {"value": value})


def _refuse_duplicates(names: Sequence[str], field: str, suffix: str) -> None:
    if len({*names}) == len(names):
        return
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
