"""Who enters the running set from the queue.

From its head as many enter as fit: `claims.py` says what that takes, `ordering.py` who stands where. What happens
behind one that does not fit is told in `passing.py`.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from scheduler_service.core.claims import Room, claims_of
from scheduler_service.core.executor_plan import Reason, Shortfall
from scheduler_service.core.fairness import first_in_turn
from scheduler_service.core.ordering import first_in_queue
from scheduler_service.core.passing import LOOK_AHEAD, pass_by
from scheduler_service.core.policy import HeadOfLine, Ordering, Policy, Preemption
from scheduler_service.core.shared_prefix import Held
from scheduler_service.core.state import NO_ROWS, ExecutorState, IntArray, Requests, RequestStatus, rows_where


class Entering(NamedTuple):
    """Who enters, in the order of the queue, with its tokens; and what keeps the first one out that stays behind.

    `num_in_turn`: the others, which come last, passed that one.
    """

    requests: Requests
    num_tokens: IntArray
    num_in_turn: int
    shortfall: Shortfall | None


def queued(ranked: Requests, rejected: IntArray) -> Requests:
    """Those that wait or are swapped, and are not rejected; in no order."""
    if len(rejected) == 0:
        return ranked.queued
    return ranked.queued.take(rows_where(np.isin(ranked.queued.rows, rejected, invert=True)))


def head_of_queue(queued: Requests, count: int, executor: ExecutorState, policy: Policy) -> Requests:
    """The `count` first of the queue, in order."""
    if policy.ordering is Ordering.FAIR:
        return first_in_turn(executor, queued, count, policy)
    return first_in_queue(queued, count)


def num_candidates(room: Room, policy: Policy) -> int:
    """How many of the queue to look at: one more than may enter, so that the last can be told what it lacks."""
    if room.ran_out:
        return 1
    most = max(min(room.num_seqs, room.tokens.num_tokens), 0)
    if policy.preemption is Preemption.FOR_PRIORITY:
        most += len(room.on_device)
    return 1 + most + (LOOK_AHEAD if most > 0 and policy.head_of_line is not HeadOfLine.STRICT else 0)


def enter(candidates: Requests, room: Room, executor: ExecutorState, policy: Policy) -> Entering:
    """Let in as many of `candidates`, the head of the queue, as fit: the longest prefix, and who may pass the next."""
    if len(candidates) == 0:
        return Entering(requests=candidates, num_tokens=NO_ROWS, num_in_turn=0, shortfall=None)
    claims = claims_of(candidates, room, executor, policy)
    num_entering = claims.num_fitting(room)
    requests, num_tokens = candidates.first(num_entering), claims.num_tokens[:num_entering]
    if policy.head_of_line is not HeadOfLine.STRICT and not room.ran_out and num_entering + 1 < len(candidates):
        behind, their_tokens = pass_by(candidates, num_entering, claims, room, executor, policy)
        requests = requests.beside(candidates.take(behind))
        num_tokens = np.concatenate((num_tokens, their_tokens))
    return Entering(
        requests=requests,
        num_tokens=num_tokens,
        num_in_turn=num_entering,
        shortfall=claims.shortfall(num_entering, room) if num_entering < len(candidates) else None,
    )


def reasons_to_enter(entering: Entering, policy: Policy) -> IntArray:
    """Why each entered."""
    requests = entering.requests
    reasons = np.full(len(requests), int(Reason.ADMITTED))
    if requests.whole.anyone_ran_before:
        reasons[requests.num_preemptions > 0] = int(Reason.READMITTED)
    if policy.head_of_line is not HeadOfLine.STRICT:
        backfills = policy.head_of_line is HeadOfLine.BACKFILL
        reasons[entering.num_in_turn :] = int(Reason.BACKFILLED if backfills else Reason.SKIPPED_AHEAD)
    if requests.whole.anyone_swapped:
        reasons[requests.having(RequestStatus.SWAPPED)] = int(Reason.RESUMED)
    return reasons


def shortfall(ranked: Requests, entering: Entering, held: Held, rejected: IntArray) -> Shortfall | None:
    """What keeps the first out that stays behind; who is held for a prefix comes after all others."""
    short = entering.shortfall
    if short is not None and (len(rejected) == 0 or short.id not in ranked.id[rejected]):
        return short
    if len(held.requests) == 0:
        return None
    waiting = held.requests.take(rows_where(np.isin(held.requests.rows, rejected, invert=True)))
    if len(waiting) == 0:
        return None
    first = first_in_queue(waiting, 1)
    return Shortfall(id=int(first.id[0]), reason=Reason.WAITING_FOR_SHARED_PREFIX)
