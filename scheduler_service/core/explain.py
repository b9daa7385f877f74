"""The reason of every request of a state, read off the plan.

Who is in a list of the plan has the reason given there. Of the others, those that load wait for their KV; those that
run wait for a block, for the token budget or for the other phase; the head of the queue waits for what the shortfall
says, those that are held for a prefix for the one that computes it, and the rest of the queue behind the head. When
blocks ran out that is the reason of all whom it keeps out. Those that are admitted past others have the reason for
that, and how many they pass (under FAIR: of their tenant, since tenants take turns).
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from scheduler_service.core.case import (
    ID,
    NUM_COMPUTED_TOKENS,
    STATUS,
    TENANT,
    Case,
    case_of,
    in_decode,
    is_on_device,
    rows_with,
)
from scheduler_service.core.claims import NOTHING, Missing
from scheduler_service.core.compiled import compiled, entry, lean
from scheduler_service.core.composition import holds_one_phase, share_tokens
from scheduler_service.core.executor_plan import ExecutorPlan, Explanations, Reason
from scheduler_service.core.memory import new_blocks
from scheduler_service.core.ordering import comes_before_in_queue, in_order
from scheduler_service.core.policy import HeadOfLine, Ordering, Policy, PrefillSharing
from scheduler_service.core.rank import rank_requests
from scheduler_service.core.rows import mark, nowhere, places_where, zeros
from scheduler_service.core.shared_prefix import Held, held_back
from scheduler_service.core.sorting import first_in_order
from scheduler_service.core.state import BoolArray, ClusterState, ExecutorState, IntArray, RequestStatus


def explain(cluster: ClusterState, plans: tuple[ExecutorPlan, ...], policy: Policy) -> tuple[ExecutorPlan, ...]:
    """The same plans, each with the reasons of all requests of its executor."""
    return tuple(
        replace(plan, explanations=explain_executor(executor, plan, policy))
        for executor, plan in zip(cluster.executors, plans, strict=True)
    )


def explain_executor(executor: ExecutorState, plan: ExecutorPlan, policy: Policy) -> Explanations:
    """One row for every request, ascending by id."""
    ids = executor.requests.id
    by_id = np.argsort(ids)

    def rows_of(listed: IntArray) -> IntArray:
        return by_id[np.searchsorted(ids, listed, sorter=by_id)]

    missing, shortfall = Missing(-1, NOTHING, 0, 0), plan.shortfall
    if shortfall is not None:
        row = int(rows_of(np.array([shortfall.id]))[0])
        missing = Missing(row, int(shortfall.reason), shortfall.needed, shortfall.available)
    fates = Fates(
        rows_of(plan.scheduled.id),
        plan.scheduled.reason,
        rows_of(plan.admit.id),
        plan.admit.reason,
        rows_of(plan.resume.id),
        rows_of(plan.evict.id),
        plan.evict.reason,
        rows_of(plan.reject.id),
        plan.reject.reason,
        plan.reject.needed,
        plan.reject.available,
        missing,
    )
    why = why_each(fates, case_of(executor, policy))
    return Explanations(
        id=ids[by_id],
        reason=why.reason[by_id],
        needed=why.needed[by_id],
        available=why.available[by_id],
        behind_id=why.behind_id[by_id],
    )


_FOR_SHARED_PREFIX = int(Reason.WAITING_FOR_SHARED_PREFIX)


class Fates(NamedTuple):
    """The lists of a plan by rows, and what is missing to the first that waits."""

    scheduled: IntArray
    scheduled_reason: IntArray
    admitted: IntArray
    admitted_reason: IntArray
    resumed: IntArray
    evicted: IntArray
    evicted_reason: IntArray
    rejected: IntArray
    rejected_reason: IntArray
    rejected_needed: IntArray
    rejected_available: IntArray
    missing: Missing


class Why(NamedTuple):
    """The reason of each row, and its figures. [num_requests]"""

    reason: IntArray
    needed: IntArray
    available: IntArray
    behind_id: IntArray


@entry
def why_each(fates: Fates, case: Case) -> Why:
    """The reason of each request."""
    rank_requests(case)
    count = len(case.rank)
    why = Why(zeros(count), zeros(count), zeros(count), zeros(count))
    running = in_order(rows_with(RequestStatus.RUNNING, case), case)
    num_tokens = share_tokens(running, case)  # as if nobody entered
    has_tokens = _have_tokens(running, num_tokens, fates, case)
    for row in range(count):
        if is_on_device(case, row):
            reason = _why_not_run(fates, case, row, has_tokens[row])
            is_short = reason == Reason.WAITING_FOR_BLOCKS or reason == Reason.WAITING_FOR_TOKEN_BUDGET
            _write(why, row, reason, 1 if is_short else 0, 0, 0)
        else:
            _explain_queue(why, fates, case, row)
    if fates.missing.reason != NOTHING:
        head = fates.missing.row
        _write(why, head, fates.missing.reason, fates.missing.needed, fates.missing.available, 0)
    held = _held(running, num_tokens, fates, case)
    for place in range(len(held.rows)):
        _write(why, held.rows[place], _FOR_SHARED_PREFIX, 0, 0, held.behind_id[place])
    for place in range(len(fates.scheduled)):
        _write(why, fates.scheduled[place], fates.scheduled_reason[place], 0, 0, 0)
    for place in range(len(fates.evicted)):
        _write(why, fates.evicted[place], fates.evicted_reason[place], 0, 0, 0)
    for place in range(len(fates.rejected)):
        needed, available = fates.rejected_needed[place], fates.rejected_available[place]
        _write(why, fates.rejected[place], fates.rejected_reason[place], needed, available, 0)
    if case.policy.head_of_line != HeadOfLine.STRICT:
        _explain_passing(why, held.others, fates, case)
    return why


@lean
def _write(why: Why, row: int, reason: int, needed: int, available: int, behind_id: int) -> None:
    why.reason[row] = reason
    why.needed[row] = needed
    why.available[row] = available
    why.behind_id[row] = behind_id


@compiled
def _have_tokens(running: IntArray, num_tokens: IntArray, fates: Fates, case: Case) -> BoolArray:
    """Which rows of those that run have tokens of the pass, whether or not there are blocks for them."""
    has_tokens = nowhere(len(case.rank))
    # Prompts that run nothing where others enter have given way to them.
    gives_way = case.policy.prefill_sharing == PrefillSharing.IN_ORDER
    gives_way = gives_way and len(fates.admitted) + len(fates.resumed) > 0
    for place in range(len(running)):
        row = running[place]
        has_tokens[row] = num_tokens[place] > 0 and (in_decode(case, row) or not gives_way)
    return has_tokens


@lean
def _why_not_run(fates: Fates, case: Case, row: int, has_tokens: bool) -> int:
    """Why one on the device runs nothing."""
    if case.requests[STATUS, row] == RequestStatus.LOADING:
        return Reason.WAITING_FOR_KV
    of_one_phase = holds_one_phase(case.policy.batch_composition) and len(fates.scheduled) > 0
    if of_one_phase and in_decode(case, row) != in_decode(case, fates.scheduled[0]):
        return Reason.WAITING_FOR_PHASE
    if has_tokens and new_blocks(case, row, case.requests[NUM_COMPUTED_TOKENS, row] + 1) > 0:
        return Reason.WAITING_FOR_BLOCKS
    return Reason.WAITING_FOR_TOKEN_BUDGET


@lean
def _explain_queue(why: Why, fates: Fates, case: Case, row: int) -> None:
    """One behind the head of the queue."""
    why.reason[row] = Reason.WAITING_BEHIND
    if fates.missing.reason == Reason.WAITING_AFTER_EVICTION:
        why.reason[row] = fates.missing.reason
    elif fates.missing.reason != NOTHING:
        why.behind_id[row] = case.requests[ID, fates.missing.row]


@compiled
def _held(running: IntArray, num_tokens: IntArray, fates: Fates, case: Case) -> Held:
    """Who was held for whom."""
    is_queued = nowhere(len(case.rank))
    for row in range(len(is_queued)):
        is_queued[row] = not is_on_device(case, row)
    for place in range(len(fates.rejected)):
        # Those that are turned away for the length of the queue had their turn before.
        reason = fates.rejected_reason[place]
        if reason != Reason.REJECTED_QUEUE_FULL and reason != Reason.REJECTED_TENANT_QUEUE_FULL:
            is_queued[fates.rejected[place]] = False
    if len(fates.admitted) + len(fates.resumed) == 0:
        # Else some that run may have paused for those that enter, or left for them, after these had been held for them.
        runs = nowhere(len(case.rank))
        mark(runs, fates.scheduled, True)
        num_tokens = zeros(len(running))
        for place in range(len(running)):
            num_tokens[place] = runs[running[place]]
    return held_back(places_where(is_queued), running, num_tokens, case)


@compiled
def _explain_passing(why: Why, queue: IntArray, fates: Fates, case: Case) -> None:
    """Those that passed others, and how many: of all that stand before them and stay out."""
    enters = nowhere(len(case.rank))
    mark(enters, fates.admitted, True)
    mark(enters, fates.resumed, True)
    num_passed, num_passed_of = 0, zeros(len(case.weight))
    passes = _passing(fates, case)
    if len(places_where(passes)) == 0:
        return
    for row in first_in_order(queue, len(queue), comes_before_in_queue, case):
        tenant = case.requests[TENANT, row]
        if not enters[row]:
            num_passed += 1
            num_passed_of[tenant] += 1
        elif passes[row]:
            why.needed[row] = num_passed_of[tenant] if case.policy.ordering == Ordering.FAIR else num_passed
    for place in range(len(fates.admitted)):
        row = fates.admitted[place]
        if passes[row]:
            _write(why, row, fates.admitted_reason[place], why.needed[row], 0, 0)


@compiled
def _passing(fates: Fates, case: Case) -> BoolArray:
    passes = nowhere(len(case.rank))
    for place in range(len(fates.admitted)):
        reason = fates.admitted_reason[place]
        passes[fates.admitted[place]] = reason == Reason.SKIPPED_AHEAD or reason == Reason.BACKFILLED
    return passes
