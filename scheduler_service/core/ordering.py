"""Who comes first: each ordering as sort keys, ties by arrival time, then id.

FIFO orders by arrival time. Row order never matters, since ids are unique. The queue may hold ten thousand requests and
a plan admits a few, so the queue is never sorted: `first_in_order` partitions it and sorts the few.
"""

from __future__ import annotations

import numpy as np

from scheduler_service.core.state import IntArray, Requests


def in_order(requests: Requests, rows: IntArray) -> IntArray:
    """All of `rows`, in order."""
    if len(rows) < 2:
        return rows
    return rows[np.lexsort((requests.id[rows], requests.arrival_time_us[rows]))]


def first_in_order(requests: Requests, rows: IntArray, count: int) -> IntArray:
    """The `count` first of `rows` (all, if there are fewer), in order. Linear in the rows, sorts only the result."""
    if count <= 0:
        return rows[:0]
    if count < len(rows):
        rows = _smallest(requests.arrival_time_us, requests.id, rows, count)
    return in_order(requests, rows)


def _smallest(key: IntArray, tie: IntArray, rows: IntArray, count: int) -> IntArray:
    """The `count` rows with the least (key, tie), in any order. 0 < count < len(rows)."""
    keys = key[rows]
    bound = np.partition(keys, count - 1)[count - 1]
    before, tied = rows[keys < bound], rows[keys == bound]
    missing = count - len(before)
    if missing < len(tied):
        tied = tied[np.argpartition(tie[tied], missing - 1)[:missing]]
    return np.concatenate((before, tied))
