"""Whose first token can still be in time: the ranks of FEWEST_LATE.

What no order can do in time is done late, and the question is for how many. Where all have the same target the answer
is known (Hodgson's algorithm: J. M. Moore, 1968). Go through the queue in order of arrival and add up what the prompts
take; whenever one would end too late, the longest so far is the one to be late, since nobody else makes as much room.
As few as can be are late then, of those that are here. So who is in time comes first, by arrival, and as long as the
machine keeps up this is FIFO; who is late comes after them, the shortest prompt first.

Before both stand, by arrival, those that have run before, whose readers wait already, and those that have waited for
`aging_seconds`: nobody is passed by one that arrives later than that after it.

How fast prompts are computed is what this pass would do: its prefill tokens over its time, by the latency model.
Without a model nothing takes time, and only who has waited for longer than the target is late. Where chunks are smaller
than the pass a prompt of several shares its passes with those behind it, and ends later by what these compute until
its last chunk: so much is counted for it alone, and it does not become one of those in time at the cost of two.
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
from scheduler_service.core.composition import prefill_budget, prefill_token_time_us
from scheduler_service.core.sorting import places_in_order
from scheduler_service.core.state import IntArray, RequestStatus

# Ranks of three classes, one before the other: arrival times, and numbers of tokens, are this far from 0 at most.
_FARTHEST = 2**59
_BEFORE_ALL, _IN_TIME, _LATE = -(2**61), 0, 2**61


@compiled
def rank_fewest_late(rank: IntArray, case: Case) -> None:
    """Write what FEWEST_LATE ranks by, which looks at all prompts together."""
    num_ahead, num_in_all, newcomers, count = 0, 0, np.empty(len(rank), dtype=np.int64), 0
    for row in range(len(rank)):
        num_tokens = 0 if in_decode(case, row) else num_lacking_tokens(case, row)
        num_in_all += num_tokens
        is_new = case.requests[STATUS, row] == RequestStatus.WAITING and not ran_before(case, row)
        if is_new and _waited_us(case, row) < case.policy.aging_us:
            rank[row] = _LATE + min(num_tokens, _FARTHEST)
            if _waited_us(case, row) <= case.policy.target_time_to_first_token_us:
                newcomers[count] = row
                count += 1
        else:
            rank[row] = _BEFORE_ALL + _arrival_us(case, row)
            num_ahead += num_tokens
    for row in _in_time(newcomers[:count], num_ahead, num_in_all, case):
        if row >= 0:
            rank[row] = _IN_TIME + _arrival_us(case, row)


@compiled
def _in_time(newcomers: IntArray, num_ahead: int, num_in_all: int, case: Case) -> IntArray:
    """Rows in order of arrival, -1 in the place of those that are late.

    `num_ahead`: prompt tokens before them all, `num_in_all`: of everyone.
    """
    keys = np.empty((2, len(newcomers)), dtype=np.int64)
    for place in range(len(newcomers)):
        keys[0, place] = case.requests[ARRIVAL_TIME_US, newcomers[place]]
        keys[1, place] = case.requests[ID, newcomers[place]]
    running = rows_with(RequestStatus.RUNNING, case)
    order, token_us = places_in_order(keys), prefill_token_time_us(running, case)
    most_beside = float(max(prefill_budget(running, case) - case.policy.chunk_size_tokens, 0))
    longest_first = [(0, 0) for _ in range(0)]  # none yet; machine code has to know of what
    rows, num_tokens = np.empty(len(newcomers), dtype=np.int64), num_ahead
    for place in range(len(newcomers)):
        row = newcomers[order[place]]
        lacking = num_lacking_tokens(case, row)
        left_us = float(case.policy.target_time_to_first_token_us - _waited_us(case, row))
        # All chunks but the last share their passes with others, as far as there are any.
        beside = float((lacking - 1) // case.policy.chunk_size_tokens) * most_beside
        with_it = num_tokens + lacking
        rows[place] = row
        if (with_it + min(beside, float(num_in_all - with_it))) * token_us <= left_us:
            num_tokens = with_it
            heapq.heappush(longest_first, (-lacking, -place))
            continue
        longest, its_place = longest_first[0] if len(longest_first) > 0 else (0, 0)
        with_it += longest
        if -longest > lacking and (with_it + min(beside, float(num_in_all - with_it))) * token_us <= left_us:
            num_tokens = with_it
            heapq.heapreplace(longest_first, (-lacking, -place))
            rows[-its_place] = -1
        else:
            rows[place] = -1
    return rows


@rule
def _arrival_us(case: Case, row: int) -> int:
    return min(max(case.requests[ARRIVAL_TIME_US, row], -_FARTHEST), _FARTHEST)


@rule
def _waited_us(case: Case, row: int) -> int:
    return min(max(case.now_us, -_FARTHEST), _FARTHEST) - _arrival_us(case, row)
