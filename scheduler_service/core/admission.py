"""Who enters the running set from the queue.

The queue: those that have run before (swapped, or evicted by recompute), in the policy's order, then those that never
ran, in the policy's order. From its head as many enter as fit, and nobody passes one that does not (STRICT). It fits if

- the running set has a place for it, the token budget has a token left, and no limit on prefills stands against it;
- WATERMARK: free blocks hold all that it needs (`memory.blocks_to_enter`), beside what all that run, load or enter
  before it still need for the rest of their prompts, and beside what is kept free (`memory.kept_free`). So nobody
  starts on a first chunk that fits when the whole prompt does not;
- it has run before, or the executor does not drain;
- blocks have not run out in this very pass.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from scheduler_service.core.chunking import chunks_wanted, first_come
from scheduler_service.core.eviction import RunningSet
from scheduler_service.core.executor_plan import Reason, Shortfall
from scheduler_service.core.memory import blocks_to_enter, has_run, kept_free, new_blocks
from scheduler_service.core.ordering import first_in_order
from scheduler_service.core.policy import Policy
from scheduler_service.core.state import BoolArray, ExecutorState, IntArray, Requests, RequestStatus, rows_where


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """What those that run and load leave to the queue. `num_prefills`: prefills that may still join the pass."""

    num_blocks: int
    num_seqs: int
    num_tokens: int
    num_prefills: int
    num_running: int
    ran_out: bool


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Entering:
    """Who enters, in the order of the queue, with its tokens; and what keeps the next one out, if there is one."""

    requests: Requests
    num_tokens: IntArray
    shortfall: Shortfall | None


def room_beside(running: RunningSet, loading: Requests, executor: ExecutorState, policy: Policy) -> Room:
    """What is left. Blocks that the rest of a prompt will need are as good as taken."""
    limits, kept = executor.limits, running.kept
    stored = np.maximum(kept.num_tokens, kept.num_computed_tokens + running.num_tokens)
    promised = new_blocks(kept, stored, limits.block_size).sum()
    promised += new_blocks(loading, loading.num_tokens, limits.block_size).sum()
    num_running = len(kept) + len(loading)
    num_prefills = limits.max_num_seqs
    if policy.max_num_partial_prefills is not None:
        num_prefills = policy.max_num_partial_prefills - int((~kept.in_decode & (running.num_tokens > 0)).sum())
    return Room(
        num_blocks=running.num_free_blocks - int(promised),
        num_seqs=limits.max_num_seqs - num_running,
        num_tokens=limits.max_num_batched_tokens - int(running.num_tokens.sum()),
        num_prefills=num_prefills,
        num_running=num_running,
        ran_out=running.ran_out,
    )


def head_of_queue(executor: ExecutorState, rejected: IntArray, room: Room) -> Requests:
    """The first of the queue, in order: one more than there is room for, so that the last can be told what it lacks."""
    requests = executor.requests
    count = 1 + (0 if room.ran_out else min(room.num_seqs, room.num_tokens))
    queued = requests.having(RequestStatus.WAITING) | requests.having(RequestStatus.SWAPPED)
    queued[rejected] = False
    ran_before = queued & has_run(requests)
    rows = first_in_order(requests, rows_where(ran_before), count)
    if len(rows) < count:
        never_ran = rows_where(queued & ~ran_before)
        rows = np.concatenate((rows, first_in_order(requests, never_ran, count - len(rows))))
    return requests.take(rows)


def enter(candidates: Requests, room: Room, executor: ExecutorState, policy: Policy) -> Entering:
    """Let in the longest prefix of `candidates`, the head of the queue, that fits."""
    claims = _claims(candidates, room, executor, policy)
    fits = claims.fits(room)
    if room.ran_out:
        fits[:] = False
    num_entering = len(candidates) if fits.all() else int(fits.argmin())
    shortfall = None
    if num_entering < len(candidates):
        shortfall = claims.shortfall(num_entering, room)
    return Entering(
        requests=candidates.first(num_entering), num_tokens=claims.num_tokens[:num_entering], shortfall=shortfall
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Claims:
    """What each candidate would take, if all before it enter, and what would be there for it."""

    id: IntArray
    shut_out: BoolArray
    num_prefills: IntArray
    want_tokens: IntArray
    num_tokens: IntArray
    need_blocks: IntArray
    available_blocks: IntArray

    def fits(self, room: Room) -> BoolArray:
        fits: BoolArray = (self.need_blocks <= self.available_blocks) & (self.num_tokens > 0) & ~self.shut_out
        fits &= self.num_prefills <= room.num_prefills
        fits[max(room.num_seqs, 0) :] = False
        return fits

    def shortfall(self, index: int, room: Room) -> Shortfall:
        """What keeps the candidate at `index` out; where several things do, the first in the order below."""
        reason, needed, available = Reason.WAITING_FOR_BLOCKS, self.need_blocks[index], self.available_blocks[index]
        if room.ran_out:
            reason = Reason.WAITING_AFTER_EVICTION
        elif self.shut_out[index]:
            reason, needed, available = Reason.WAITING_DRAINING, np.int64(0), np.int64(0)
        elif index >= room.num_seqs:
            reason, needed, available = Reason.WAITING_FOR_SEQS, np.int64(1), np.int64(0)
        elif self.num_prefills[index] > room.num_prefills:
            reason, needed, available = Reason.WAITING_FOR_PREFILL_SLOT, np.int64(1), np.int64(0)
        elif self.num_tokens[index] == 0:
            reason, needed, available = Reason.WAITING_FOR_TOKEN_BUDGET, self.want_tokens[index], np.int64(0)
        return Shortfall(id=int(self.id[index]), reason=reason, needed=int(needed), available=max(int(available), 0))


def _claims(candidates: Requests, room: Room, executor: ExecutorState, policy: Policy) -> _Claims:
    want = chunks_wanted(candidates, policy)
    need = blocks_to_enter(candidates, executor.limits.block_size)
    kept = kept_free(candidates, room.num_running, executor.limits, policy)
    ran_before = has_run(candidates)
    return _Claims(
        id=candidates.id,
        shut_out=~ran_before & executor.draining,
        num_prefills=np.cumsum(~candidates.in_decode),
        want_tokens=want,
        num_tokens=first_come(want, room.num_tokens),
        need_blocks=need,
        available_blocks=room.num_blocks - kept - (np.cumsum(need) - need),
    )


def reasons_to_enter(entering: Requests) -> IntArray:
    """Why each entered."""
    return np.where(
        entering.having(RequestStatus.SWAPPED),
        Reason.RESUMED.value,
        np.where(entering.num_preemptions > 0, Reason.READMITTED.value, Reason.ADMITTED.value),
    )
