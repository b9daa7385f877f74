"""Who may pass one that does not fit. Only those who fit beside all that enter before them are asked.

- STRICT: nobody.
- SKIP: whoever fits, as long as none that it passes has then been overtaken more than `max_times_overtaken` times. The
  executor counts `times_overtaken`, and a plan adds its own; so the head is delayed by that many requests at most.
- BACKFILL: the head has a reservation (EASY backfilling, Lifka 1995). It starts when so many of those on the device
  have ended, by their expected lengths, that its blocks and its place are there. Others pass only where that is not put
  off: where by the longest that they may run they end before, or take no more than is spare beside the head even then.
  Blocks are held for all that they may become, so they do not need more later.

Each turn of the loop lets in all that fit one after the other, and drops all that what is left cannot hold any more; it
turns no more often than requests enter.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from scheduler_service.core.cached_prefixes import blocks_taken_by, count_in, count_out
from scheduler_service.core.case import (
    ID,
    TIMES_OVERTAKEN,
    UNBOUNDED,
    Case,
    in_decode,
    num_lacking_tokens,
    num_tokens,
    ran_before,
)
from scheduler_service.core.claims import Claims, Room, claims_of, less_room
from scheduler_service.core.compiled import compiled, lean, rule
from scheduler_service.core.giving_way import given_to
from scheduler_service.core.memory import blocks_for, blocks_in_all, blocks_taken_up, kept_free
from scheduler_service.core.policy import Admission, HeadOfLine
from scheduler_service.core.rows import count_up, joined, nowhere, those_at, those_where, zeros
from scheduler_service.core.sorting import places_in_order
from scheduler_service.core.state import BoolArray, IntArray
from scheduler_service.core.work import expected_outputs_left, most_outputs_left

# How far behind one that does not fit a plan looks for others that do.
LOOK_AHEAD = 128

_RESERVE = int(Admission.RESERVE)


class Passing(NamedTuple):
    """Who passes, and their tokens. `num_blocks`: free blocks that they take up in all."""

    rows: IntArray
    num_tokens: IntArray
    num_blocks: int


@compiled
def pass_by(candidates: IntArray, claims: Claims, room: Room, case: Case) -> Passing:
    """Who of `candidates` passes the first that does not fit. `claims`: of those before it, who enter the `room`."""
    head = len(claims.num_tokens)
    room = less_room(room, candidates[:head], claims, case)
    admission, patience, reservation = case.policy.admission, _patience(candidates, head, case), _NO_RESERVATION
    backfills = case.policy.head_of_line == HeadOfLine.BACKFILL
    if backfills:
        admission = _RESERVE
        reservation = _reservation(candidates, head, room, case)
        room = _with_blocks(room, room.num_blocks - reservation.num_blocks_meanwhile)
    places = count_up(len(candidates))[head + 1 :]
    passed, num_tokens_passed, num_blocks = places[:0], places[:0], room.num_blocks
    while len(places) > 0 and room.num_seqs > 0:
        fits = _fit_alone(those_at(candidates, places), room, case, admission)
        if backfills:
            may_pass = _do_not_delay(those_at(candidates, places), fits, reservation, case)
        else:
            may_pass = _do_not_try(patience, places, fits)
        places = those_where(places, may_pass, True)
        rows = those_at(candidates, places)
        theirs = claims_of(rows, room, case, admission)
        count = len(theirs.num_tokens)
        if count == 0:
            break
        room = less_room(room, rows[:count], theirs, case)
        if backfills:
            reservation = _less_spare(reservation, rows[:count], case)
        else:
            _count_passed(patience, count)
        passed = joined(passed, rows[:count])
        num_tokens_passed = joined(num_tokens_passed, theirs.num_tokens)
        places = places[count:]
    return Passing(passed, num_tokens_passed, num_blocks - room.num_blocks)


@compiled
def _fit_alone(rows: IntArray, room: Room, case: Case, admission: int) -> BoolArray:
    """Which of them would fit if no other of them entered."""
    fits = nowhere(len(rows))
    for place in range(len(rows)):
        row = rows[place]
        decodes = in_decode(case, row)
        left = room.tokens.num_decode_tokens
        if not decodes:
            left = room.tokens.num_prefill_tokens + given_to(case, row, room.given)
        num_blocks = room.num_blocks - kept_free(case, row, len(room.on_device))
        has_slot = decodes or room.num_prefills > 0
        needed = blocks_taken_up(case, row, admission) - blocks_taken_by(case, row, room.num_users)
        fits[place] = left > 0 and has_slot and needed <= num_blocks
    return fits


class _Patience(NamedTuple):
    """SKIP. `left`: how often each candidate may still be overtaken; no bound for those that nobody has passed yet."""

    left: IntArray
    at_first: IntArray


@compiled
def _patience(candidates: IntArray, head: int, case: Case) -> _Patience:
    at_first, left = zeros(len(candidates)), zeros(len(candidates))
    for place in range(len(candidates)):
        times = case.requests[TIMES_OVERTAKEN, candidates[place]]
        at_first[place], left[place] = max(case.policy.max_times_overtaken - times, 0), UNBOUNDED
    left[head] = at_first[head]
    return _Patience(left, at_first)


@compiled
def _do_not_try(patience: _Patience, places: IntArray, fits: BoolArray) -> BoolArray:
    """Which of those at `places` may pass, if all before them that may do; those that do not fit may be passed now."""
    may_pass = nowhere(len(fits))
    for index in range(len(places)):
        if not fits[index]:
            patience.left[places[index]] = patience.at_first[places[index]]
    least, place, num_passing = UNBOUNDED, 0, 0
    for index in range(len(places)):
        while place <= places[index]:
            least = min(least, patience.left[place])
            place += 1
        num_passing += fits[index]
        may_pass[index] = fits[index] and num_passing <= least
    return may_pass


@lean
def _count_passed(patience: _Patience, count: int) -> None:
    """Each that passes counts for all that are out of the running by now, were it only behind some of them."""
    for place in range(len(patience.left)):
        if patience.left[place] < UNBOUNDED:
            patience.left[place] -= count


class _Reservation(NamedTuple):
    """BACKFILL. `start`: passes until the head starts. `growth`: blocks that who stays beside it takes more, each.

    `spare_blocks`, `spare_seqs`: what others may still have when the head has started.
    `num_blocks_meanwhile`: those that those on the device grow into while others pass.
    """

    start: int
    growth: int
    spare_blocks: int
    spare_seqs: int
    num_blocks_meanwhile: int


_NO_RESERVATION = _Reservation(0, 0, 0, 0, 0)


@compiled
def _do_not_delay(rows: IntArray, fits: BoolArray, reservation: _Reservation, case: Case) -> BoolArray:
    """Which of the rows may pass, if all before them that may do: who ends in time, or finds spare room."""
    may_pass, num_blocks, num_seqs = fits.copy(), 0, 0
    for place in range(len(rows)):
        if fits[place] and not _ends_in_time(case, rows[place], reservation.start):
            num_blocks += blocks_taken_up(case, rows[place], _RESERVE) + reservation.growth
            num_seqs += 1
            may_pass[place] = num_blocks <= reservation.spare_blocks and num_seqs <= reservation.spare_seqs
    return may_pass


@lean
def _less_spare(reservation: _Reservation, passed: IntArray, case: Case) -> _Reservation:
    num_blocks, num_seqs = 0, 0
    for row in passed:
        if not _ends_in_time(case, row, reservation.start):
            num_blocks += blocks_taken_up(case, row, _RESERVE) + reservation.growth
            num_seqs += 1
    return _Reservation(
        reservation.start,
        reservation.growth,
        reservation.spare_blocks - num_blocks,
        reservation.spare_seqs - num_seqs,
        reservation.num_blocks_meanwhile,
    )


@rule
def _ends_in_time(case: Case, row: int, start: int) -> bool:
    return _passes(case, row, most_outputs_left(case, row)) <= start


@compiled
def _reservation(candidates: IntArray, head: int, room: Room, case: Case) -> _Reservation:
    """When the head of the line starts, and what is spare then."""
    first, num_users = candidates[head], room.num_users.copy()
    needed = blocks_taken_up(case, first, case.policy.admission) - blocks_taken_by(case, first, num_users)
    count_in(case, first, num_users)
    num_left, place, soonest = len(room.on_device), 0, _soonest_first(room.on_device, case)
    start, free, seqs = 0, room.num_blocks - needed, room.num_seqs - 1
    while place < len(soonest) and (free < kept_free(case, first, num_left) or seqs < 0):
        row = room.on_device[soonest[place]]
        start = _passes(case, row, expected_outputs_left(case, row))
        count_out(case, row, num_users)
        free += blocks_taken_up(case, row, case.policy.admission) - blocks_taken_by(case, row, num_users)
        seqs += 1
        num_left -= 1
        place += 1
    starts = free >= kept_free(case, first, num_left) and seqs >= 0
    if not starts:
        # Others hold so much that it does not start even then: nothing is spare, and nobody can tell when it starts.
        start = 0
    growth_beside_head = 0
    for index in range(place, len(soonest)):
        growth_beside_head += _growth(room, soonest[index], start, case)
    lasts = 0
    for index in range(head + 1, len(candidates)):
        if _ends_in_time(case, candidates[index], start):
            lasts = max(lasts, _passes(case, candidates[index], most_outputs_left(case, candidates[index])))
    # Those that go on may have grown until then, and one that is still beside the head makes it keep blocks free.
    spare = free - kept_free(case, first, max(num_left, 1)) - growth_beside_head
    return _Reservation(
        start,
        1 if ran_before(case, first) else 0,
        min(spare, room.num_blocks - _growth_of_all(room, start, case)) if starts else -1,
        seqs if starts else 0,
        # Whoever is evicted stands before the head when it comes back: nobody takes the blocks that others grow into.
        _growth_of_all(room, lasts, case),
    )


@compiled
def _soonest_first(on_device: IntArray, case: Case) -> IntArray:
    """Which of those on the device is expected to end first, second, ...; of two that end together, by id."""
    keys = np.empty((2, len(on_device)), dtype=np.int64)
    for place in range(len(on_device)):
        row = on_device[place]
        keys[0, place] = _passes(case, row, expected_outputs_left(case, row))
        keys[1, place] = case.requests[ID, row]
    return places_in_order(keys)


@lean
def _growth_of_all(room: Room, num_passes: int, case: Case) -> int:
    growth = 0
    for place in range(len(room.on_device)):
        growth += _growth(room, place, num_passes, case)
    return growth


@rule
def _growth(room: Room, place: int, num_passes: int, case: Case) -> int:
    """Blocks that one on the device is expected to take within so many passes, beside those held for it."""
    row = room.on_device[place]
    num_outputs = min(expected_outputs_left(case, row), num_passes)
    stored = max(num_tokens(case, row) + num_outputs - 1, 0)
    return max(blocks_for(stored, case.limits.block_size) - blocks_in_all(case, row, case.policy.admission), 0)


@rule
def _passes(case: Case, row: int, num_outputs: int) -> int:
    """Passes until it has so many more output tokens, if it runs in every one."""
    return blocks_for(num_lacking_tokens(case, row), case.policy.chunk_size_tokens) + num_outputs - 1


@compiled
def _with_blocks(room: Room, num_blocks: int) -> Room:
    return Room(
        room.on_device,
        room.num_users,
        num_blocks,
        room.num_seqs,
        room.num_prefills,
        room.tokens,
        room.given,
        room.ran_out,
    )
