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

import numpy as np

from scheduler_service.core.composition import share_tokens
from scheduler_service.core.executor_plan import NO_EVICTIONS, Evictions, EvictMode, Reason
from scheduler_service.core.memory import blocks_held, new_blocks
from scheduler_service.core.policy import Eviction, Policy, Preemption
from scheduler_service.core.state import NO_ROWS, BoolArray, ExecutorState, IntArray, Requests, rows_where
from scheduler_service.core.victims import freed_blocks, in_order_of_staying


class RunningSet(NamedTuple):
    """What becomes of the running requests: who stays, in order, with its tokens; who is evicted, in order, and why.

    `held`: blocks that are held for each that stays, beside those that it has. `num_blocks`: those that are free once
    the evicted have left, less all `held`.
    """

    kept: Requests
    num_tokens: IntArray
    held: IntArray
    evicted: Requests
    why: Reason
    num_blocks: int
    ran_out: bool


def make_room(running: Requests, executor: ExecutorState, policy: Policy) -> RunningSet:
    """Evict as many of `running`, which is in order, as must go for the others to run."""
    num_tokens = share_tokens(running, executor, policy)
    everyone = without(running, NO_ROWS, num_tokens, executor, policy)
    # What is held for them covers their pass.
    if everyone.num_blocks >= 0:
        return everyone
    free, block_size = executor.num_free_blocks, executor.limits.block_size
    need = new_blocks(running, running.num_computed_tokens + num_tokens, block_size)
    if int(need.sum()) <= free:
        return everyone

    staying = in_order_of_staying(running, block_size, policy)
    # freed[k]: blocks that are free once all but the k that stay longest have left.
    freed = free + np.append(freed_blocks(running)[staying][::-1].cumsum()[::-1], 0)
    num_kept = 0 if policy.preemption is Preemption.NEVER else len(running)
    while num_kept > 0 and int(need.sum()) > freed[num_kept]:
        # The need of those that stay grows with them and what is freed shrinks, so fewer fit where more do.
        by_staying = _spread(need, staying[:num_kept])
        num_kept = int(np.count_nonzero(np.cumsum(by_staying[:-1]) <= freed[1:num_kept]))
        kept = running.take(np.sort(staying[:num_kept]))
        num_tokens = share_tokens(kept, executor, policy)
        need = new_blocks(kept, kept.num_computed_tokens + num_tokens, block_size)
    if num_kept == 0:
        num_tokens, staying = _run_what_has_blocks(running, executor, policy), staying[:0]
    victims = np.sort(staying[num_kept:])
    return without(running, victims, num_tokens, executor, policy)._replace(ran_out=True)


def _spread(need: IntArray, staying: IntArray) -> IntArray:
    """What is given in the policy's order, in the order of staying."""
    by_staying: IntArray = need[np.argsort(np.argsort(staying))]
    return by_staying


def without(
    running: Requests,
    victims: IntArray,
    num_tokens: IntArray,
    executor: ExecutorState,
    policy: Policy,
    why: Reason = Reason.EVICTED_OUT_OF_BLOCKS,
) -> RunningSet:
    """The running set without those at these positions, which ascend. `num_tokens`: of those that stay."""
    evicted, kept, num_free = running.of(NO_ROWS), running, executor.num_free_blocks
    if len(victims) > 0:
        evicted = running.take(victims)
        stays = np.ones(len(running), dtype=np.bool_)
        stays[victims] = False
        kept = running.take(rows_where(stays))
        num_free += int(freed_blocks(evicted).sum())
    held = blocks_held(kept, num_tokens, executor.limits, policy)
    return RunningSet(
        kept=kept,
        num_tokens=num_tokens,
        held=held,
        evicted=evicted,
        why=why,
        num_blocks=num_free - int(held.sum()),
        ran_out=False,
    )


def choose_modes(evicted: Requests, why: Reason, executor: ExecutorState, policy: Policy) -> Evictions:
    """Where the KV of each goes. Swap space is given in order; one that it cannot hold is computed again."""
    if len(evicted) == 0:
        return NO_EVICTIONS
    wanted = _prefers_swap(evicted, executor, policy) & (evicted.num_computed_tokens > 0)
    blocks = np.where(wanted & (evicted.num_blocks <= executor.num_free_swap_blocks), evicted.num_blocks, 0)
    swapped = (blocks > 0) & (np.cumsum(blocks) <= executor.num_free_swap_blocks)
    return Evictions(
        id=evicted.id,
        mode=np.where(swapped, int(EvictMode.SWAP), int(EvictMode.RECOMPUTE)),
        reason=np.full(len(evicted), int(why)),
    )


def _prefers_swap(evicted: Requests, executor: ExecutorState, policy: Policy) -> BoolArray:
    latency = executor.latency
    if policy.eviction is Eviction.SWAP:
        return np.ones(len(evicted), dtype=np.bool_)
    if policy.eviction is Eviction.RECOMPUTE or latency is None:
        return np.zeros(len(evicted), dtype=np.bool_)
    token_us = latency.prefill_token_us + latency.pass_us / executor.limits.max_num_batched_tokens
    # A model may hold any figures. Those too large for a float leave nothing to compare, which means recompute.
    with np.errstate(over="ignore", invalid="ignore"):
        swap_us = evicted.num_blocks * (2 * latency.swap_block_us)
        cheaper: BoolArray = swap_us < evicted.num_computed_tokens * token_us
    return cheaper


def _run_what_has_blocks(running: Requests, executor: ExecutorState, policy: Policy) -> IntArray:
    """Tokens for those whose next token has a block, free blocks being given in order; 0 for the others."""
    free, block_size = executor.num_free_blocks, executor.limits.block_size
    next_block = new_blocks(running, running.num_computed_tokens + 1, block_size)
    rows = rows_where((next_block == 0) | (np.cumsum(next_block) <= free))
    able = running.take(rows)
    shared = share_tokens(able, executor, policy)
    need = new_blocks(able, able.num_computed_tokens + shared, block_size)
    granted = np.clip(free - (np.cumsum(need) - need), 0, need)
    storable = (able.num_blocks + granted) * block_size - able.num_computed_tokens
    num_tokens = np.zeros(len(running), dtype=np.int64)
    num_tokens[rows] = np.minimum(shared, storable)
    return num_tokens
