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

from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from scheduler_service.core.claims import Claims, Room, claims_of
from scheduler_service.core.memory import blocks_for, blocks_to_enter, kept_free, new_blocks
from scheduler_service.core.policy import Admission, HeadOfLine, Policy
from scheduler_service.core.state import BoolArray, ExecutorState, IntArray, Requests
from scheduler_service.core.work import expected_outputs_left, most_outputs_left

# How far behind one that does not fit a plan looks for others that do.
LOOK_AHEAD = 128


class _Rule(Protocol):
    """Who may pass. Rows are those of the candidates, ascending."""

    def permits(self, rows: IntArray, fits: BoolArray) -> BoolArray:
        """Which of `rows` may pass, if all before them that may do; `fits`: which of them fit at all."""

    def after(self, passed: IntArray, blocked: IntArray) -> _Rule:
        """The rule once these have passed, and these turned out not to fit."""


def pass_by(
    candidates: Requests, head: int, claims: Claims, room: Room, executor: ExecutorState, policy: Policy
) -> tuple[IntArray, IntArray]:
    """Rows of `candidates` that pass the one at `head`, which does not fit, and their tokens. `claims`: of all."""
    room = room.less(claims.first(head))
    held_as, rule = policy, _patience(candidates, head, policy)
    if policy.head_of_line is HeadOfLine.BACKFILL:
        held_as = replace(policy, admission=Admission.RESERVE)
        rule, room = _reservation(candidates, head, room, executor, policy)
    rows = np.arange(head + 1, len(candidates))
    passed, tokens = [rows[:0]], [rows[:0]]
    while len(rows) > 0 and room.num_seqs > 0:
        fits = _fits_alone(candidates.take(rows), room, executor, policy, held_as)
        rule, permitted = rule.after(rows[:0], rows[~fits]), rule.permits(rows, fits)
        rows = rows[permitted]
        their = claims_of(candidates.take(rows), room, executor, policy, held_as)
        count = their.num_fitting(room)
        if count == 0:
            break
        room = room.less(their.first(count))
        rule = rule.after(rows[:count], rows[:0])
        passed.append(rows[:count])
        tokens.append(their.num_tokens[:count])
        rows = rows[count:]
    return np.concatenate(passed), np.concatenate(tokens)


def _fits_alone(behind: Requests, room: Room, executor: ExecutorState, policy: Policy, held_as: Policy) -> BoolArray:
    """Which of them would fit if no other of them entered."""
    limits, left, in_decode = executor.limits, room.tokens, behind.in_decode
    num_tokens = np.where(in_decode, left.num_decode_tokens, left.num_prefill_tokens)
    need = blocks_to_enter(behind, limits, held_as)
    kept = kept_free(behind, len(room.on_device), limits, policy)
    fits: BoolArray = (need <= room.num_blocks - kept) & (num_tokens > 0)
    return fits if room.num_prefills is None or room.num_prefills > 0 else fits & in_decode


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Patience:
    """SKIP. `left`: how often each candidate may still be overtaken; no bound for those that nobody has passed yet."""

    left: IntArray
    patience: IntArray

    def permits(self, rows: IntArray, fits: BoolArray) -> BoolArray:
        left = self.left.copy()
        left[rows[~fits]] = self.patience[rows[~fits]]
        permitted: BoolArray = fits & (np.cumsum(fits) <= np.minimum.accumulate(left)[rows])
        return permitted

    def after(self, passed: IntArray, blocked: IntArray) -> _Patience:
        left = self.left.copy()
        left[blocked] = self.patience[blocked]
        # Each that passes counts for all that are out of the running by now, were it only behind some of them.
        left[left < _UNBOUNDED] -= len(passed)
        return replace(self, left=left)


_UNBOUNDED = np.iinfo(np.int64).max // 2


