"""Who comes first.

- Of those that run: by rank (`rank.py`), then arrival time, then id.
- In the queue: by rank, then those that have run before, then arrival time, then id.
- FAIR takes the queue tenant by tenant: see `fairness.py`.

Row order never matters, since ids are unique. The queue may hold ten thousand requests and a plan admits a few, so the
queue is never sorted: the few are selected, and then sorted.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scheduler_service.core.state import BoolArray, IntArray, Requests, rows_where

_Key = NDArray[Any]


def in_order(requests: Requests, rows: IntArray) -> IntArray:
    """All of `rows`, in the order of those that run."""
    if len(rows) < 2:
        return rows
    keys: list[_Key] = [requests.id[rows], requests.arrival_time_us[rows]]
    if requests.rank is not None:
        keys.append(requests.rank[rows])
    return rows[np.lexsort(keys)]


def first_in_queue(requests: Requests, rows: IntArray, count: int) -> IntArray:
    """The `count` first of `rows` (all, if there are fewer), in the order of the queue. Sorts only the result."""
    if count <= 0 or len(rows) == 0:
        return rows[:0]
    never_ran = ~requests.ran_before
    if requests.rank is None:
        return _returned_first(requests, rows, never_ran, count)
    keys = (requests.rank, never_ran, requests.arrival_time_us, requests.id)
    if count < len(rows):
        rows = _smallest(keys, rows, count)
    return rows[np.lexsort([key[rows] for key in reversed(keys)])]


def _returned_first(requests: Requests, rows: IntArray, never_ran: BoolArray, count: int) -> IntArray:
    """Where all are of one rank: those that ran before, then the others, each by arrival time and id."""
    is_new = never_ran[rows]
    keys = (requests.arrival_time_us, requests.id)
    chosen = rows[rows_where(~is_new)]
    if len(chosen) > count:
        chosen = _smallest(keys, chosen, count)
    chosen = in_order(requests, chosen)
    if len(chosen) < count:
        new = rows[rows_where(is_new)] if len(chosen) > 0 else rows
        if count - len(chosen) < len(new):
            new = _smallest(keys, new, count - len(chosen))
        chosen = np.concatenate((chosen, in_order(requests, new)))
    return chosen


def _smallest(keys: Sequence[_Key], rows: IntArray, count: int) -> IntArray:
    """The `count` rows with the least keys, compared one after the other, in any order. 0 < count < len(rows)."""
    key = keys[0][rows]
    bound = np.partition(key, count - 1)[count - 1]
    before, tied = rows[rows_where(key < bound)], rows[rows_where(key == bound)]
    missing = count - len(before)
    if missing < len(tied):
        tied = _smallest(keys[1:], tied, missing)
    return np.concatenate((before, tied))
