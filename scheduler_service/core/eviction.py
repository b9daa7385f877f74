"""Who leaves the device when blocks run out, and where the KV goes.

- Blocks have run out when the pass of all that run needs more new blocks than are free. Then as few leave, in the order
  of `victims.py`, as must for the others to run: a request frees the blocks that nobody else holds. The first in the
  policy's order is never evicted, so it finishes; requests whose KV is still loading are no victims.
- Those that stay share the whole token budget, which may make them need more: then one more leaves.
- Where not even evicting all but the first would let it run (others that load hold the blocks), and under NEVER, nobody
  is evicted, and those run whose next token has a block.
- SWAP where the swap space has room for all blocks of the victim, else RECOMPUTE. AUTO takes the cheaper by the latency
  model: copying out and in, against computing the tokens again with their share of passes.
"""

from __future__ import annotations

from typing import NamedTuple

from scheduler_service.core.case import NUM_BLOCKS, NUM_COMPUTED_TOKENS, Case
from scheduler_service.core.compiled import compiled, lean
from scheduler_service.core.composition import share_tokens, with_decodes_that_wait
from scheduler_service.core.executor_plan import EvictMode, Reason
from scheduler_service.core.memory import blocks_alone, blocks_held, new_blocks
from scheduler_service.core.policy import Eviction, Preemption
from scheduler_service.core.rows import nowhere, those_where, total, zeros
from scheduler_service.core.state import BoolArray, IntArray
from scheduler_service.core.victims import in_order_of_staying

_OUT_OF_BLOCKS = int(Reason.EVICTED_OUT_OF_BLOCKS)


class RunningSet(NamedTuple):
    """What becomes of the running requests: who stays, in order, with its tokens; who is evicted, in order, and why.

    `num_blocks`: blocks that are free once the evicted have left, less those that are held for those that stay.
    """

    kept: IntArray
    num_tokens: IntArray
    evicted: IntArray
    why: int
    num_blocks: int
    ran_out: bool


@compiled
def make_room(running: IntArray, case: Case) -> RunningSet:
    """Evict as many of `running`, which is in order, as must go for the others to run."""
    num_tokens = share_tokens(running, case)
    everyone = without(running, nowhere(len(running)), num_tokens, _OUT_OF_BLOCKS, case, False)
    # What is held for them covers their pass.
    if everyone.num_blocks >= 0:
        return everyone
    need, free = _need(running, num_tokens, case), case.num_free_blocks
    if total(need) <= free:
        return everyone

    staying = in_order_of_staying(running, case)
    leaves = nowhere(len(running))
    num_kept, kept = 0, running
    if case.policy.preemption != Preemption.NEVER:
        num_kept = len(running)
    while num_kept > 0 and total(need) > free:
        # The need of those that stay grows with them and what is freed shrinks: one after the other leaves.
        by_place = _by_place(need, leaves)
        most = total(need)
        while num_kept > 0 and most > free:
            num_kept -= 1
            last = staying[num_kept]
            leaves[last] = True
            most -= by_place[last]
            free += blocks_alone(case, running[last])
        kept = those_where(running, leaves, False)
        num_tokens = share_tokens(kept, case)
        need = _need(kept, num_tokens, case)
    if num_kept == 0:
        leaves = nowhere(len(running))
        num_tokens = _run_what_has_blocks(running, case)
    return without(running, leaves, num_tokens, _OUT_OF_BLOCKS, case, True)


@compiled
def without(
    running: IntArray, leaves: BoolArray, num_tokens: IntArray, why: int, case: Case, ran_out: bool
) -> RunningSet:
    """The running set without those that leave. `num_tokens`: of those that stay."""
    kept, evicted = those_where(running, leaves, False), those_where(running, leaves, True)
    num_blocks = case.num_free_blocks
    for row in evicted:
        num_blocks += blocks_alone(case, row)
    for row in kept:
        num_blocks -= blocks_held(case, row)
    return RunningSet(kept, num_tokens, evicted, why, num_blocks, ran_out)


@compiled
def _need(running: IntArray, num_tokens: IntArray, case: Case) -> IntArray:
    """New blocks that each takes to run so many tokens."""
    need, num_computed = zeros(len(running)), case.requests[NUM_COMPUTED_TOKENS]
    for place in range(len(running)):
        need[place] = new_blocks(case, running[place], num_computed[running[place]] + num_tokens[place])
    return need


@compiled
def _run_what_has_blocks(running: IntArray, case: Case) -> IntArray:
    """Tokens for those whose next token has a block, free blocks being given in order; 0 for the others."""
    block_size, left = case.limits.block_size, case.num_free_blocks
    is_stuck = nowhere(len(running))
    for place in range(len(running)):
        row = running[place]
        next_block = new_blocks(case, row, case.requests[NUM_COMPUTED_TOKENS, row] + 1)
        left -= next_block
        is_stuck[place] = next_block > 0 and left < 0
    able, left = those_where(running, is_stuck, False), case.num_free_blocks
    shared = share_tokens(able, case)
    need = _need(able, shared, case)
    for place in range(len(able)):
        row = able[place]
        granted = min(max(left, 0), need[place])
        left -= need[place]
        storable = (case.requests[NUM_BLOCKS, row] + granted) * block_size - case.requests[NUM_COMPUTED_TOKENS, row]
        shared[place] = min(shared[place], storable)
    return _by_place(with_decodes_that_wait(able, shared, case), is_stuck)


@compiled
def _by_place(items: IntArray, is_left_out: BoolArray) -> IntArray:
    """The items in turn, and 0 at the places that are left out."""
    by_place, count = zeros(len(is_left_out)), 0
    for place in range(len(is_left_out)):
        if not is_left_out[place]:
            by_place[place] = items[count]
            count += 1
    return by_place


@compiled
def choose_modes(evicted: IntArray, case: Case) -> IntArray:
    """Where the KV of each goes. Swap space is given in order; one that it cannot hold is computed again."""
    modes, left = zeros(len(evicted)), case.num_free_swap_blocks
    for place in range(len(evicted)):
        row = evicted[place]
        num_blocks = case.requests[NUM_BLOCKS, row]
        modes[place] = EvictMode.RECOMPUTE
        if _prefers_swap(case, row) and 0 < num_blocks <= case.num_free_swap_blocks:
            left -= num_blocks
            if left >= 0:
                modes[place] = EvictMode.SWAP
    return modes


@lean
def _prefers_swap(case: Case, row: int) -> bool:
    computed, latency = case.requests[NUM_COMPUTED_TOKENS, row], case.latency
    if computed == 0 or case.policy.eviction == Eviction.RECOMPUTE:
        return False
    if case.policy.eviction == Eviction.SWAP or not latency.is_known:
        return case.policy.eviction == Eviction.SWAP
    token_us = latency.prefill_token_us + latency.pass_us / case.limits.max_num_batched_tokens
    # A model may hold any figures. Those too large for a float leave nothing to compare, which means recompute.
    return case.requests[NUM_BLOCKS, row] * (2 * latency.swap_block_us) < computed * token_us
