"""Who is over the limit of the queue.

At most `max_num_waiting` requests that never ran may go on waiting once the plan is carried out (the policy's limit,
else the executor's), and at most `max_num_waiting_per_tenant` of one tenant: those who come last in order are turned
away, with an estimate of how long they would have waited. Requests that have run before are not turned away and not
counted. With a limit of 0 only those stay that start at once.
"""

from __future__ import annotations

from scheduler_service.core.case import NUM_PREEMPTIONS, STATUS, TENANT, UNBOUNDED, Case, is_on_device
from scheduler_service.core.compiled import compiled
from scheduler_service.core.executor_plan import Reason
from scheduler_service.core.latency import estimated_wait_us
from scheduler_service.core.ordering import in_order
from scheduler_service.core.rejection import Rejected, beside, room_for
from scheduler_service.core.rows import mark, nowhere, places_where, zeros
from scheduler_service.core.state import BoolArray, IntArray, RequestStatus


@compiled
def with_those_over_limit(rejected: Rejected, entering: IntArray, case: Case) -> Rejected:
    """Those that are turned away anyhow, and beside them those that are because too many wait."""
    limit, of_tenant = case.policy.max_num_waiting, case.policy.max_num_waiting_per_tenant
    if limit == UNBOUNDED:
        limit = case.limits.max_num_waiting
    if limit == UNBOUNDED and of_tenant == UNBOUNDED:
        return rejected
    waits = _waits_on(rejected, entering, case)
    if of_tenant != UNBOUNDED:
        rows = _last_of_tenants(waits, of_tenant, case)
        if len(rows) > 0:
            rejected = beside(rejected, _turned_away(rows, Reason.REJECTED_TENANT_QUEUE_FULL, of_tenant, waits, case))
    rows = places_where(waits)
    if len(rows) > limit:
        rows = in_order(rows, case)[limit:]
        rejected = beside(rejected, _turned_away(rows, Reason.REJECTED_QUEUE_FULL, limit, waits, case))
    return rejected


@compiled
def _waits_on(rejected: Rejected, entering: IntArray, case: Case) -> BoolArray:
    """Which never ran, and neither enter nor are turned away."""
    waits = nowhere(len(case.rank))
    for row in range(len(waits)):
        never_ran = case.requests[NUM_PREEMPTIONS, row] == 0
        waits[row] = never_ran and case.requests[STATUS, row] == RequestStatus.WAITING
    mark(waits, rejected.rows, False)
    mark(waits, entering, False)
    return waits


@compiled
def _last_of_tenants(waits: BoolArray, limit: int, case: Case) -> IntArray:
    """Those that wait behind `limit` of the same tenant."""
    tenant, num_of_tenant = case.requests[TENANT], zeros(len(case.weight))
    for row in range(len(waits)):
        if waits[row]:
            num_of_tenant[tenant[row]] += 1
    is_crowded = nowhere(len(waits))
    for row in range(len(waits)):
        is_crowded[row] = waits[row] and num_of_tenant[tenant[row]] > limit
    num_before = zeros(len(num_of_tenant))
    is_last = nowhere(len(waits))
    for row in in_order(places_where(is_crowded), case):
        is_last[row] = num_before[tenant[row]] >= limit
        num_before[tenant[row]] += 1
    return places_where(is_last)


@compiled
def _turned_away(rows: IntArray, reason: int, limit: int, waits: BoolArray, case: Case) -> Rejected:
    """These rows, which do not wait from now on."""
    mark(waits, rows, False)
    is_ahead = nowhere(len(waits))
    for row in range(len(is_ahead)):
        is_ahead[row] = waits[row] or is_on_device(case, row)
    wait_us = estimated_wait_us(is_ahead, case)
    rejected = room_for(rows)
    for place in range(len(rows)):
        rejected.reason[place] = reason
        # A place, of those that the limit gives to all.
        rejected.needed[place] = 1
        rejected.available[place] = limit
        rejected.estimated_wait_us[place] = wait_us
    return rejected
