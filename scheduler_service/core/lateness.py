"""Whose first token can still be in time: the ranks of FEWEST_LATE.

What no order can do in time is done late, and the question is for how many. Where all have the same target the answer
is known (Hodgson's algorithm: J. M. Moore, 1968). Go through the queue in order of arrival and add up what the prompts
take; whenever one would end too late, the longest so far is the one to be late, since nobody else makes as much room.
As few as can be are late then, of those that are here. So who is in time comes first, by arrival, and as long as the
machine keeps up this is FIFO; who is late comes after them, the shortest prompt first.

Before both stand, by arrival, those that have run before, whose readers wait already, and those that have waited for
`aging_seconds`: nobody is passed by one that arrives later than that after it.

How fast prompts are computed is what this pass would do: its prefill tokens over its time, by the latency model.
Without a model nothing takes time, and only who has waited for longer than the target is late.
"""

from __future__ import annotations

import heapq

import numpy as np

from scheduler_service.core.case import (
    ARRIVAL_TIME_US,
    ID,
    STATUS,
    Case,
    in_decode,
    num_lacking_tokens,
    ran_before,
    rows_with,
)
from scheduler_service.core.compiled import compiled, rule
from scheduler_service.core.composition import prefill_token_time_us
from scheduler_service.core.sorting import places_in_order
from scheduler_service.core.state import IntArray, RequestStatus

# Ranks of three classes, one before the other: arrival times, and numbers of tokens, are this far from 0 at most.
_FARTHEST = 2**59
_BEFORE_ALL, _IN_TIME, _LATE = -(2**61), 0, 2**61


@compiled
def rank_fewest_late(rank: IntArray, case: Case) -> None:
    """Write what FEWEST_LATE ranks by, which looks at all prompts together."""
    num_ahead, newcomers, count = 0, np.empty(len(rank), dtype=np.int64), 0
    for row in range(len(rank)):
        is_new = case.requests[STATUS, row] == RequestStatus.WAITING and not ran_before(case, row)
        if is_new and _waited_us(case, row) < case.policy.aging_us:
            rank[row] = _LATE + min(num_lacking_tokens(case, row), _FARTHEST)
            if _waited_us(case, row) <= case.policy.target_time_to_first_token_us:
                newcomers[count] = row
                count += 1
        else:
            rank[row] = _BEFORE_ALL + _arrival_us(case, row)
            if not in_decode(case, row):
                num_ahead += num_lacking_tokens(case, row)
    for row in _in_time(newcomers[:count], num_ahead, case):
        if row >= 0:
            rank[row] = _IN_TIME + _arrival_us(case, row)


@compiled
def _in_time(newcomers: IntArray, num_ahead: int, case: Case) -> IntArray:
    """Rows in order of arrival, -1 in the place of those that are late. `num_ahead`: prompt tokens before them all."""
    keys = np.empty((2, len(newcomers)), dtype=np.int64)
    for place in range(len(newcomers)):
        keys[0, place] = case.requests[ARRIVAL_TIME_US, newcomers[place]]
        keys[1, place] = case.requests[ID, newcomers[place]]
    order, token_us = places_in_order(keys), prefill_token_time_us(rows_with(RequestStatus.RUNNING, case), case)
    longest_first = [(0, 0) for _ in range(0)]  # none yet; machine code has to know of what
    rows, num_tokens = np.empty(len(newcomers), dtype=np.int64), num_ahead
    for place in range(len(newcomers)):
        row = newcomers[order[place]]
        rows[place] = row
        heapq.heappush(longest_first, (-num_lacking_tokens(case, row), -place))
        num_tokens += num_lacking_tokens(case, row)
        left_us = case.policy.target_time_to_first_token_us - _waited_us(case, row)
        while len(longest_first) > 0 and num_tokens * token_us > float(left_us):
            less_tokens, less_place = heapq.heappop(longest_first)
            num_tokens += less_tokens
            rows[-less_place] = -1
    return rows


@rule
def _arrival_us(case: Case, row: int) -> int:
    return min(max(case.requests[ARRIVAL_TIME_US, row], -_FARTHEST), _FARTHEST)


@rule
def _waited_us(case: Case, row: int) -> int:
    return min(max(case.now_us, -_FARTHEST), _FARTHEST) - _arrival_us(case, row)
