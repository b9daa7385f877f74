"""A case to decide, as machine code sees it: the request table, and every figure beside it in records of plain numbers.

What is unbounded is `UNBOUNDED` here, and an unknown latency model is one of zeros. What follows from a row alone, in
the terms of `state.py`, is told at the end.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple, cast, get_type_hints

import numpy as np

from scheduler_service.core.compiled import compiled, rule
from scheduler_service.core.policy import Policy
from scheduler_service.core.rows import nowhere, places_where
from scheduler_service.core.state import (
    COLUMN_NAMES,
    NOBODY_NAMED,
    ExecutorLimits,
    ExecutorState,
    FloatArray,
    IntArray,
    LatencyModel,
    RequestStatus,
)

# Rows of the matrix of a table.
(
    ID,
    STATUS,
    ARRIVAL_TIME_US,
    PRIORITY,
    TENANT,
    NUM_PROMPT_TOKENS,
    NUM_OUTPUT_TOKENS,
    NUM_COMPUTED_TOKENS,
    MAX_OUTPUT_TOKENS,
    EXPECTED_OUTPUT_TOKENS,
    NUM_DRAFT_TOKENS,
    DEADLINE_US,
    NUM_BLOCKS,
    NUM_SHARED_BLOCKS,
    NUM_PREEMPTIONS,
    LAST_RUN_ITERATION,
    TIMES_OVERTAKEN,
    NEXT_BLOCK_HASH,
    CACHED_PREFIX,
) = range(len(COLUMN_NAMES))

# More than any figure of a state, and half of what its type holds.
UNBOUNDED = 2**62


class Limits:
    """`ExecutorLimits` as a record."""

    max_num_batched_tokens: int
    max_num_seqs: int
    block_size: int
    num_blocks: int
    max_model_len: int
    max_num_waiting: int


class Latency:
    """`LatencyModel` as a record. `is_known`: whether there is one."""

    is_known: bool
    pass_us: float
    prefill_token_us: float
    decode_request_us: float
    kv_token_us: float
    swap_block_us: float


class Settings:
    """`Policy` as a record. `aging_us`: microseconds of waiting that are worth one level."""

    ordering: int
    aging_us: int
    kv_residency_charge: float
    admission: int
    watermark: float
    preemption: int
    victim: int
    max_preemptions: int
    eviction: int
    chunk_size_tokens: int
    max_num_partial_prefills: int
    prefill_sharing: int
    target_inter_token_latency_us: int
    batch_composition: int
    head_of_line: int
    max_times_overtaken: int
    hold_for_shared_prefix: bool
    max_num_waiting: int
    max_num_waiting_per_tenant: int
    reject_missed_deadlines: bool
    max_inter_token_slowdown: float
    ordering_within_tenant: int
    target_time_to_first_token_us: int


def _dtype(record: type) -> np.dtype[Any]:
    """What lies in memory: machine code is handed where, not each figure."""
    return np.dtype((np.record, list(get_type_hints(record).items())))


_LIMITS, _LATENCY, _SETTINGS = map(_dtype, (Limits, Latency, Settings))


class Case(NamedTuple):
    """One executor's state and the policy.

    `requests`: int64 [num_columns, num_requests]. `rank`: [num_requests], what the policy orders by, the least first,
    and `rank_within_tenant`, the same among those of one tenant under FAIR, else 0; `rank.py` writes both before
    anything else is decided. `parent`, `num_free_of_prefix`: [num_prefixes], the columns of the cached prefixes.
    `weight`, `service`: [num_tenants].
    """

    requests: IntArray
    rank: IntArray
    rank_within_tenant: IntArray
    parent: IntArray
    num_free_of_prefix: IntArray
    weight: FloatArray
    service: FloatArray
    now_us: int
    num_free_blocks: int
    num_free_swap_blocks: int
    limits: Limits
    latency: Latency
    policy: Settings


def case_of(executor: ExecutorState, policy: Policy) -> Case:
    """The case, not ranked yet."""
    matrix = executor.requests.matrix
    tenants = executor.tenants if len(executor.tenants) > 0 else NOBODY_NAMED
    return Case(
        matrix,
        np.zeros(matrix.shape[1], dtype=np.int64),
        np.zeros(matrix.shape[1], dtype=np.int64),
        executor.prefixes.parent,
        executor.prefixes.num_free_blocks,
        tenants.weight,
        tenants.service,
        executor.now_us,
        executor.num_free_blocks,
        executor.num_free_swap_blocks,
        _limits(executor.limits),
        _NO_LATENCY if executor.latency is None else _latency(executor.latency),
        _settings(policy),
    )


@lru_cache(maxsize=256)  # of kinds of executors there are few
def _limits(limits: ExecutorLimits) -> Limits:
    figures = (
        limits.max_num_batched_tokens,
        limits.max_num_seqs,
        limits.block_size,
        limits.num_blocks,
        limits.max_model_len,
        _bound(limits.max_num_waiting),
    )
    return cast(Limits, np.array(figures, dtype=_LIMITS)[()])


@lru_cache(maxsize=256)
def _latency(model: LatencyModel) -> Latency:
    figures = (
        True,
        model.pass_us,
        model.prefill_token_us,
        model.decode_request_us,
        model.kv_token_us,
        model.swap_block_us,
    )
    return cast(Latency, np.array(figures, dtype=_LATENCY)[()])


_NO_LATENCY = cast(Latency, np.zeros((), dtype=_LATENCY)[()])


@lru_cache(maxsize=256)
def _settings(policy: Policy) -> Settings:
    settings = (
        policy.ordering.value,
        aging_us(policy),
        policy.kv_residency_charge,
        policy.admission.value,
        policy.watermark,
        policy.preemption.value,
        policy.victim.value,
        _bound(policy.max_preemptions),
        policy.eviction.value,
        _bound(policy.chunk_size_tokens),
        _bound(policy.max_num_partial_prefills),
        policy.prefill_sharing.value,
        _bound(policy.target_inter_token_latency_us),
        policy.batch_composition.value,
        policy.head_of_line.value,
        _bound(policy.max_times_overtaken),
        policy.hold_for_shared_prefix,
        _bound(policy.max_num_waiting),
        _bound(policy.max_num_waiting_per_tenant),
        policy.reject_missed_deadlines,
        policy.max_inter_token_slowdown,
        policy.ordering_within_tenant.value,
        _bound(policy.target_time_to_first_token_us),
    )
    return cast(Settings, np.array(settings, dtype=_SETTINGS)[()])


def _bound(most: int | None) -> int:
    return UNBOUNDED if most is None or most > UNBOUNDED else most


def aging_us(policy: Policy) -> int:
    """Microseconds of waiting that are worth one level."""
    return round(min(max(policy.aging_seconds * 1e6, 1.0), 2.0**62))


@rule
def num_tokens(case: Case, row: int) -> int:
    """Prompt and output tokens: what is stored once the next token is computed."""
    return case.requests[NUM_PROMPT_TOKENS, row] + case.requests[NUM_OUTPUT_TOKENS, row]


@rule
def num_lacking_tokens(case: Case, row: int) -> int:
    """Tokens to compute before the next one is sampled, >= 1."""
    return num_tokens(case, row) - case.requests[NUM_COMPUTED_TOKENS, row]


@rule
def in_decode(case: Case, row: int) -> bool:
    """Whether the newest token is the only one that it lacks."""
    return case.requests[NUM_OUTPUT_TOKENS, row] > 0 and num_lacking_tokens(case, row) == 1


@rule
def is_on_device(case: Case, row: int) -> bool:
    """Whether it runs or loads."""
    status = case.requests[STATUS, row]
    return status == RequestStatus.RUNNING or status == RequestStatus.LOADING


@rule
def ran_before(case: Case, row: int) -> bool:
    """Whether one that waits or is swapped has run before."""
    return case.requests[STATUS, row] == RequestStatus.SWAPPED or case.requests[NUM_PREEMPTIONS, row] > 0


@compiled
def rows_with(status: int, case: Case) -> IntArray:
    """The rows that have this status, ascending."""
    statuses = case.requests[STATUS]
    has_status = nowhere(len(statuses))
    for row in range(len(statuses)):
        has_status[row] = statuses[row] == status
    return places_where(has_status)
