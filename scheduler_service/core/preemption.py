"""Who leaves the device for more important work (FOR_PRIORITY).

When the head of the queue lacks blocks or a place, running requests leave for it if it outranks them: it has the higher
priority, and stands before them in the order, to which waiting belongs. Equal priority never evicts equal priority, and
nobody is thrown out again by one that it overtook by waiting. Among those that are outranked the least important leaves
first, then in the order of `victims.py`; who was evicted `max_preemptions` times stays.

Nobody leaves in vain: as few leave as must, and only where those for whom they do then enter in the same pass. In a
pass in which blocks ran out nobody enters, so nobody leaves for anyone.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from scheduler_service.core.admission import Entering, enter
from scheduler_service.core.cached_prefixes import blocks_taken_by, count_in
from scheduler_service.core.case import PRIORITY, UNBOUNDED, Case
from scheduler_service.core.claims import Room, room_beside
from scheduler_service.core.compiled import compiled, lean
from scheduler_service.core.composition import share_tokens
from scheduler_service.core.eviction import RunningSet, without
from scheduler_service.core.executor_plan import Reason
from scheduler_service.core.memory import blocks_taken_up, kept_free
from scheduler_service.core.rows import mark, nowhere, those_at, those_where, zeros
from scheduler_service.core.sorting import places_in_order
from scheduler_service.core.state import IntArray
from scheduler_service.core.victims import in_order_of_staying, is_protected

_FOR_PRIORITY = int(Reason.EVICTED_FOR_PRIORITY)


@compiled
def make_way(
    stay: RunningSet, candidates: IntArray, room: Room, entering: Entering, case: Case
) -> tuple[RunningSet, Entering]:
    """Who stays and who enters, once those have left that the head of the queue outranks and needs to go.

    `entering`: who of `candidates` enters the `room` there is beside all of `stay`; returned as it is if nobody leaves.
    """
    missing = entering.missing.reason
    if missing != Reason.WAITING_FOR_BLOCKS and missing != Reason.WAITING_FOR_SEQS:
        return stay, entering
    head = entering.num_in_turn
    waiting = candidates[head:]
    victims = _outranked(stay.kept, waiting[0], case)
    if len(victims) == 0:
        return stay, entering
    num_blocks, num_users = room.num_blocks, room.num_users.copy()
    for row in candidates[:head]:
        num_blocks -= _take_up(row, num_users, case)
    fewest = _fewest(stay, victims, waiting, num_users, num_blocks, room.num_seqs - head, case)
    if fewest.num_leaving == 0:
        return stay, entering
    leaves = nowhere(len(stay.kept))
    mark(leaves, victims[: fewest.num_leaving], True)
    num_tokens = share_tokens(those_where(stay.kept, leaves, False), case)
    smaller = without(stay.kept, leaves, num_tokens, _FOR_PRIORITY, case, False)
    then = enter(candidates, room_beside(smaller, case), case)
    if then.num_in_turn < head + fewest.num_entering:
        return stay, entering
    return smaller, then


@compiled
def _outranked(running: IntArray, first: int, case: Case) -> IntArray:
    """Places of those that run whom the first that waits outranks, the first victim first."""
    victims, count = zeros(len(running)), 0
    staying = in_order_of_staying(running, case)
    for index in range(len(staying) - 1, -1, -1):
        row = running[staying[index]]
        is_less_important = case.requests[PRIORITY, row] < case.requests[PRIORITY, first]
        if is_less_important and case.rank[row] > case.rank[first] and not is_protected(case, row):
            victims[count] = staying[index]
            count += 1
    priority = np.empty((1, count), dtype=np.int64)
    for index in range(count):
        priority[0, index] = case.requests[PRIORITY, running[victims[index]]]
    return those_at(victims, places_in_order(priority))


class _Fewest(NamedTuple):
    """How many leave, the first victims, and how many enter for it."""

    num_leaving: int
    num_entering: int


@lean
def _take_up(row: int, num_users: IntArray, case: Case) -> int:
    """Count one in that enters beside `num_users`. Returns the free blocks that it takes up."""
    num_taken = blocks_taken_by(case, row, num_users)
    count_in(case, row, num_users)
    return blocks_taken_up(case, row, case.policy.admission) - num_taken


@lean
def _fewest(
    stay: RunningSet,
    victims: IntArray,
    waiting: IntArray,
    num_users: IntArray,
    num_blocks: int,
    num_seqs: int,
    case: Case,
) -> _Fewest:
    """How many of `victims` leave, and how many of `waiting` enter for it: as many as outrank all whom they need to go.

    `num_blocks`, `num_seqs`: what there is for them already, beside `num_users`.
    """
    fewest = _Fewest(0, 0)
    need, freed, count, most_priority, least_rank = 0, 0, 0, -UNBOUNDED, case.rank[waiting[0]]
    for place in range(len(waiting)):
        row = waiting[place]
        need += _take_up(row, num_users, case)
        kept = kept_free(case, row, case.limits.max_num_seqs - num_seqs + place)
        while freed < need + kept - num_blocks or count < 1 + place - num_seqs:
            if count == len(victims):
                return fewest
            leaving = stay.kept[victims[count]]
            freed += blocks_taken_up(case, leaving, case.policy.admission)
            most_priority = max(most_priority, case.requests[PRIORITY, leaving])
            least_rank = case.rank[leaving] if count == 0 else min(least_rank, case.rank[leaving])
            count += 1
        outranks = most_priority < case.requests[PRIORITY, row] and least_rank > case.rank[row]
        if count > 0 and not outranks:
            return fewest
        fewest = _Fewest(count, place + 1)
    return fewest