def _patience(candidates: Requests, head: int, policy: Policy) -> _Rule:
    patience = np.maximum(policy.max_times_overtaken - candidates.times_overtaken, 0)
    left = np.full(len(candidates), _UNBOUNDED)
    left[head] = patience[head]
    return _Patience(left=left, patience=patience)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Reservation:
    """BACKFILL. `in_time`: which candidates end before the head starts; `num_blocks`: what each of them may become.

    `spare_blocks`, `spare_seqs`: what others may still have when the head has started.
    """

    in_time: BoolArray
    num_blocks: IntArray
    spare_blocks: int
    spare_seqs: int

    def permits(self, rows: IntArray, fits: BoolArray) -> BoolArray:
        stays = fits & ~self.in_time[rows]
        beside_head = np.cumsum(self.num_blocks[rows] * stays) <= self.spare_blocks
        beside_head &= np.cumsum(stays) <= self.spare_seqs
        permitted: BoolArray = fits & (~stays | beside_head)
        return permitted

    def after(self, passed: IntArray, blocked: IntArray) -> _Reservation:
        stays = passed[~self.in_time[passed]]
        return replace(
            self,
            spare_blocks=self.spare_blocks - int(self.num_blocks[stays].sum()),
            spare_seqs=self.spare_seqs - len(stays),
        )


def _reservation(
    candidates: Requests, head: int, room: Room, executor: ExecutorState, policy: Policy
) -> tuple[_Rule, Room]:
    """When the head of the line starts, and what is spare then; and the room that others may have until then."""
    limits, on_device = executor.limits, room.on_device
    first = candidates.take(np.array([head]))
    outputs_left = expected_outputs_left(on_device, limits)
    passes = _passes(on_device, outputs_left, policy)
    soonest = np.lexsort((on_device.id, passes))
    freed = (on_device.num_blocks - on_device.num_shared_blocks + room.held)[soonest]
    # free[k], seqs[k]: what is there beside the head once the k soonest have ended.
    num_beside = np.arange(len(on_device), -1, -1)
    free = room.num_blocks + np.append(0, np.cumsum(freed)) - int(blocks_to_enter(first, limits, policy)[0])
    seqs = room.num_seqs + np.arange(len(on_device) + 1) - 1
    starts = (free >= kept_free(first, num_beside, limits, policy)) & (seqs >= 0)
    k = int(starts.argmax())
    start = int(passes[soonest[k - 1]]) if k > 0 else 0
    lasts = _passes(candidates, most_outputs_left(candidates, limits), policy)
    in_time = lasts <= start
    grows = _growth(room, start, executor)
    # Those that go on may have grown until then, and one that is still beside the head makes it keep blocks free.
    kept = int(np.max(kept_free(first, max(int(num_beside[k]), 1), limits, policy)))
    spare = min(int(free[k]) - kept - int(grows[soonest[k:]].sum()), room.num_blocks - int(grows.sum()))
    reserved = blocks_to_enter(candidates, limits, replace(policy, admission=Admission.RESERVE))
    rule = _Reservation(
        in_time=in_time,
        num_blocks=reserved + first.ran_before[0],
        # If others hold so much that the head does not start even then, nothing is spare.
        spare_blocks=spare if starts[k] else -1,
        spare_seqs=int(seqs[k]) if starts[k] else 0,
    )
    # Whoever is evicted stands before the head when it comes back. So nobody takes the blocks that others grow into.
    meanwhile = _growth(room, int((lasts * in_time)[head + 1 :].max(initial=0)), executor)
    return rule, room._replace(num_blocks=room.num_blocks - int(meanwhile.sum()))


def _growth(room: Room, num_passes: int, executor: ExecutorState) -> IntArray:
    """Blocks that each on the device is expected to take within so many passes, beside those held for it."""
    limits, requests = executor.limits, room.on_device
    num_outputs = np.minimum(expected_outputs_left(requests, limits), num_passes)
    stored = np.maximum(requests.num_tokens + num_outputs - 1, 0)
    growth: IntArray = np.maximum(new_blocks(requests, stored, limits.block_size) - room.held, 0)
    return growth


def _passes(requests: Requests, num_outputs: IntArray, policy: Policy) -> IntArray:
    """Passes until each has so many more output tokens, if it runs in every one."""
    return blocks_for(requests.num_lacking_tokens, policy.chunk_size_tokens) + num_outputs - 1
