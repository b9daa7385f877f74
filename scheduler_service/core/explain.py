"""The reason of every request of a state, read off the plan.

Who is in a list of the plan has the reason given there. Of the others, those that load wait for their KV; those that
run wait for a block, for the token budget or for the other phase; the head of the queue waits for what the shortfall
says, those that are held for a prefix for the one that computes it, and the rest of the queue behind the head. When
blocks ran out that is the reason of all whom it keeps out. Those that are admitted past others have the reason for
that, and how many they pass (under FAIR: of their tenant, since tenants take turns).
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from scheduler_service.core.composition import ONE_PHASE, share_tokens
from scheduler_service.core.executor_plan import ExecutorPlan, Explanations, Reason, Shortfall
from scheduler_service.core.memory import new_blocks
from scheduler_service.core.ordering import first_in_queue, in_order
from scheduler_service.core.policy import HeadOfLine, Ordering, Policy
from scheduler_service.core.rank import ranked
from scheduler_service.core.shared_prefix import Held, held_back
from scheduler_service.core.state import (
    BoolArray,
    ClusterState,
    ExecutorState,
    IntArray,
    Requests,
    RequestStatus,
    rows_where,
)


def explain(cluster: ClusterState, plans: tuple[ExecutorPlan, ...], policy: Policy) -> tuple[ExecutorPlan, ...]:
    """The same plans, each with the reasons of all requests of its executor."""
    return tuple(
        replace(plan, explanations=explain_executor(executor, plan, policy))
        for executor, plan in zip(cluster.executors, plans, strict=True)
    )


def explain_executor(executor: ExecutorState, plan: ExecutorPlan, policy: Policy) -> Explanations:
    """One row for every request, ascending by id."""
    requests = ranked(executor, policy).take(np.argsort(executor.requests.id))
    explanations = _nothing_known(requests)
    running = requests.having(RequestStatus.RUNNING)
    loading = requests.having(RequestStatus.LOADING)
    _explain_running(explanations, requests, running, executor.limits.block_size)
    if policy.batch_composition in ONE_PHASE and len(plan.scheduled.id) > 0:
        decodes = plan.composition.num_decode_requests > 0
        _set(explanations, rows_where(running & (requests.in_decode != decodes)), Reason.WAITING_FOR_PHASE)
    explanations.reason[loading] = Reason.WAITING_FOR_KV
    _explain_queue(explanations, ~(running | loading), plan.shortfall)
    queued = requests.take(rows_where(~(running | loading) & ~np.isin(requests.id, _turned_away_at_once(plan))))
    held = _held(queued, requests.take(rows_where(running)), plan, executor, policy)
    rows = np.searchsorted(explanations.id, held.requests.id)
    _set(explanations, rows, Reason.WAITING_FOR_SHARED_PREFIX, behind_id=held.behind_id)
    _explain_lists(explanations, plan)
    if policy.head_of_line is not HeadOfLine.STRICT:
        _explain_passing(explanations, held.others, plan, policy)
    return explanations


def _nothing_known(requests: Requests) -> Explanations:
    reason, needed, available, behind_id = np.zeros((4, len(requests)), dtype=np.int64)
    return Explanations(id=requests.id, reason=reason, needed=needed, available=available, behind_id=behind_id)


def _explain_running(explanations: Explanations, requests: Requests, running: BoolArray, block_size: int) -> None:
    next_block = new_blocks(requests, requests.num_computed_tokens + 1, block_size)
    lacks_block = next_block > 0
    _set(explanations, rows_where(running & ~lacks_block), Reason.WAITING_FOR_TOKEN_BUDGET, needed=1)
    _set(explanations, rows_where(running & lacks_block), Reason.WAITING_FOR_BLOCKS, needed=1)


def _explain_queue(explanations: Explanations, queued: BoolArray, shortfall: Shortfall | None) -> None:
    _set(explanations, rows_where(queued), Reason.WAITING_BEHIND)
    if shortfall is None:
        return
    if shortfall.reason is Reason.WAITING_AFTER_EVICTION:
        _set(explanations, rows_where(queued), shortfall.reason)
    else:
        _set(explanations, rows_where(queued), Reason.WAITING_BEHIND, behind_id=shortfall.id)
    head = np.searchsorted(explanations.id, [shortfall.id])
    _set(explanations, head, shortfall.reason, needed=shortfall.needed, available=shortfall.available)


def _turned_away_at_once(plan: ExecutorPlan) -> IntArray:
    """Ids of those that are rejected before the queue has its turn; the others are for its length."""
    for_the_queue = (int(Reason.REJECTED_QUEUE_FULL), int(Reason.REJECTED_TENANT_QUEUE_FULL))
    return plan.reject.id[~np.isin(plan.reject.reason, for_the_queue)]


def _held(queued: Requests, running: Requests, plan: ExecutorPlan, executor: ExecutorState, policy: Policy) -> Held:
    """Who was held for whom."""
    running = in_order(running)
    runs = np.isin(running.id, plan.scheduled.id).astype(np.int64)
    if len(plan.admit.id) + len(plan.resume.id) > 0:
        # Some that run may have paused for those that enter, or left for them, after these had been held for them.
        runs = share_tokens(running, executor, policy)
    return held_back(queued, running, runs, policy)


def _explain_passing(explanations: Explanations, queued: Requests, plan: ExecutorPlan, policy: Policy) -> None:
    passes = np.isin(plan.admit.reason, (int(Reason.SKIPPED_AHEAD), int(Reason.BACKFILLED)))
    if not passes.any():
        return
    queued = first_in_queue(queued, len(queued))
    if policy.ordering is Ordering.FAIR:
        queued = queued.take(np.argsort(queued.tenant, kind="stable"))
    stays_out = np.isin(queued.id, np.concatenate((plan.admit.id, plan.resume.id)), invert=True)
    num_passed = stays_out.cumsum()
    if policy.ordering is Ordering.FAIR:
        num_passed -= (num_passed - stays_out)[np.searchsorted(queued.tenant, queued.tenant)]
    by_id = queued.id.argsort()
    passing = by_id[np.searchsorted(queued.id[by_id], plan.admit.id[passes])]
    rows = np.searchsorted(explanations.id, queued.id[passing])
    _set(explanations, rows, plan.admit.reason[passes], needed=num_passed[passing])


def _explain_lists(explanations: Explanations, plan: ExecutorPlan) -> None:
    for table in (plan.scheduled, plan.evict):
        _set(explanations, np.searchsorted(explanations.id, table.id), table.reason)
    reject = plan.reject
    rows = np.searchsorted(explanations.id, reject.id)
    _set(explanations, rows, reject.reason, needed=reject.needed, available=reject.available)


def _set(
    explanations: Explanations,
    rows: IntArray,
    reason: IntArray | Reason,
    *,
    needed: IntArray | int = 0,
    available: IntArray | int = 0,
    behind_id: IntArray | int = 0,
) -> None:
    explanations.reason[rows] = reason
    explanations.needed[rows] = needed
    explanations.available[rows] = available
    explanations.behind_id[rows] = behind_id
