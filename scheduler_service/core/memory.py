"""Blocks: what a request needs, what is held for it, and what is kept free.

- A request whose first t tokens are stored holds ceil(t / block_size) blocks. The newest token is stored by the pass
  after it, so a request with prompt p and at most m new tokens stores p + m - 1 tokens.
- Room is held for a request from the moment that it enters (`tokens_to_hold`). WATERMARK: for its whole prompt, or
  what it stored and the next token. RESERVE: for all that it may become, so blocks cannot run out. PREDICTIVE: for what
  it is expected to become.
- Where blocks can run out, some are kept free when someone enters beside others: see `kept_free`.
"""

from __future__ import annotations

import math

import numpy as np

from scheduler_service.core.policy import Admission, Policy
from scheduler_service.core.state import ExecutorLimits, IntArray, Requests, RequestStatus
from scheduler_service.core.work import expected_outputs_left, most_outputs_left

_MOST = 2**20


def blocks_for(num_tokens: IntArray, block_size: int) -> IntArray:
    """Blocks that store so many tokens."""
    num_blocks: IntArray = -(-num_tokens // block_size)
    return num_blocks


def new_blocks(requests: Requests, num_stored_tokens: IntArray, block_size: int) -> IntArray:
    """Blocks that each lacks to store so many tokens on the device, beside those that it holds there."""
    lacking: IntArray = np.maximum(blocks_for(num_stored_tokens, block_size) - requests.num_blocks, 0)
    return lacking


def tokens_to_hold(requests: Requests, limits: ExecutorLimits, policy: Policy) -> IntArray:
    """Stored tokens that room is held for: all that each has and, as far as the policy looks ahead, will have."""
    if policy.admission is Admission.WATERMARK:
        return requests.num_tokens
    outputs_left = most_outputs_left if policy.admission is Admission.RESERVE else expected_outputs_left
    # Nobody can have more than there is; an executor ends an answer of open length where its blocks end.
    most = np.maximum(requests.num_tokens, limits.num_blocks * limits.block_size)
    ahead: IntArray = np.minimum(requests.num_tokens + outputs_left(requests, limits) - 1, most)
    return ahead


def blocks_held(requests: Requests, num_tokens: IntArray, limits: ExecutorLimits, policy: Policy) -> IntArray:
    """Free blocks that are held for each of those on the device, which run so many tokens in the pass.

    No fewer than the pass takes.
    """
    stored = tokens_to_hold(requests, limits, policy)
    # Whatever a request lacks is among them, but not its drafts.
    if requests.whole.greatest["num_draft_tokens"] > 0:
        stored = np.maximum(stored, requests.num_computed_tokens + num_tokens)
    return new_blocks(requests, stored, limits.block_size)


def blocks_to_enter(requests: Requests, limits: ExecutorLimits, policy: Policy) -> IntArray:
    """Free blocks that each takes up in all when it enters the running set, with those that are held for it.

    A cached prefix that others hold is there already; the rest of it is among the free blocks and is used up.
    """
    all_blocks: IntArray = np.maximum(
        blocks_for(tokens_to_hold(requests, limits, policy), limits.block_size), requests.num_blocks
    )
    if requests.whole.greatest["num_shared_blocks"] == 0:
        return all_blocks
    # Swapped requests share nothing on the device.
    to_take: IntArray = all_blocks - requests.num_shared_blocks * requests.having(RequestStatus.WAITING)
    return to_take


def block_passes(requests: Requests, limits: ExecutorLimits, policy: Policy) -> IntArray:
    """Blocks that each of a queue is expected to hold alone, added up over the passes until it is complete.

    As if it ran in every pass and held all the time the mean of what its tokens fill now and at its end.
    """
    outputs_left = expected_outputs_left(requests, limits)
    num_passes = blocks_for(requests.num_lacking_tokens, policy.chunk_size_tokens) + outputs_left - 1
    now = blocks_for(requests.num_tokens, limits.block_size)
    at_end = blocks_for(requests.num_tokens + outputs_left - 1, limits.block_size)
    alone = (now + at_end) // 2 - requests.num_shared_blocks * requests.having(RequestStatus.WAITING)
    # Beyond a million of either they make no difference, and the sums over a queue stay whole.
    held: IntArray = np.minimum(num_passes, _MOST) * np.clip(alone, 0, _MOST)
    return held


def kept_free(
    candidates: Requests, num_beside: IntArray | int, limits: ExecutorLimits, policy: Policy
) -> IntArray | int:
    """Blocks that stay free when each candidate enters beside so many others. Under RESERVE there is no need for any.

    The watermark for everybody; and for one that was evicted before, a block of growth for each request that then runs,
    itself included. So whoever comes back runs until one of them has filled a whole block: nobody is thrown in and out
    of the device, whatever the watermark. Beside nobody: nothing, or one that needs all blocks would never start.
    """
    if policy.admission is Admission.RESERVE:
        return 0
    kept: IntArray | int = math.ceil(policy.watermark * limits.num_blocks)
    if candidates.whole.anyone_ran_before:
        kept = kept + candidates.ran_before * (num_beside + 1)
    return kept * (num_beside > 0)
