"""Who enters the running set from the queue.

From its head as many enter as fit: `claims.py` says what that takes, `ordering.py` who stands where. What happens
behind one that does not fit is told in `passing.py`.
"""

from __future__ import annotations

from typing import NamedTuple

from scheduler_service.core.case import NUM_PREEMPTIONS, STATUS, Case, is_on_device
from scheduler_service.core.claims import NOTHING, Missing, Room, claims_of
from scheduler_service.core.compiled import compiled, lean
from scheduler_service.core.executor_plan import Reason
from scheduler_service.core.fairness import first_in_turn
from scheduler_service.core.ordering import comes_before_in_queue
from scheduler_service.core.passing import LOOK_AHEAD, pass_by
from scheduler_service.core.policy import HeadOfLine, Ordering, Preemption
from scheduler_service.core.rows import joined, total, zeros
from scheduler_service.core.sorting import first_in_order
from scheduler_service.core.state import BoolArray, IntArray, RequestStatus

_FOR_SHARED_PREFIX = int(Reason.WAITING_FOR_SHARED_PREFIX)


class Entering(NamedTuple):
    """Who enters, in the order of the queue, with its tokens; and what keeps the first one out that stays behind.

    `num_in_turn`: the others, which come last, passed that one. `num_blocks_left`: free blocks that they leave, less
    all that is held for someone.
    """

    rows: IntArray
    num_tokens: IntArray
    num_in_turn: int
    num_blocks_left: int
    missing: Missing


@compiled
def queued(is_rejected: BoolArray, case: Case) -> IntArray:
    """Those that wait or are swapped, and are not rejected; in no order."""
    rows, count = zeros(len(is_rejected)), 0
    for row in range(len(is_rejected)):
        if not is_on_device(case, row) and not is_rejected[row]:
            rows[count] = row
            count += 1
    return rows[:count]


@compiled
def head_of_queue(queue: IntArray, count: int, case: Case) -> IntArray:
    """The `count` first of the queue, in order."""
    if case.policy.ordering == Ordering.FAIR:
        return first_in_turn(queue, count, case)
    return first_in_order(queue, count, comes_before_in_queue, case)


@lean
def num_candidates(room: Room, case: Case) -> int:
    """How many of the queue to look at: one more than may enter, so that the last can be told what it lacks."""
    if room.ran_out:
        return 1
    most = max(min(room.num_seqs, room.tokens.num_tokens + total(room.given.num_tokens)), 0)
    if case.policy.preemption == Preemption.FOR_PRIORITY:
        most += len(room.on_device)
    return 1 + most + (LOOK_AHEAD if most > 0 and case.policy.head_of_line != HeadOfLine.STRICT else 0)


@compiled
def enter(candidates: IntArray, room: Room, case: Case) -> Entering:
    """Let in as many of `candidates`, the head of the queue, as fit: the first, and who may pass the next."""
    claims = claims_of(candidates, room, case, case.policy.admission)
    count, num_tokens = len(claims.num_tokens), claims.num_tokens
    rows, num_blocks_left = candidates[:count], room.num_blocks - total(claims.num_blocks)
    if case.policy.head_of_line != HeadOfLine.STRICT and not room.ran_out and count + 1 < len(candidates):
        passing = pass_by(candidates, claims, room, case)
        rows, num_tokens = joined(rows, passing.rows), joined(num_tokens, passing.num_tokens)
        num_blocks_left -= passing.num_blocks
    return Entering(rows, num_tokens, count, num_blocks_left, claims.missing)


@compiled
def with_tokens(entering: Entering, num_tokens: IntArray) -> Entering:
    """The same with other tokens."""
    return Entering(entering.rows, num_tokens, entering.num_in_turn, entering.num_blocks_left, entering.missing)


@lean
def reason_to_enter(entering: Entering, place: int, case: Case) -> int:
    """Why the one at a place entered."""
    row, head_of_line = entering.rows[place], case.policy.head_of_line
    if case.requests[STATUS, row] == RequestStatus.SWAPPED:
        return Reason.RESUMED
    if place >= entering.num_in_turn:
        return Reason.BACKFILLED if head_of_line == HeadOfLine.BACKFILL else Reason.SKIPPED_AHEAD
    return Reason.READMITTED if case.requests[NUM_PREEMPTIONS, row] > 0 else Reason.ADMITTED


@lean
def what_is_missing(entering: Entering, held: IntArray, is_rejected: BoolArray, case: Case) -> Missing:
    """What keeps the first out that stays behind; who is held for a prefix comes after all others."""
    short = entering.missing
    if short.reason != NOTHING and not is_rejected[short.row]:
        return short
    first = -1
    for row in held:
        if not is_rejected[row] and (first < 0 or comes_before_in_queue(case, row, first)):
            first = row
    if first < 0:
        return Missing(-1, NOTHING, 0, 0)
    return Missing(first, _FOR_SHARED_PREFIX, 0, 0)
