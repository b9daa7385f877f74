"""What there is for the queue, and what each candidate would take of it.

A request fits if

- the running set has a place for it, the token budget has a token left for its phase, and no limit on prefills stands
  against it;
- free blocks cover all that is held for it (`memory.tokens_to_hold`), beside what is held for all that run, load or
  enter before it, and beside what is kept free (`memory.kept_free`). So nobody starts on a first chunk that fits when
  the whole prompt does not;
- blocks have not run out in this very pass.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from scheduler_service.core.chunking import chunks_wanted, first_come
from scheduler_service.core.composition import TokensLeft, tokens_left
from scheduler_service.core.eviction import RunningSet
from scheduler_service.core.executor_plan import Reason, Shortfall
from scheduler_service.core.memory import blocks_held, blocks_to_enter, kept_free
from scheduler_service.core.policy import Policy
from scheduler_service.core.state import BoolArray, ExecutorState, IntArray, Requests


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Room:
    """What those on the device leave to the queue.

    `num_blocks`: free ones, less `held`, which are held for those on the device. `num_prefills`: prefills that may
    still join the pass.
    """

    on_device: Requests
    held: IntArray
    num_blocks: int
    num_seqs: int
    tokens: TokensLeft
    num_prefills: int
    ran_out: bool

    def less(self, entering: Requests, claims: Claims) -> Room:
        """What is left once these have entered; `claims`: theirs."""
        in_decode = entering.in_decode
        num_decode_tokens = int(claims.num_tokens[in_decode].sum())
        num_prefill_tokens = int(claims.num_tokens.sum()) - num_decode_tokens
        return replace(
            self,
            on_device=self.on_device.beside(entering),
            held=np.concatenate((self.held, claims.need_blocks)),
            num_blocks=self.num_blocks - int(claims.need_blocks.sum()),
            num_seqs=self.num_seqs - len(entering),
            tokens=self.tokens.less(num_prefill_tokens, num_decode_tokens),
            num_prefills=self.num_prefills - int(np.count_nonzero(~in_decode)),
        )


def room_beside(running: RunningSet, loading: Requests, executor: ExecutorState, policy: Policy) -> Room:
    """What is left. Blocks that are held for someone are as good as taken."""
    limits, kept, num_tokens = executor.limits, running.kept, running.num_tokens
    num_prefills = limits.max_num_seqs
    if policy.max_num_partial_prefills is not None:
        num_prefills = policy.max_num_partial_prefills - int((~kept.in_decode & (num_tokens > 0)).sum())
    tokens = tokens_left(kept, num_tokens, executor, policy)
    on_device = kept
    if len(loading) > 0:
        on_device, num_tokens = kept.beside(loading), np.append(num_tokens, np.zeros(len(loading), dtype=np.int64))
    held = blocks_held(on_device, num_tokens, limits, policy)
    return Room(
        on_device=on_device,
        held=held,
        num_blocks=running.num_free_blocks - int(held.sum()),
        num_seqs=limits.max_num_seqs - len(on_device),
        tokens=tokens,
        num_prefills=num_prefills,
        ran_out=running.ran_out,
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Claims:
    """What each candidate would take, if all before it enter, and what would be there for it."""

    id: IntArray
    in_phase: BoolArray
    num_prefills: IntArray
    want_tokens: IntArray
    num_tokens: IntArray
    need_blocks: IntArray
    available_blocks: IntArray

    def fits(self, room: Room) -> BoolArray:
        """Which fit, if all before them enter."""
        fits: BoolArray = (self.need_blocks <= self.available_blocks) & (self.num_tokens > 0) & self.in_phase
        fits &= self.num_prefills <= room.num_prefills
        fits[max(room.num_seqs, 0) :] = False
        if room.ran_out:
            fits[:] = False
        return fits

    def first(self, count: int) -> Claims:
        """Those of the first `count` candidates."""
        return Claims(**{name: getattr(self, name)[:count] for name in self.__slots__})

    def shortfall(self, index: int, room: Room) -> Shortfall:
        """What keeps the candidate at `index` out; where several things do, the first in the order below."""
        reason, needed, available = Reason.WAITING_FOR_BLOCKS, self.need_blocks[index], self.available_blocks[index]
        if room.ran_out:
            reason = Reason.WAITING_AFTER_EVICTION
        elif index >= room.num_seqs:
            reason, needed, available = Reason.WAITING_FOR_SEQS, np.int64(1), np.int64(0)
        elif not self.in_phase[index]:
            reason, needed, available = Reason.WAITING_FOR_PHASE, np.int64(0), np.int64(0)
        elif self.num_prefills[index] > room.num_prefills:
            reason, needed, available = Reason.WAITING_FOR_PREFILL_SLOT, np.int64(1), np.int64(0)
        elif self.num_tokens[index] == 0:
            reason, needed, available = Reason.WAITING_FOR_TOKEN_BUDGET, self.want_tokens[index], np.int64(0)
        return Shortfall(id=int(self.id[index]), reason=reason, needed=int(needed), available=max(int(available), 0))


def claims_of(
    candidates: Requests, room: Room, executor: ExecutorState, policy: Policy, held_as: Policy | None = None
) -> Claims:
    """The claims of the queue's head on the room that there is. `held_as`: the policy by which blocks are held for
    them, if it is another.
    """
    need = blocks_to_enter(candidates, executor.limits, held_as or policy)
    num_beside = len(room.on_device) + np.arange(len(candidates))
    kept = kept_free(candidates, num_beside, executor.limits, policy)
    want, in_decode = chunks_wanted(candidates, policy), candidates.in_decode
    num_tokens, in_phase = _tokens_granted(want, in_decode, room.tokens)
    taken_before: IntArray = need.cumsum() - need
    return Claims(
        id=candidates.id,
        in_phase=in_phase,
        num_prefills=(~in_decode).cumsum(),
        want_tokens=want,
        num_tokens=num_tokens,
        need_blocks=need,
        available_blocks=room.num_blocks - kept - taken_before,
    )


def _tokens_granted(want: IntArray, in_decode: BoolArray, left: TokensLeft) -> tuple[IntArray, BoolArray]:
    """Tokens of each, first come, and whether its phase may enter the pass at all."""
    if left.one_phase and len(want) > 0:
        open_to_both = left.num_decode_tokens > 0 and left.num_prefill_tokens > 0
        decodes = bool(in_decode[0]) if open_to_both else left.num_decode_tokens > 0
        in_phase = in_decode == decodes
        return first_come(want * in_phase, left.num_decode_tokens if decodes else left.num_prefill_tokens), in_phase
    num_tokens = first_come(want, left.num_tokens)
    if left.num_prefill_tokens < left.num_tokens:
        of_prefills = first_come(np.where(in_decode, 0, want), left.num_prefill_tokens)
        num_tokens = np.where(in_decode, num_tokens, np.minimum(num_tokens, of_prefills))
    return num_tokens, np.ones(len(want), dtype=np.bool_)
