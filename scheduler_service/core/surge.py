"""Who is over the limit of the queue.

At most `max_num_waiting` requests that never ran may go on waiting once the plan is carried out (the policy's limit,
else the executor's), and at most `max_num_waiting_per_tenant` of one tenant: those who come last in order are turned
away, with an estimate of how long they would have waited. Requests that have run before are not turned away and not
counted. With a limit of 0 only those stay that start at once.
"""

from __future__ import annotations

import numpy as np

from scheduler_service.core.executor_plan import Reason
from scheduler_service.core.latency import estimated_wait_us
from scheduler_service.core.ordering import in_order
from scheduler_service.core.policy import Policy
from scheduler_service.core.rejection import NOBODY, Rejected
from scheduler_service.core.state import BoolArray, ExecutorState, IntArray, Requests, RequestStatus, rows_where


def over_limit(
    ranked: Requests, rejected: Rejected, entering: Requests, executor: ExecutorState, policy: Policy
) -> Rejected:
    """Those that are turned away because too many wait. `rejected`: those that are turned away anyhow."""
    limit, of_tenant = policy.max_num_waiting, policy.max_num_waiting_per_tenant
    if limit is None:
        limit = executor.limits.max_num_waiting
    if limit is None and of_tenant is None:
        return NOBODY
    waiting = _waits_on(ranked, rejected, entering)
    over = NOBODY
    if of_tenant is not None:
        rows = _last_of_tenants(ranked, rows_where(waiting), of_tenant)
        waiting[rows] = False
        over = _turned_away(rows, Reason.REJECTED_TENANT_QUEUE_FULL, of_tenant, ranked, waiting, executor)
    if limit is not None and int(np.count_nonzero(waiting)) > limit:
        rows = in_order(ranked.of(rows_where(waiting))).rows[limit:]
        waiting[rows] = False
        over = over.beside(_turned_away(rows, Reason.REJECTED_QUEUE_FULL, limit, ranked, waiting, executor))
    return over


def _waits_on(ranked: Requests, rejected: Rejected, entering: Requests) -> BoolArray:
    """Which never ran, and neither enter nor are turned away."""
    waiting: BoolArray = ranked.having(RequestStatus.WAITING) & (ranked.num_preemptions == 0)
    waiting[rejected.rows] = False
    waiting[entering.rows] = False
    return waiting


def _last_of_tenants(ranked: Requests, rows: IntArray, limit: int) -> IntArray:
    """Those of `rows` before whom `limit` of the same tenant stand."""
    crowded = np.bincount(ranked.tenant[rows]) > limit
    rows = in_order(ranked.of(rows[crowded[ranked.tenant[rows]]])).rows
    tenant = ranked.tenant[rows]
    by_tenant = np.argsort(tenant, kind="stable")
    first_of_tenant = np.searchsorted(tenant[by_tenant], tenant[by_tenant])
    return rows[by_tenant[np.arange(len(rows)) - first_of_tenant >= limit]]


def _turned_away(
    rows: IntArray, reason: Reason, limit: int, ranked: Requests, waiting: BoolArray, executor: ExecutorState
) -> Rejected:
    if len(rows) == 0:
        return NOBODY
    on_device = ranked.having(RequestStatus.RUNNING) | ranked.having(RequestStatus.LOADING)
    wait_us = estimated_wait_us(ranked.take(rows_where(waiting | on_device)), executor)
    return Rejected(
        rows=rows,
        reason=np.full(len(rows), int(reason)),
        # A place each, of those that the limit gives to all.
        needed=np.ones(len(rows), dtype=np.int64),
        available=np.full(len(rows), limit),
        estimated_wait_us=np.full(len(rows), wait_us),
    )
