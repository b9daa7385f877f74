"""Who leaves the device for more important work (FOR_PRIORITY).

When the head of the queue lacks blocks or a place, running requests leave for it if it outranks them: it has the higher
priority, and stands before them in the order, to which waiting belongs. Equal priority never evicts equal priority, and
nobody is thrown out again by one that it overtook by waiting. Among those that are outranked the least important leaves
first, then in the order of `victims.py`; who was evicted `max_preemptions` times stays.

Nobody leaves in vain: as few leave as must, and only where those for whom they do then enter in the same pass. In a
pass in which blocks ran out nobody enters, so nobody leaves for anyone.
"""

from __future__ import annotations

import numpy as np

from scheduler_service.core.admission import Entering, enter
from scheduler_service.core.claims import Room, room_beside
from scheduler_service.core.composition import share_tokens
from scheduler_service.core.eviction import RunningSet, without
from scheduler_service.core.executor_plan import Reason
from scheduler_service.core.memory import blocks_to_enter, kept_free
from scheduler_service.core.policy import Policy
from scheduler_service.core.state import ExecutorState, IntArray, Requests, length_of_prefix, rows_where
from scheduler_service.core.victims import freed_blocks, in_order_of_staying, is_protected


def make_way(
    stay: RunningSet,
    candidates: Requests,
    room: Room,
    entering: Entering,
    executor: ExecutorState,
    policy: Policy,
) -> tuple[RunningSet, Entering]:
    """Who stays and who enters, once those have left that the head of the queue outranks and needs to go.

    `entering`: who of `candidates` enters the `room` there is beside all of `stay`; returned as it is if nobody leaves.
    """
    short = entering.shortfall
    if short is None or short.reason not in (Reason.WAITING_FOR_BLOCKS, Reason.WAITING_FOR_SEQS):
        return stay, entering
    head = entering.num_in_turn
    before, waiting = candidates.first(head), candidates.take(np.arange(head, len(candidates)))
    victims = _outranked(stay.kept, waiting, executor, policy)
    if len(victims) == 0:
        return stay, entering
    num_blocks = room.num_blocks - int(blocks_to_enter(before, executor.limits, policy).sum())
    num_victims, num_more = _fewest(stay, victims, waiting, num_blocks, room.num_seqs - head, executor, policy)
    if num_victims == 0:
        return stay, entering
    smaller = _without(stay.kept, np.sort(victims[:num_victims]), executor, policy)
    then = enter(candidates, room_beside(smaller, executor, policy), executor, policy)
    if then.num_in_turn < head + num_more:
        return stay, entering
    return smaller, then


def _without(running: Requests, leaving: IntArray, executor: ExecutorState, policy: Policy) -> RunningSet:
    stays = np.ones(len(running), dtype=np.bool_)
    stays[leaving] = False
    num_tokens = share_tokens(running.take(rows_where(stays)), executor, policy)
    return without(running, leaving, num_tokens, executor, policy, Reason.EVICTED_FOR_PRIORITY)


def _outranked(running: Requests, waiting: Requests, executor: ExecutorState, policy: Policy) -> IntArray:
    """Rows of those that the first of `waiting` outranks, the first victim first."""
    assert running.rank is not None
    assert waiting.rank is not None
    outranked = (running.priority < waiting.priority[0]) & (running.rank > waiting.rank[0])
    outranked &= ~is_protected(running, policy)
    last_first = in_order_of_staying(running, executor.limits.block_size, policy)[::-1]
    last_first = last_first[outranked[last_first]]
    least_first: IntArray = last_first[np.argsort(running.priority[last_first], kind="stable")]
    return least_first


def _fewest(
    stay: RunningSet,
    victims: IntArray,
    waiting: Requests,
    num_blocks: int,
    num_seqs: int,
    executor: ExecutorState,
    policy: Policy,
) -> tuple[int, int]:
    """How many of `victims` leave, and how many of `waiting` enter for it: as many as outrank all whom they need to go.

    `num_blocks`, `num_seqs`: what there is for them already.
    """
    limits, leaving = executor.limits, stay.kept.take(victims)
    assert leaving.rank is not None
    assert waiting.rank is not None
    freed = np.cumsum(freed_blocks(leaving) + stay.held[victims])
    num_before = np.arange(len(waiting))
    need = np.cumsum(blocks_to_enter(waiting, limits, policy))
    need += kept_free(waiting, limits.max_num_seqs - num_seqs + num_before, limits, policy)
    for_blocks = np.where(need > num_blocks, 1 + np.searchsorted(freed, need - num_blocks), 0)
    needed = np.maximum.accumulate(np.maximum(for_blocks, np.maximum(1 + num_before - num_seqs, 0)))
    last = np.clip(needed, 1, len(victims)) - 1
    outranks = np.maximum.accumulate(leaving.priority)[last] < waiting.priority
    outranks &= np.minimum.accumulate(leaving.rank)[last] > waiting.rank
    may = (needed == 0) | (outranks & (needed <= len(victims)))
    num_entering = length_of_prefix(may)
    return (int(needed[num_entering - 1]), num_entering) if num_entering > 0 else (0, 0)
