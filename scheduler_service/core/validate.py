"""Whether a state is one that can be planned: ranges, duplicates, and figures that contradict each other.

The first fault found is raised as a `StateError` with the path of the field, the row where there is one, and the value
there: field by field as `_Check` lists them, and of one field the first row. What passes here can be planned: no later
step raises for anything that a caller sent.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from enum import IntEnum
from typing import NamedTuple

import numpy as np

from scheduler_service.core import case as columns
from scheduler_service.core.cached_prefixes import MAX_DEPTH
from scheduler_service.core.compiled import compiled, entry, rule
from scheduler_service.core.errors import ErrorReason, StateError
from scheduler_service.core.rows import zeros
from scheduler_service.core.sorting import places_in_order
from scheduler_service.core.state import (
    COLUMN_NAMES,
    NO_ROWS,
    ClusterState,
    ExecutorLimits,
    ExecutorState,
    FloatArray,
    IntArray,
    LatencyModel,
    Requests,
    RequestStatus,
    Tenants,
)

MAX_EXECUTOR_ID_BYTES = 256

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
    num_reused = _validate_prefixes(executor, field) if len(executor.prefixes) > 0 else NO_ROWS
    if len(executor.requests) > 0:
        limits, matrix = executor.limits, executor.requests.matrix
        table = examine(matrix, num_reused, num_tenants, limits.block_size, limits.num_blocks, limits.num_swap_blocks)
        _refuse_fault(table.fault, executor.requests, f"{field}.requests")
        _validate_totals(table, executor, field)


def _validate_limits(limits: ExecutorLimits, field: str) -> None:
    for name in _POSITIVE_LIMITS:
        value = getattr(limits, name)
        if value <= 0:
            raise _missing_or_out_of_range(f"{field}.limits.{name}", value)
    if limits.num_swap_blocks < 0:
        raise out_of_range(f"{field}.limits.num_swap_blocks", limits.num_swap_blocks)
    if limits.max_num_waiting is not None and limits.max_num_waiting < 0:
        raise out_of_range(f"{field}.limits.max_num_waiting", limits.max_num_waiting)


def _validate_prefixes(executor: ExecutorState, field: str) -> IntArray:
    """Free blocks of each cached prefix and of those that it continues: [num_prefixes]."""
    prefixes, field = executor.prefixes, f"{field}.cached_prefixes"
    name, row, num_blocks = examine_prefixes(prefixes.parent, prefixes.num_free_blocks)
    if row >= 0:
        column = ("parent", "num_free_blocks")[name]
        raise out_of_range(f"{field}.{column}[{row}]", int(getattr(prefixes, column)[row]))
    num_all, num_free = int(prefixes.num_free_blocks.sum()), executor.num_free_blocks
    if num_all > num_free:
        raise _inconsistent(f"{field}.num_free_blocks", num_all, f"{num_free} blocks are free")
    return num_blocks


@entry
def examine_prefixes(parent: IntArray, num_free_blocks: IntArray) -> tuple[int, int, IntArray]:
    """The column (0, 1) and row of what is wrong first, row -1 if nothing is; and the blocks of each with its parents'.

    A parent must stand before, and not too deep already.
    """
    depth, num_blocks = zeros(len(parent)), num_free_blocks.copy()
    for row in range(len(parent)):
        before = parent[row] - 1
        if before >= row or before < -1:
            return 0, row, num_blocks
        if before >= 0:
            depth[row] = depth[before] + 1
            if depth[row] >= MAX_DEPTH:
                return 0, row, num_blocks
            num_blocks[row] += num_blocks[before]
        if num_free_blocks[row] < 0:
            return 1, row, num_blocks
    return 0, -1, num_blocks


def _validate_latency(latency: LatencyModel, field: str) -> None:
    for name in _TIMES:
        value = getattr(latency, name)
        if not 0 <= value < math.inf:
            raise out_of_range(f"{field}.latency.{name}", value)


def _validate_tenants(tenants: Tenants, field: str) -> None:
    for name, row in zip(("weight", "service"), examine_tenants(tenants.weight, tenants.service), strict=True):
        if row >= 0:
            raise out_of_range(f"{field}.{name}[{row}]", float(getattr(tenants, name)[row]))
    _refuse_duplicates(tenants.names, f"{field}.name", "")


@entry
def examine_tenants(weight: FloatArray, service: FloatArray) -> tuple[int, int]:
    """The first row whose weight is not above 0 and finite, and the first whose service is negative or not finite.

    -1: none.
    """
    wrong_weight, wrong_service = -1, -1
    for row in range(len(weight) - 1, -1, -1):
        if not 0 < weight[row] < math.inf:
            wrong_weight = row
        if not 0 <= service[row] < math.inf:
            wrong_service = row
    return wrong_weight, wrong_service


def validate_to_place(requests: Requests, num_tenants: int, field: str) -> None:
    """Raise StateError for the first thing that is wrong with requests that no executor has yet."""
    if len(requests) == 0:
        return
    most = columns.UNBOUNDED
    fault = examine(requests.matrix, NO_ROWS, num_tenants, 1, most, most).fault
    # What is on no executor holds no blocks of one.
    if fault.check < _Check.MORE_BLOCKS_THAN_THERE_ARE:
        _refuse_fault(fault, requests, field)
    elsewhere = requests.status != RequestStatus.WAITING.value
    if elsewhere.any():
        row = int(elsewhere.argmax())
        value = str(requests.status[row])
        description = f"{value} {_WORDS[ErrorReason.INCONSISTENT]}"
        raise StateError(f"{field}.status[{row}]", ErrorReason.INCONSISTENT, description, {"value": value})


class _Check(IntEnum):
    """What each row is checked for, in this order; a column that may not be negative comes in the order of columns."""

    UNKNOWN_STATUS = 0
    COLUMN_TOO_SMALL = 1  # and on, by column
    UNKNOWN_TENANT = 30
    LACKS_NOTHING = 31
    DUPLICATE_ID = 32
    MORE_BLOCKS_THAN_THERE_ARE = 33
    MORE_SHARED_THAN_BLOCKS = 34
    LACKS_BLOCK = 35
    UNKNOWN_PREFIX = 36
    REUSES_MORE_THAN_IS_FREE = 37
    NONE = 99


class Fault(NamedTuple):
    """The first check that a row fails, and which row."""

    check: int
    row: int


class Table(NamedTuple):
    """What a request table has in it: a fault, if there is one, and sums over those without one.

    `num_held_blocks`, `num_swapped_blocks`: blocks of the device that nobody else holds, and of the swap space.
    """

    fault: Fault
    num_on_device: int
    num_held_blocks: int
    num_swapped_blocks: int


@entry
def examine(
    requests: IntArray, num_reused: IntArray, num_tenants: int, block_size: int, num_blocks: int, num_swap_blocks: int
) -> Table:
    """Check every row. `requests`: int64 [num_columns, num_requests], not empty.

    `num_reused`: [num_prefixes] free blocks of each cached prefix in all.
    """
    check, at, num_on_device, num_held_blocks, num_swapped_blocks = _NONE, 0, 0, 0, 0
    for row in range(requests.shape[1]):
        failed = _check_row(requests, row, num_tenants, block_size, num_blocks, num_swap_blocks)
        if failed == _NONE and requests[columns.CACHED_PREFIX, row] > 0:
            failed = _check_prefix(requests, row, num_reused)
        if failed < check:
            check, at = failed, row
        status = requests[columns.STATUS, row]
        if status == RequestStatus.RUNNING or status == RequestStatus.LOADING:
            num_on_device += 1
            num_held_blocks += requests[columns.NUM_BLOCKS, row] - requests[columns.NUM_SHARED_BLOCKS, row]
        elif status == RequestStatus.SWAPPED:
            num_swapped_blocks += requests[columns.NUM_BLOCKS, row]
    if check > _DUPLICATE_ID:
        twice = _row_of_second(requests[columns.ID])
        if twice >= 0:
            check, at = _DUPLICATE_ID, twice
    return Table(Fault(check, at), num_on_device, num_held_blocks, num_swapped_blocks)


_NONE, _DUPLICATE_ID, _COLUMN_TOO_SMALL = map(int, (_Check.NONE, _Check.DUPLICATE_ID, _Check.COLUMN_TOO_SMALL))
# Columns that take any number.
_TAKES_ANY = (columns.STATUS, columns.ARRIVAL_TIME_US, columns.PRIORITY, columns.NEXT_BLOCK_HASH)
_LEAST = np.array([name in ("id", "num_prompt_tokens") for name in COLUMN_NAMES], dtype=np.int64)
_LEAST[list(_TAKES_ANY)] = np.iinfo(np.int64).min


@rule
def _check_row(
    requests: IntArray, row: int, num_tenants: int, block_size: int, num_blocks: int, num_swap_blocks: int
) -> int:
    """The first check that a row fails."""
    status, blocks = requests[columns.STATUS, row], requests[columns.NUM_BLOCKS, row]
    if status < RequestStatus.WAITING or status > RequestStatus.LOADING:
        return _Check.UNKNOWN_STATUS
    for column in range(len(_LEAST)):
        if requests[column, row] < _LEAST[column]:
            return _COLUMN_TOO_SMALL + column
    if requests[columns.TENANT, row] >= num_tenants:
        return _Check.UNKNOWN_TENANT
    num_computed = requests[columns.NUM_COMPUTED_TOKENS, row]
    if num_computed >= requests[columns.NUM_PROMPT_TOKENS, row] + requests[columns.NUM_OUTPUT_TOKENS, row]:
        return _Check.LACKS_NOTHING
    if blocks > (num_swap_blocks if status == RequestStatus.SWAPPED else num_blocks):
        return _Check.MORE_BLOCKS_THAN_THERE_ARE
    if requests[columns.NUM_SHARED_BLOCKS, row] > blocks:
        return _Check.MORE_SHARED_THAN_BLOCKS
    return _Check.LACKS_BLOCK if num_computed > blocks * block_size else _Check.NONE


@rule
def _check_prefix(requests: IntArray, row: int, num_reused: IntArray) -> int:
    """The same for one that names a cached prefix."""
    prefix = requests[columns.CACHED_PREFIX, row]
    if prefix > len(num_reused):
        return _Check.UNKNOWN_PREFIX
    num_alone = requests[columns.NUM_BLOCKS, row] - requests[columns.NUM_SHARED_BLOCKS, row]
    waits = requests[columns.STATUS, row] == RequestStatus.WAITING
    return _Check.REUSES_MORE_THAN_IS_FREE if waits and num_reused[prefix - 1] > num_alone else _NONE


@compiled
def _row_of_second(ids: IntArray) -> int:
    """The row at which an id stands for the second time; -1: none does.

    In many tables ids ascend. Where they do not, they are put into a hash table; and where so many of them fall on one
    place there that somebody may have chosen them so, they are sorted.
    """
    ascends = True
    for row in range(1, len(ids)):
        ascends = ascends and ids[row - 1] < ids[row]
    if ascends:
        return -1
    size = 2
    while size < 2 * len(ids):
        size *= 2
    places, num_steps = zeros(size), 0
    for row in range(len(ids)):
        place = (ids[row] ^ ids[row] >> 20 ^ ids[row] >> 40) & (size - 1)
        while places[place] != 0 and places[place] != ids[row]:
            place = (place + 1) & (size - 1)
            num_steps += 1
            if num_steps > 8 * len(ids):
                return _row_of_second_by_sorting(ids)
        if places[place] == ids[row]:
            return row
        places[place] = ids[row]
    return -1


@compiled
def _row_of_second_by_sorting(ids: IntArray) -> int:
    order, second = places_in_order(ids.copy().reshape(1, -1)), len(ids)
    for index in range(1, len(order)):
        if ids[order[index]] == ids[order[index - 1]]:
            second = min(second, order[index])
    return second if second < len(ids) else -1


def _refuse_fault(fault: Fault, requests: Requests, field: str) -> None:
    check, row = fault
    if check == _Check.NONE:
        return
    if check in _NAMED_CHECKS:
        name, reason = _NAMED_CHECKS[_Check(check)]
    else:
        name, reason = COLUMN_NAMES[check - _Check.COLUMN_TOO_SMALL], ErrorReason.OUT_OF_RANGE
    value = str(getattr(requests, name)[row])
    raise StateError(f"{field}.{name}[{row}]", reason, f"{value} {_WORDS[reason]}", {"value": value})


_NAMED_CHECKS = {
    _Check.UNKNOWN_STATUS: ("status", ErrorReason.UNKNOWN_VALUE),
    _Check.UNKNOWN_TENANT: ("tenant", ErrorReason.OUT_OF_RANGE),
    _Check.LACKS_NOTHING: ("num_computed_tokens", ErrorReason.INCONSISTENT),
    _Check.DUPLICATE_ID: ("id", ErrorReason.DUPLICATE),
    _Check.MORE_BLOCKS_THAN_THERE_ARE: ("num_blocks", ErrorReason.INCONSISTENT),
    _Check.MORE_SHARED_THAN_BLOCKS: ("num_shared_blocks", ErrorReason.INCONSISTENT),
    _Check.LACKS_BLOCK: ("num_blocks", ErrorReason.INCONSISTENT),
    _Check.UNKNOWN_PREFIX: ("cached_prefix", ErrorReason.OUT_OF_RANGE),
    _Check.REUSES_MORE_THAN_IS_FREE: ("cached_prefix", ErrorReason.INCONSISTENT),
}


def _validate_totals(table: Table, executor: ExecutorState, field: str) -> None:
    limits, held, swapped = executor.limits, table.num_held_blocks, table.num_swapped_blocks
    if table.num_on_device > limits.max_num_seqs:
        raise _inconsistent(f"{field}.limits.max_num_seqs", limits.max_num_seqs, f"{table.num_on_device} requests run")
    if held + executor.num_free_blocks > limits.num_blocks:
        raise _inconsistent(
            f"{field}.num_free_blocks", executor.num_free_blocks, f"requests hold {held} of {limits.num_blocks} blocks"
        )
    if swapped + executor.num_free_swap_blocks > limits.num_swap_blocks:
        raise _inconsistent(
            f"{field}.num_free_swap_blocks",
            executor.num_free_swap_blocks,
            f"requests hold {swapped} of {limits.num_swap_blocks} swap blocks",
        )


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
    ErrorReason.DUPLICATE: "stands twice",
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
