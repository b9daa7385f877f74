"""Who enters the running set from the queue.

From its head as many enter as fit: `claims.py` says what that takes, `ordering.py` who stands where. What happens
behind one that does not fit is told in `passing.py`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from scheduler_service.core.claims import Room, claims_of
from scheduler_service.core.executor_plan import Reason, Shortfall
from scheduler_service.core.fairness import first_in_turn
from scheduler_service.core.ordering import first_in_queue
from scheduler_service.core.passing import LOOK_AHEAD, pass_by
from scheduler_service.core.policy import HeadOfLine, Ordering, Policy, Preemption
from scheduler_service.core.shared_prefix import Held
from scheduler_service.core.state import (
    BoolArray,
    ExecutorState,
    IntArray,
    Requests,
    RequestStatus,
    length_of_prefix,
    rows_where,
)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Entering:
    """Who enters, in the order of the queue, with its tokens; and what keeps the first one out that stays behind.

    `passed`: which of those that enter passed that one.
    """

    requests: Requests
    num_tokens: IntArray
    passed: BoolArray
    shortfall: Shortfall | None


def queued_rows(ranked: Requests, rejected: IntArray) -> IntArray:
    """Rows of the queue: those that wait or are swapped."""
    queued = ranked.having(RequestStatus.WAITING) | ranked.having(RequestStatus.SWAPPED)
    if len(rejected) > 0:
        queued[rejected] = False
    return rows_where(queued)


def head_of_queue(ranked: Requests, queued: IntArray, count: int, executor: ExecutorState, policy: Policy) -> Requests:
    """The `count` first of the queue, in order."""
    if policy.ordering is Ordering.FAIR:
        return ranked.take(first_in_turn(executor, ranked, queued, count, policy))
    return ranked.take(first_in_queue(ranked, queued, count))


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
    claims = claims_of(candidates, room, executor, policy)
    fits = claims.fits(room)
    num_entering = length_of_prefix(fits)
    shortfall = claims.shortfall(num_entering, room) if num_entering < len(candidates) else None
    entering = Entering(
        requests=candidates.first(num_entering),
        num_tokens=claims.num_tokens[:num_entering],
        passed=np.zeros(num_entering, dtype=np.bool_),
        shortfall=shortfall,
    )
    if policy.head_of_line is HeadOfLine.STRICT or room.ran_out or num_entering + 1 >= len(candidates):
        return entering
    behind, their_tokens = pass_by(candidates, num_entering, claims, room, executor, policy)
    return Entering(
        requests=entering.requests.beside(candidates.take(behind)),
        num_tokens=np.concatenate((entering.num_tokens, their_tokens)),
        passed=np.append(entering.passed, np.ones(len(behind), dtype=np.bool_)),
        shortfall=shortfall,
    )


def reasons_to_enter(entering: Entering, policy: Policy) -> IntArray:
    """Why each entered."""
    requests = entering.requests
    reasons = np.where(requests.num_preemptions > 0, int(Reason.READMITTED), int(Reason.ADMITTED))
    if policy.head_of_line is not HeadOfLine.STRICT:
        backfills = policy.head_of_line is HeadOfLine.BACKFILL
        reasons[entering.passed] = int(Reason.BACKFILLED if backfills else Reason.SKIPPED_AHEAD)
    return np.where(requests.having(RequestStatus.SWAPPED), int(Reason.RESUMED), reasons)


def shortfall(ranked: Requests, entering: Entering, held: Held, rejected: IntArray) -> Shortfall | None:
    """What keeps the first out that stays behind; who is held for a prefix comes after all others."""
    short = entering.shortfall
    if short is not None and short.id not in ranked.id[rejected]:
        return short
    if len(held.rows) == 0:
        return None
    first = first_in_queue(ranked, held.rows[~np.isin(held.rows, rejected)], 1)
    return Shortfall(id=int(ranked.id[first[0]]), reason=Reason.WAITING_FOR_SHARED_PREFIX) if len(first) > 0 else None
