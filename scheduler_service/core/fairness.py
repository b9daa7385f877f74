"""The queue under FAIR: tenants take turns, by the service that they have had and that they are about to get.

Within a tenant the order is that of the queue. Across tenants each request starts at a tag: its tenant's virtual token
counter, plus what those of the same tenant that stand before it will be charged, over the tenant's weight; the least
tag comes first (start-time fair queueing, Goyal et al. 1996, over the counters of VTC, arXiv 2401.00588, where the cost
of a request may be any function). So several places that come free at once go round, and two tenants that both wait
differ by one largest request at most, over their weights.

A request is charged the tokens that it is expected to compute and, where the policy charges for KV residency, the
blocks that it is expected to hold in each pass. Both are whole numbers until they meet the charge and the weight.

Nothing is sorted: of each tenant's requests the first are kept as a heap, and those whose turn it may be are the heap
of the tenants' first.
"""

from __future__ import annotations

from typing import NamedTuple

from scheduler_service.core.case import TENANT, Case
from scheduler_service.core.compiled import compiled, lean, rule
from scheduler_service.core.memory import block_passes
from scheduler_service.core.ordering import comes_before_within_rank
from scheduler_service.core.rank import tenant_counters
from scheduler_service.core.rows import nowhere, places_where, zeros
from scheduler_service.core.sorting import make_heap, sift_down
from scheduler_service.core.state import FloatArray, IntArray
from scheduler_service.core.work import tokens_to_compute


class _Queues(NamedTuple):
    """The queue of each tenant, as heaps in one list: where it starts, and how many are in it. [num_tenants]"""

    rows: IntArray
    start: IntArray
    num_left: IntArray


class _Turns(NamedTuple):
    """Whose turn it may be: the first of each tenant's queue, and its tag. [num_tenants]"""

    first: IntArray
    tag: FloatArray
    case: Case


@compiled
def first_in_turn(queue: IntArray, count: int, case: Case) -> IntArray:
    """The `count` first of those that wait (all, if there are fewer), in turn."""
    queues = _queues(queue, count, case)
    tenants, counters = _those_who_wait(queues), tenant_counters(case)
    num_tenants = len(tenants)
    turns = _Turns(zeros(len(queues.start)), counters.copy(), case)
    for tenant in tenants:
        turns.first[tenant] = queues.rows[queues.start[tenant]]
    make_heap(tenants, 0, num_tenants, _has_turn_before, turns, False)
    num_tokens, num_block_passes = zeros(len(queues.start)), zeros(len(queues.start))
    in_turn = zeros(min(count, len(queue)))
    for place in range(len(in_turn)):
        tenant = tenants[0]
        row = turns.first[tenant]
        in_turn[place] = row
        num_tokens[tenant] += tokens_to_compute(case, row)
        if case.policy.kv_residency_charge > 0:
            num_block_passes[tenant] += block_passes(case, row)
        if _take_first(queues, tenant, case):
            charged = num_tokens[tenant] + case.policy.kv_residency_charge * num_block_passes[tenant]
            turns.first[tenant] = queues.rows[queues.start[tenant]]
            turns.tag[tenant] = counters[tenant] + charged / case.weight[tenant]
        else:
            num_tenants -= 1
            tenants[0] = tenants[num_tenants]
        if num_tenants > 0:
            sift_down(tenants, 0, num_tenants, 0, _has_turn_before, turns, False)
    return in_turn


@compiled
def _those_who_wait(queues: _Queues) -> IntArray:
    waits = nowhere(len(queues.num_left))
    for tenant in range(len(waits)):
        waits[tenant] = queues.num_left[tenant] > 0
    return places_where(waits)


@rule
def _has_turn_before(turns: _Turns, one: int, other: int) -> bool:
    """Whether a tenant's turn is before another's: by the tag, and where it is equal in the order of the queue."""
    if turns.tag[one] != turns.tag[other]:
        return turns.tag[one] < turns.tag[other]
    return comes_before_within_rank(turns.case, turns.first[one], turns.first[other])


@compiled
def _queues(queue: IntArray, count: int, case: Case) -> _Queues:
    """The `count` first of each tenant, the first of all on top."""
    tenant, num_of_tenant = case.requests[TENANT], zeros(len(case.weight))
    for row in queue:
        num_of_tenant[tenant[row]] += 1
    most, start, num_rows = zeros(len(num_of_tenant)), zeros(len(num_of_tenant)), 0
    for of in range(len(most)):
        most[of], start[of] = min(num_of_tenant[of], count), num_rows
        num_rows += most[of]
    queues = _Queues(zeros(num_rows), start, zeros(len(most)))
    for row in queue:
        _put(queues, most, row, case)
    for of in range(len(most)):
        make_heap(queues.rows, start[of], most[of], comes_before_within_rank, case, False)
    return queues


@rule
def _put(queues: _Queues, most: IntArray, row: int, case: Case) -> None:
    """Put a row into the queue of its tenant, if it is one of the first there."""
    tenant = case.requests[TENANT, row]
    start, count = queues.start[tenant], queues.num_left[tenant]
    if count == most[tenant]:
        if comes_before_within_rank(case, row, queues.rows[start]):
            queues.rows[start] = row
            sift_down(queues.rows, start, count, 0, comes_before_within_rank, case, True)
        return
    queues.rows[start + count] = row
    queues.num_left[tenant] += 1
    if count + 1 == most[tenant]:
        make_heap(queues.rows, start, most[tenant], comes_before_within_rank, case, True)


@lean
def _take_first(queues: _Queues, tenant: int, case: Case) -> bool:
    """Take the first of a tenant's queue away. Whether anyone is left."""
    start, num_left = queues.start[tenant], queues.num_left[tenant] - 1
    queues.num_left[tenant] = num_left
    if num_left == 0:
        return False
    queues.rows[start] = queues.rows[start + num_left]
    sift_down(queues.rows, start, num_left, 0, comes_before_within_rank, case, False)
    return True
