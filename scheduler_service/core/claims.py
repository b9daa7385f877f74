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

from typing import NamedTuple

import numpy as np

from scheduler_service.core.chunking import chunks_wanted, first_come
from scheduler_service.core.composition import TokensLeft, tokens_left
from scheduler_service.core.eviction import RunningSet
from scheduler_service.core.executor_plan import Reason, Shortfall
from scheduler_service.core.memory import blocks_held, blocks_to_enter, kept_free
from scheduler_service.core.policy import Policy
from scheduler_service.core.state import ExecutorState, IntArray, Requests, length_of_prefix


class Room(NamedTuple):
    """What those on the device leave to the queue.

    `num_blocks`: free ones, less `held`, which are held for those on the device. `num_prefills`: prefills that may
    still join the pass; None: any number.
    """

    on_device: Requests
    held: IntArray
    num_blocks: int
    num_seqs: int
    tokens: TokensLeft
    num_prefills: int | None
    ran_out: bool

    def less(self, claims: Claims) -> Room:
        """What is left once all these have entered."""
        in_decode = claims.candidates.in_decode
        num_decode_tokens = int(claims.num_tokens.dot(in_decode))
        num_prefill_tokens = int(claims.num_tokens.sum()) - num_decode_tokens
        num_prefills = None if self.num_prefills is None else self.num_prefills - int(np.count_nonzero(~in_decode))
        return self._replace(
            on_device=self.on_device.beside(claims.candidates),
            held=np.concatenate((self.held, claims.need_blocks)),
            num_blocks=self.num_blocks - int(claims.need_blocks.sum()),
            num_seqs=self.num_seqs - len(claims.candidates),
            tokens=self.tokens.less(num_prefill_tokens, num_decode_tokens),
            num_prefills=num_prefills,
        )


def room_beside(running: RunningSet, executor: ExecutorState, policy: Policy) -> Room:
    """What is left. Blocks that are held for someone are as good as taken."""
    limits, kept, num_tokens = executor.limits, running.kept, running.num_tokens
    num_prefills = policy.max_num_partial_prefills
    if num_prefills is not None:
        num_prefills -= int(np.count_nonzero(~kept.in_decode & (num_tokens > 0)))
    on_device, held, num_blocks = kept, running.held, running.num_blocks
    if kept.whole.anyone_loads:
        loading = kept.whole.loading
        held_for_loading = blocks_held(loading, np.zeros(len(loading), dtype=np.int64), limits, policy)
        on_device, held = kept.beside(loading), np.concatenate((held, held_for_loading))
        num_blocks -= int(held_for_loading.sum())
    return Room(
        on_device=on_device,
        held=held,
        num_blocks=num_blocks,
        num_seqs=limits.max_num_seqs - len(on_device),
        tokens=tokens_left(kept, num_tokens, executor, policy),
        num_prefills=num_prefills,
        ran_out=running.ran_out,
    )


class Claims(NamedTuple):
    """What each candidate would take, if all before it enter, and what would be left then.

    `decodes`: whether only those in decode may enter the pass, or only prefills; None: either. `left_blocks`: what may
    still be taken then; below 0: too much was.
    """

    candidates: Requests
    decodes: bool | None
    want_tokens: IntArray
    num_tokens: IntArray
    need_blocks: IntArray
    left_blocks: IntArray

    def num_fitting(self, room: Room) -> int:
        """How many of the first fit, one beside the other."""
        if room.ran_out:
            return 0
        fits = (self.left_blocks >= 0) & (self.num_tokens > 0)
        if room.num_prefills is not None:
            fits &= self._num_prefills() <= room.num_prefills
        return min(length_of_prefix(fits), max(room.num_seqs, 0))

    def first(self, count: int) -> Claims:
        """Those of the first `count` candidates."""
        return Claims(
            candidates=self.candidates.first(count),
            decodes=self.decodes,
            want_tokens=self.want_tokens[:count],
            num_tokens=self.num_tokens[:count],
            need_blocks=self.need_blocks[:count],
            left_blocks=self.left_blocks[:count],
        )

    def shortfall(self, index: int, room: Room) -> Shortfall:
        """What keeps the candidate at `index` out; where several things do, the first in the order below."""
        candidates = self.candidates
        needed = int(self.need_blocks[index])
        available = max(int(self.left_blocks[index]) + needed, 0)
        reason = Reason.WAITING_FOR_BLOCKS
        if room.ran_out:
            reason = Reason.WAITING_AFTER_EVICTION
        elif index >= room.num_seqs:
            reason, needed, available = Reason.WAITING_FOR_SEQS, 1, 0
        elif self.decodes is not None and candidates.in_decode[index] != self.decodes:
            reason, needed, available = Reason.WAITING_FOR_PHASE, 0, 0
        elif room.num_prefills is not None and self._num_prefills()[index] > room.num_prefills:
            reason, needed, available = Reason.WAITING_FOR_PREFILL_SLOT, 1, 0
        elif self.num_tokens[index] == 0:
            reason, needed, available = Reason.WAITING_FOR_TOKEN_BUDGET, int(self.want_tokens[index]), 0
        return Shortfall(id=int(candidates.id[index]), reason=reason, needed=needed, available=available)

    def _num_prefills(self) -> IntArray:
        """Prefills among the first, up to each and with it."""
        return (~self.candidates.in_decode).cumsum()


def claims_of(
    candidates: Requests, room: Room, executor: ExecutorState, policy: Policy, held_as: Policy | None = None
) -> Claims:
    """The claims of the queue's head on the room that there is. `held_as`: the policy by which blocks are held for
    them, if it is another.
    """
    need = blocks_to_enter(candidates, executor.limits, held_as or policy)
    num_beside: IntArray | int = len(room.on_device)
    # Those that enter before count too. That changes something for the first of all, and for who ran before.
    if num_beside == 0 or candidates.whole.anyone_ran_before:
        num_beside = num_beside + np.arange(len(candidates))
    kept = kept_free(candidates, num_beside, executor.limits, policy)
    want, decodes = chunks_wanted(candidates, policy), _phase_open(candidates, room.tokens)
    return Claims(
        candidates=candidates,
        decodes=decodes,
        want_tokens=want,
        num_tokens=_tokens_granted(want, candidates, room.tokens, decodes),
        need_blocks=need,
        left_blocks=room.num_blocks - kept - need.cumsum(),
    )


def _phase_open(candidates: Requests, left: TokensLeft) -> bool | None:
    """Whether only decodes, or only prefills, may enter; None: either."""
    if not left.one_phase or len(candidates) == 0:
        return None
    open_to_both = left.num_decode_tokens > 0 and left.num_prefill_tokens > 0
    return bool(candidates.in_decode[0]) if open_to_both else left.num_decode_tokens > 0


def _tokens_granted(want: IntArray, candidates: Requests, left: TokensLeft, decodes: bool | None) -> IntArray:
    """Tokens of each, first come; none for those of the other phase."""
    if decodes is not None:
        of_phase = want * (candidates.in_decode == decodes)
        return first_come(of_phase, left.num_decode_tokens if decodes else left.num_prefill_tokens)
    num_tokens = first_come(want, left.num_tokens)
    if left.num_prefill_tokens < left.num_tokens:
        in_decode = candidates.in_decode
        of_prefills = first_come(want * ~in_decode, left.num_prefill_tokens)
        num_tokens = np.where(in_decode, num_tokens, np.minimum(num_tokens, of_prefills))
    return num_tokens
