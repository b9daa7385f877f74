"""Whose first token can still be in time: the ranks of FEWEST_LATE.

What no order can do in time is done late, and the question is for how many. Where all have the same target the answer
is known (Hodgson's algorithm: J. M. Moore, 1968). Go through the queue in order of arrival and add up what the prompts
take; whenever one would end too late, the longest so far is the one to be late, since nobody else makes as much room.
As few as can be are late then, of those that are here. Who is in time comes first, and who is late after them, the
shortest prompt first.

Those in time go the shorter first, as far as the longer can wait, so that first tokens come as soon as can be on
average. The last of them is the longest that can wait for all others; of those that are left the last is found in the
same way; where none can wait it is the last to arrive (W. E. Smith's backward rule, 1956, which is optimal where all
have a time by which they must be done). Nobody waits for more than a part of its target in this way, since those yet to
come make everyone wait longer. Under IN_ORDER the prompts in progress are among them, as far as nobody has read a token
of theirs and they are not late: they give way to shorter ones (`giving_way.py`).

Before all stand, by arrival, the others that run, those that have run before, whose readers wait already, and those
that have waited for `aging_seconds`: nobody is passed by one that arrives later than that after it.

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
    NUM_OUTPUT_TOKENS,
    NUM_PREEMPTIONS,
    STATUS,
    Case,
    in_decode,
    is_on_device,
    num_lacking_tokens,
    ran_before,
    rows_with,
)
from scheduler_service.core.compiled import compiled, rule
from scheduler_service.core.composition import prefill_budget, prefill_token_time_us
from scheduler_service.core.policy import PrefillSharing
from scheduler_service.core.rows import nowhere, those_at, those_where
from scheduler_service.core.sorting import places_in_order
from scheduler_service.core.state import IntArray, RequestStatus

# Ranks of three classes, one before the other: arrival times, and numbers of tokens, are this far from 0 at most.
_FARTHEST = 2**59
_BEFORE_ALL, _IN_TIME, _LATE = -(2**61), 0, 2**61
# Of the target: so long one that would be in time may wait for shorter ones. With all of it those that come meanwhile
# would make it late (docs/adr/0051).
_MAY_WAIT = 0.5


@compiled
def rank_fewest_late(rank: IntArray, case: Case) -> None:
    """Write what FEWEST_LATE ranks by, which looks at all prompts together."""
    num_ahead, num_in_progress, num_in_all = 0, 0, 0
    prompts, count = np.empty(len(rank), dtype=np.int64), 0
    for row in range(len(rank)):
        num_tokens = 0 if in_decode(case, row) else num_lacking_tokens(case, row)
        num_in_all += num_tokens
        is_young = _waited_us(case, row) < case.policy.aging_us
        is_new = is_young and case.requests[STATUS, row] == RequestStatus.WAITING and not ran_before(case, row)
        gives_way = is_young and _is_in_progress(case, row)
        if is_new:
            rank[row] = _LATE + min(num_tokens, _FARTHEST)
        else:
            rank[row] = _BEFORE_ALL + _arrival_us(case, row)
            num_ahead += num_tokens
        if (is_new or gives_way) and _waited_us(case, row) <= case.policy.target_time_to_first_token_us:
            prompts[count] = row
            count += 1
            num_in_progress += num_tokens if gives_way else 0
    running = rows_with(RequestStatus.RUNNING, case)
    token_us = prefill_token_time_us(running, case)
    most_beside = float(max(prefill_budget(running, case) - case.policy.chunk_size_tokens, 0))
    in_time = _in_time(_by_arrival(prompts[:count], case), num_ahead, num_in_all, token_us, most_beside, case)
    _rank_shorter_first(rank, in_time, num_ahead - num_in_progress, token_us, case)


@rule
def _is_in_progress(case: Case, row: int) -> bool:
    """Whether it is a prompt in progress that may give way: nobody has read a token of its answer."""
    is_first = case.requests[NUM_OUTPUT_TOKENS, row] == 0 and case.requests[NUM_PREEMPTIONS, row] == 0
    runs = case.requests[STATUS, row] == RequestStatus.RUNNING
    return case.policy.prefill_sharing == PrefillSharing.IN_ORDER and runs and is_first


@compiled
def _by_arrival(rows: IntArray, case: Case) -> IntArray:
    keys = np.empty((2, len(rows)), dtype=np.int64)
    for place in range(len(rows)):
        keys[0, place] = case.requests[ARRIVAL_TIME_US, rows[place]]
        keys[1, place] = case.requests[ID, rows[place]]
    return those_at(rows, places_in_order(keys))


@compiled
def _in_time(
    prompts: IntArray, num_ahead: int, num_in_all: int, token_us: float, most_beside: float, case: Case
) -> IntArray:
    """Those of the prompts, which are by arrival, that are in time if each goes after those before it.

    `num_ahead`: prompt tokens before those that wait, `num_in_all`: of everyone. `most_beside`: tokens of a pass beside
    a chunk.
    """
    longest_first = [(0, 0) for _ in range(0)]  # none yet; machine code has to know of what
    is_in_time, num_tokens = nowhere(len(prompts)), num_ahead
    for place in range(len(prompts)):
        row = prompts[place]
        if is_on_device(case, row):
            is_in_time[place] = True  # it was let in as such, and is among those ahead
            continue
        lacking = num_lacking_tokens(case, row)
        left_us = float(case.policy.target_time_to_first_token_us - _waited_us(case, row))
        # All chunks but the last share their passes with others, as far as there are any.
        beside = float((lacking - 1) // case.policy.chunk_size_tokens) * most_beside
        with_it = num_tokens + lacking
        if (with_it + min(beside, float(num_in_all - with_it))) * token_us <= left_us:
            num_tokens, is_in_time[place] = with_it, True
            heapq.heappush(longest_first, (-lacking, -place))
            continue
        longest, its_place = longest_first[0] if len(longest_first) > 0 else (0, 0)
        with_it += longest
        if -longest > lacking and (with_it + min(beside, float(num_in_all - with_it))) * token_us <= left_us:
            num_tokens, is_in_time[place] = with_it, True
            heapq.heapreplace(longest_first, (-lacking, -place))
            is_in_time[-its_place] = False
    return those_where(prompts, is_in_time, True)


@compiled
def _rank_shorter_first(rank: IntArray, rows: IntArray, num_ahead: int, token_us: float, case: Case) -> None:
    """Rank those in time, which are by arrival. `num_ahead`: prompt tokens before them all."""
    longest_first = [(0, 0) for _ in range(0)]
    num_tokens, num_left = num_ahead, len(rows)  # those before `num_left` cannot wait for all these tokens
    for row in rows:
        num_tokens += num_lacking_tokens(case, row)
    most_us = _MAY_WAIT * float(case.policy.target_time_to_first_token_us)
    for position in range(len(rows) - 1, -1, -1):
        while num_left > 0 and num_tokens * token_us <= most_us - float(_waited_us(case, rows[num_left - 1])):
            num_left -= 1
            heapq.heappush(longest_first, (-num_lacking_tokens(case, rows[num_left]), -num_left))
        if len(longest_first) > 0:
            row = rows[-heapq.heappop(longest_first)[1]]
        else:
            num_left -= 1
            row = rows[num_left]
        rank[row] = _IN_TIME + position
        num_tokens -= num_lacking_tokens(case, row)


@rule
def _arrival_us(case: Case, row: int) -> int:
    return min(max(case.requests[ARRIVAL_TIME_US, row], -_FARTHEST), _FARTHEST)


@rule
def _waited_us(case: Case, row: int) -> int:
    return min(max(case.now_us, -_FARTHEST), _FARTHEST) - _arrival_us(case, row)
