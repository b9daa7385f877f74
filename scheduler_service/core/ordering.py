"""Who comes first.

- Of those that run: by rank (`rank.py`), under FAIR by that within the tenant, then arrival time, then id.
- In the queue: by the same ranks, then those that have run before, then arrival time, then id.
- FAIR takes the queue tenant by tenant: see `fairness.py`.

Row order never matters, since ids are unique. The queue may hold ten thousand requests and a plan admits a few, so a
long queue is never sorted: the few are selected (`sorting.first_in_order`).
"""

from __future__ import annotations

import numpy as np

from scheduler_service.core.case import ARRIVAL_TIME_US, ID, Case, ran_before
from scheduler_service.core.compiled import compiled, rule
from scheduler_service.core.rows import those_at
from scheduler_service.core.sorting import places_in_order
from scheduler_service.core.state import IntArray


@compiled
def in_order(rows: IntArray, case: Case) -> IntArray:
    """The same rows in the order of those that run."""
    return those_at(rows, order_of(rows, case))


@compiled
def order_of(rows: IntArray, case: Case) -> IntArray:
    """Which of the rows comes first, second, ... of those that run."""
    keys, requests = np.empty((4, len(rows)), dtype=np.int64), case.requests
    for place in range(len(rows)):
        keys[0, place] = case.rank[rows[place]]
        keys[1, place] = case.rank_within_tenant[rows[place]]
        keys[2, place] = requests[ARRIVAL_TIME_US, rows[place]]
        keys[3, place] = requests[ID, rows[place]]
    return places_in_order(keys)


@rule
def comes_before_in_queue(case: Case, one: int, other: int) -> bool:
    """Whether a row comes before another in the order of the queue."""
    if case.rank[one] != case.rank[other]:
        return case.rank[one] < case.rank[other]
    return comes_before_within_rank(case, one, other)


@rule
def comes_before_within_rank(case: Case, one: int, other: int) -> bool:
    """The same of two whose rank is one, as that of those of one tenant is under FAIR."""
    requests, rank = case.requests, case.rank_within_tenant
    if rank[one] != rank[other]:
        return rank[one] < rank[other]
    if ran_before(case, one) != ran_before(case, other):
        return ran_before(case, one)
    if requests[ARRIVAL_TIME_US, one] != requests[ARRIVAL_TIME_US, other]:
        return requests[ARRIVAL_TIME_US, one] < requests[ARRIVAL_TIME_US, other]
    return requests[ID, one] < requests[ID, other]
