"""Who comes first.

- Of those that run: by rank (`rank.py`), then arrival time, then id.
- In the queue: by rank, then those that have run before, then arrival time, then id.
- FAIR takes the queue tenant by tenant: see `fairness.py`.

Row order never matters, since ids are unique. The queue may hold ten thousand requests and a plan admits a few, so a
long queue is never sorted: the few are selected, and then sorted.
"""

from __future__ import annotations

import numpy as np

from scheduler_service.core.state import IntArray, Requests, rows_where

# Sorting so few is faster than selecting from them.
FEW = 64


def in_order(requests: Requests) -> Requests:
    """The same requests in the order of those that run."""
    return requests if len(requests) < 2 else requests.take(positions_in_order(requests))


def positions_in_order(requests: Requests) -> IntArray:
    """Which comes first, second, ... of those that run."""
    if requests.rank is None:
        return _positions_by(requests, ("arrival_time_us", "id"))
    return _positions_by(requests, ("rank", "arrival_time_us", "id"))


def first_in_queue(requests: Requests, count: int) -> Requests:
    """The `count` first (all, if there are fewer), in the order of the queue. Sorts only the result."""
    names = order_within_rank(requests)
    if requests.rank is not None:
        names = ("rank", *names)
    if len(requests) > max(count, FEW):
        requests = _least(requests, names, count)
    return requests.take(_positions_by(requests, names)[:count])


def order_within_rank(queued: Requests) -> tuple[str, ...]:
    """The columns that a queue of one rank is ordered by, one after the other."""
    names = ("arrival_time_us", "id")
    return ("never_ran", *names) if queued.whole.anyone_ran_before else names


def _positions_by(requests: Requests, names: tuple[str, ...]) -> IntArray:
    """Which comes first, second, ... by these columns, compared one after the other."""
    return np.lexsort([getattr(requests, name) for name in reversed(names)])


def _least(requests: Requests, names: tuple[str, ...], count: int) -> Requests:
    """The `count` first by these columns, compared one after the other; in no order. 0 < count < len(requests)."""
    key = getattr(requests, names[0])
    bound = np.partition(key, count - 1)[count - 1]
    before, tied = requests.take(rows_where(key < bound)), requests.take(rows_where(key == bound))
    missing = count - len(before)
    if missing < len(tied):
        tied = _least(tied, names[1:], missing)
    return before.beside(tied)
