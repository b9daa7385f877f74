"""What there is for the queue, and what each candidate would take of it.

A request fits if

- the running set has a place for it, the token budget has a token left for its phase, or prompts in progress give one
  up (`giving_way.py`), and no limit on prefills stands against it;
- free blocks cover all that is held for it (`memory.tokens_to_hold`), beside what is held for all that run, load or
  enter before it, and beside what is kept free (`memory.kept_free`). So nobody starts on a first chunk that fits when
  the whole prompt does not. Free blocks that one that enters before it would reuse too are taken up by that one
  (`cached_prefixes.py`);
- blocks have not run out in this very pass.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

from scheduler_service.core.cached_prefixes import blocks_taken_by, count_in, nobody_enters
from scheduler_service.core.case import UNBOUNDED, Case, in_decode, rows_with
from scheduler_service.core.compiled import compiled, lean
from scheduler_service.core.composition import TokensLeft, less, tokens_left
from scheduler_service.core.eviction import RunningSet
from scheduler_service.core.executor_plan import Reason
from scheduler_service.core.giving_way import GivenUp, given_to, given_up, least_wanted
from scheduler_service.core.memory import blocks_held, blocks_taken_up, kept_free
from scheduler_service.core.rows import joined, total, zeros
from scheduler_service.core.state import IntArray, RequestStatus


class Room(NamedTuple):
    """What those on the device leave to the queue.

    `num_blocks`: free ones, less those that are held for those on the device. `num_prefills`: prefills that may still
    join the pass. `num_users`: [num_prefixes] those that have entered, by the cached prefixes that they reuse.
    `given`: what prompts in progress give up for those that enter with one.
    """

    on_device: IntArray
    num_users: IntArray
    num_blocks: int
    num_seqs: int
    num_prefills: int
    tokens: TokensLeft
    given: GivenUp
    ran_out: bool


@compiled
def room_beside(running: RunningSet, case: Case) -> Room:
    """What is left. Blocks that are held for someone are as good as taken."""
    kept, num_prefills = running.kept, case.policy.max_num_partial_prefills
    if num_prefills != UNBOUNDED:
        for place in range(len(kept)):
            if running.num_tokens[place] > 0 and not in_decode(case, kept[place]):
                num_prefills -= 1
    loading = rows_with(RequestStatus.LOADING, case)
    num_blocks = running.num_blocks
    for row in loading:
        num_blocks -= blocks_held(case, row)
    return Room(
        joined(kept, loading),
        nobody_enters(case),
        num_blocks,
        case.limits.max_num_seqs - len(kept) - len(loading),
        num_prefills,
        tokens_left(kept, running.num_tokens, case),
        given_up(kept, running.num_tokens, case),
        running.ran_out,
    )


class Missing(NamedTuple):
    """What keeps a request out: "needs 14 blocks, 9 free". `reason` `NOTHING`: nothing does."""

    row: int
    reason: int
    needed: int
    available: int


NOTHING = 0


class Claims(NamedTuple):
    """What those of the candidates take that fit, one beside the other, from the first on; and what the next misses."""

    num_tokens: IntArray
    num_blocks: IntArray
    missing: Missing


class _Phase(IntEnum):
    """Who may enter the pass."""

    ANY = 0
    DECODES = 1
    PREFILLS = 2


@compiled
def claims_of(candidates: IntArray, room: Room, case: Case, admission: int) -> Claims:
    """The claims of the queue's head on the room that there is. `admission`: how blocks are held for them."""
    num_tokens, num_blocks, num_users = zeros(len(candidates)), zeros(len(candidates)), room.num_users.copy()
    phase = _phase_open(candidates, room.tokens, case)
    left, left_to_phase = room.tokens.num_tokens, room.tokens.num_prefill_tokens
    if phase == _Phase.DECODES:
        left_to_phase = room.tokens.num_decode_tokens
    left_blocks, left_prefills = room.num_blocks, room.num_prefills
    for place in range(len(candidates)):
        row = candidates[place]
        decodes, want = in_decode(case, row), least_wanted(case, row)
        given = 0 if decodes else given_to(case, row, room.given)
        granted = min(want, left + given)
        if phase != _Phase.ANY:
            granted = min(want, left_to_phase + given)
        elif not decodes:
            granted = min(granted, left_to_phase + given)
        needed = blocks_taken_up(case, row, admission) - blocks_taken_by(case, row, num_users)
        free = left_blocks - kept_free(case, row, len(room.on_device) + place)
        missing = NOTHING
        if room.ran_out:
            missing = Reason.WAITING_AFTER_EVICTION
        elif place >= room.num_seqs:
            missing, needed, free = Reason.WAITING_FOR_SEQS, 1, 0
        elif phase != _Phase.ANY and decodes != (phase == _Phase.DECODES):
            missing, needed, free = Reason.WAITING_FOR_PHASE, 0, 0
        elif not decodes and left_prefills <= 0:
            missing, needed, free = Reason.WAITING_FOR_PREFILL_SLOT, 1, 0
        elif granted <= 0:
            missing, needed, free = Reason.WAITING_FOR_TOKEN_BUDGET, want, 0
        elif needed > free:
            missing = Reason.WAITING_FOR_BLOCKS
        if missing != NOTHING:
            short = Missing(row, missing, needed, max(free, 0))
            return Claims(num_tokens[:place], num_blocks[:place], short)
        num_tokens[place], num_blocks[place] = granted, needed
        left_blocks -= needed
        count_in(case, row, num_users)
        # What it wants and does not get is lost to those behind it, too.
        left -= want
        if phase != _Phase.ANY or not decodes:
            left_to_phase -= want
        if not decodes:
            left_prefills -= 1
    return Claims(num_tokens, num_blocks, Missing(-1, NOTHING, 0, 0))


@lean
def _phase_open(candidates: IntArray, left: TokensLeft, case: Case) -> int:
    """Who may enter: those of one phase only, where the pass holds one, and that of the first if it may hold either."""
    if not left.one_phase or len(candidates) == 0:
        return _Phase.ANY
    decodes = left.num_decode_tokens > 0
    if decodes and left.num_prefill_tokens > 0:
        decodes = in_decode(case, candidates[0])
    return _Phase.DECODES if decodes else _Phase.PREFILLS


@compiled
def less_room(room: Room, entering: IntArray, claims: Claims, case: Case) -> Room:
    """What is left of it once these have entered, who are the first that made the claims."""
    num_prefills, num_prefill_tokens, num_decode_tokens, num_users = 0, 0, 0, room.num_users.copy()
    for place in range(len(entering)):
        count_in(case, entering[place], num_users)
        if in_decode(case, entering[place]):
            num_decode_tokens += claims.num_tokens[place]
        else:
            num_prefills += 1
            num_prefill_tokens += claims.num_tokens[place]
    return Room(
        joined(room.on_device, entering),
        num_users,
        room.num_blocks - total(claims.num_blocks[: len(entering)]),
        room.num_seqs - len(entering),
        room.num_prefills - num_prefills,
        less(room.tokens, num_prefill_tokens, num_decode_tokens),
        room.given,
        room.ran_out,
    )
