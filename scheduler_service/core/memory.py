"""Blocks: what a request needs, what is to be kept free, and who can never fit.

- A request whose first t tokens are stored holds ceil(t / block_size) blocks. The newest token is stored by the pass
  after it, so a request with prompt p and at most m new tokens stores p + m - 1 tokens (m = 0, unknown: the prompt is
  all that is counted).
- A waiting request that never ran fits never if that is more than the executor's blocks hold, or if p + m is more than
  the model takes. One that ran before was let in on that bound; of it only the next token is asked. Requests on the
  device are the executor's to end.
- A running request may take a block in any pass. When someone enters beside others, blocks are kept free so that it is
  not thrown out again at once: see `kept_free`.
"""

from __future__ import annotations

import math

import numpy as np

from scheduler_service.core.executor_plan import Reason, Rejections
from scheduler_service.core.ordering import in_order
from scheduler_service.core.policy import Policy
from scheduler_service.core.state import (
    BoolArray,
    ExecutorLimits,
    ExecutorState,
    IntArray,
    Requests,
    RequestStatus,
    rows_where,
)


def blocks_for(num_tokens: IntArray, block_size: int) -> IntArray:
    """Blocks that store so many tokens."""
    num_blocks: IntArray = -(-num_tokens // block_size)
    return num_blocks


def new_blocks(requests: Requests, num_stored_tokens: IntArray, block_size: int) -> IntArray:
    """Blocks that each lacks to store so many tokens on the device, beside those that it holds there."""
    lacking: IntArray = np.maximum(blocks_for(num_stored_tokens, block_size) - requests.num_blocks, 0)
    return lacking


def blocks_to_enter(requests: Requests, block_size: int) -> IntArray:
    """Free blocks that each takes up in all when it enters the running set: for its whole prompt, or, if it ran before,
    for all that it stored and the next token.

    A cached prefix that others hold is there already; the rest of it is among the free blocks and is used up.
    """
    all_blocks = np.maximum(blocks_for(requests.num_tokens, block_size), requests.num_blocks)
    # Swapped requests share nothing on the device.
    to_take: IntArray = all_blocks - requests.num_shared_blocks * requests.having(RequestStatus.WAITING)
    return to_take


def kept_free(candidates: Requests, num_running: int, limits: ExecutorLimits, policy: Policy) -> IntArray:
    """Blocks that stay free beside each candidate, if those before it enter.

    The watermark for everybody; and for one that was evicted before, a block of growth for each request that then runs,
    itself included. So whoever comes back runs until one of them has filled a whole block: nobody is thrown in and out
    of the device, whatever the watermark. Nobody else running: nothing, or one that needs all blocks would never start.
    """
    num_then_running = np.arange(num_running + 1, num_running + 1 + len(candidates))
    growth = num_then_running * has_run(candidates)
    kept: IntArray = growth + math.ceil(policy.watermark * limits.num_blocks)
    if num_running == 0:
        kept[:1] = 0
    return kept


def has_run(requests: Requests) -> BoolArray:
    """Which of the waiting and swapped requests have run before. They come before those that never did."""
    return requests.having(RequestStatus.SWAPPED) | (requests.num_preemptions > 0)


def never_fitting(executor: ExecutorState) -> IntArray:
    """Rows of those in the queue that can never run here, in order."""
    requests, limits = executor.requests, executor.limits
    # t - 1 tokens take more than all blocks exactly if t - 1 > num_blocks * block_size: no division over the queue.
    most = min(limits.num_blocks * limits.block_size + 1, limits.max_model_len)
    rows = rows_where(_longest(requests) > most)
    if len(rows) > 0:
        suspects = requests.take(rows)
        in_queue = suspects.having(RequestStatus.WAITING) | suspects.having(RequestStatus.SWAPPED)
        rows = in_order(requests, rows[in_queue & (_length_asked(suspects) > most)])
    return rows


def rejections(rejected: Requests, limits: ExecutorLimits) -> Rejections:
    """Those that never fit, each with what it needs of what there is."""
    if len(rejected) == 0:
        return Rejections()
    length = _length_asked(rejected)
    blocks = blocks_for(length - 1, limits.block_size)
    exceeds_blocks = blocks > limits.num_blocks
    return Rejections(
        id=rejected.id,
        reason=np.where(exceeds_blocks, Reason.REJECTED_EXCEEDS_BLOCKS.value, Reason.REJECTED_EXCEEDS_MODEL_LEN.value),
        needed=np.where(exceeds_blocks, blocks, length),
        available=np.where(exceeds_blocks, limits.num_blocks, limits.max_model_len),
        estimated_wait_us=np.zeros_like(length),
    )


def _longest(requests: Requests) -> IntArray:
    """Prompt and all output that each may have; at least the token that it computes next."""
    longest: IntArray = requests.num_prompt_tokens + np.maximum(
        requests.max_output_tokens, requests.num_output_tokens + 1
    )
    return longest


def _length_asked(requests: Requests) -> IntArray:
    """The length that must fit: all of it for one that never ran, the next token for one that did."""
    return np.where(has_run(requests), requests.num_tokens + 1, _longest(requests))
