"""Who leaves the device when blocks run out, and where the KV goes.

- Blocks have run out when the pass of all that run needs more new blocks than are free. Then the largest prefix of the
  policy's order stays whose need is covered by the free blocks and by what evicting all behind it frees; a request
  frees the blocks that nobody else holds. The first in order is never evicted, so it finishes; requests whose KV is
  still loading are no victims.
- Those that stay share the whole token budget, which may make them need more: then the prefix shrinks again.
- Where not even evicting all but the first would let it run (others that load hold the blocks), nobody is evicted, and
  those run whose next token has a block.
- SWAP where the swap space has room for all blocks of the victim, else RECOMPUTE. AUTO takes the cheaper by the latency
  model: copying out and in, against computing the tokens again with their share of passes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from scheduler_service.core.chunking import share_tokens
from scheduler_service.core.executor_plan import Evictions, EvictMode, Reason
from scheduler_service.core.memory import new_blocks
from scheduler_service.core.policy import Eviction, Policy
from scheduler_service.core.state import BoolArray, ExecutorState, IntArray, Requests, rows_where


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RunningSet:
    """What becomes of the running requests: who stays, in order, with its tokens; who is evicted, in order.

    `num_free_blocks`: blocks that are free once the evicted have left, before those that stay take new ones.
    """

    kept: Requests
    num_tokens: IntArray
    evicted: Requests
    num_free_blocks: int
    ran_out: bool


def make_room(running: Requests, executor: ExecutorState, policy: Policy) -> RunningSet:
    """Evict as many of `running`, which is in order, as must go for the others to run."""
    free, block_size = executor.num_free_blocks, executor.limits.block_size
    num_kept, num_free = len(running), free
    num_tokens = _share(running, executor, policy)
    need = new_blocks(running, running.num_computed_tokens + num_tokens, block_size)
    if int(need.sum()) <= free:
        return _split(running, num_kept, num_tokens, free, ran_out=False)

    # free_without[k]: free blocks once all behind the first k have left.
    freed = (running.num_blocks - running.num_shared_blocks)[::-1].cumsum()[::-1]
    free_without = free + np.append(freed, 0)
    while num_kept > 0 and int(need.sum()) > num_free:
        # The need grows with the prefix and what is freed shrinks, so the prefixes that fit are the short ones.
        num_kept = int(np.count_nonzero(np.cumsum(need[:-1]) <= free_without[1:num_kept]))
        num_free = int(free_without[num_kept])
        kept = running.first(num_kept)
        num_tokens = _share(kept, executor, policy)
        need = new_blocks(kept, kept.num_computed_tokens + num_tokens, block_size)
    if num_kept == 0:
        return _split(running, len(running), _run_what_has_blocks(running, executor, policy), free, ran_out=True)
    return _split(running, num_kept, num_tokens, num_free, ran_out=True)


def choose_modes(evicted: Requests, executor: ExecutorState, policy: Policy) -> Evictions:
    """Where the KV of each goes. Swap space is given in order; one that it cannot hold is computed again."""
    if len(evicted) == 0:
        return Evictions()
    wanted = _prefers_swap(evicted, executor, policy) & (evicted.num_computed_tokens > 0)
    blocks = np.where(wanted & (evicted.num_blocks <= executor.num_free_swap_blocks), evicted.num_blocks, 0)
    swapped = (blocks > 0) & (np.cumsum(blocks) <= executor.num_free_swap_blocks)
    return Evictions(
        id=evicted.id,
        mode=np.where(swapped, EvictMode.SWAP.value, EvictMode.RECOMPUTE.value),
        reason=np.full(len(evicted), Reason.EVICTED_OUT_OF_BLOCKS.value),
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


def _share(running: Requests, executor: ExecutorState, policy: Policy) -> IntArray:
    limits = executor.limits
    # The drafts of one request must leave room in the batch, and in the cache if it had that to itself.
    room_in_cache = limits.num_blocks * limits.block_size - running.num_computed_tokens - 1
    max_draft_tokens = np.clip(room_in_cache, 0, limits.max_num_batched_tokens - 1)
    return share_tokens(running, limits.max_num_batched_tokens, max_draft_tokens, policy)


def _run_what_has_blocks(running: Requests, executor: ExecutorState, policy: Policy) -> IntArray:
    """Tokens for those whose next token has a block, free blocks being given in order; 0 for the others."""
    free, block_size = executor.num_free_blocks, executor.limits.block_size
    next_block = new_blocks(running, running.num_computed_tokens + 1, block_size)
    rows = rows_where((next_block == 0) | (np.cumsum(next_block) <= free))
    able = running.take(rows)
    shared = _share(able, executor, policy)
    need = new_blocks(able, able.num_computed_tokens + shared, block_size)
    granted = np.clip(free - (np.cumsum(need) - need), 0, need)
    storable = (able.num_blocks + granted) * block_size - able.num_computed_tokens
    num_tokens = np.zeros(len(running), dtype=np.int64)
    num_tokens[rows] = np.minimum(shared, storable)
    return num_tokens


def _split(running: Requests, num_kept: int, num_tokens: IntArray, num_free: int, *, ran_out: bool) -> RunningSet:
    return RunningSet(
        kept=running.first(num_kept),
        num_tokens=num_tokens,
        evicted=running.rest(num_kept),
        num_free_blocks=num_free,
        ran_out=ran_out,
    )
