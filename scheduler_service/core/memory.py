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

from scheduler_service.core.case import (
    NUM_BLOCKS,
    NUM_SHARED_BLOCKS,
    STATUS,
    Case,
    num_lacking_tokens,
    num_tokens,
    ran_before,
)
from scheduler_service.core.compiled import lean, rule
from scheduler_service.core.policy import Admission
from scheduler_service.core.state import RequestStatus
from scheduler_service.core.work import expected_outputs_left, most_outputs_left

_MOST = 2**20


@rule
def blocks_for(num_stored_tokens: int, block_size: int) -> int:
    """Blocks that store so many tokens."""
    return (num_stored_tokens + block_size - 1) // block_size


@rule
def new_blocks(case: Case, row: int, num_stored_tokens: int) -> int:
    """Blocks that it lacks to store so many tokens on the device, beside those that it holds there."""
    return max(blocks_for(num_stored_tokens, case.limits.block_size) - case.requests[NUM_BLOCKS, row], 0)


@rule
def blocks_alone(case: Case, row: int) -> int:
    """Blocks that nobody else holds: those that are free once it has left."""
    return case.requests[NUM_BLOCKS, row] - case.requests[NUM_SHARED_BLOCKS, row]


@lean
def tokens_to_hold(case: Case, row: int, admission: int) -> int:
    """Stored tokens that room is held for: all that it has and, as far as `admission` looks ahead, will have."""
    stored = num_tokens(case, row)
    if admission == Admission.WATERMARK:
        return stored
    outputs_left = most_outputs_left(case, row) if admission == Admission.RESERVE else expected_outputs_left(case, row)
    # Nobody can have more than there is; an executor ends an answer of open length where its blocks end.
    most = max(stored, case.limits.num_blocks * case.limits.block_size)
    return min(stored + outputs_left - 1, most)


@lean
def blocks_in_all(case: Case, row: int, admission: int) -> int:
    """Blocks of one on the device, with those that are held for it; for one in the queue, once it has entered."""
    stored = tokens_to_hold(case, row, admission)
    return max(blocks_for(stored, case.limits.block_size), case.requests[NUM_BLOCKS, row])


@lean
def blocks_held(case: Case, row: int) -> int:
    """Free blocks that are held for one on the device: no fewer than its pass takes, but for drafts."""
    return blocks_in_all(case, row, case.policy.admission) - case.requests[NUM_BLOCKS, row]


@lean
def blocks_taken_up(case: Case, row: int, admission: int) -> int:
    """Free blocks that it takes up in all when it enters the running set, and gives back when it leaves it.

    A cached prefix that others hold is there already; the rest of it is among the free blocks and is used up.
    """
    return blocks_in_all(case, row, admission) - _shared_blocks(case, row)


@rule
def _shared_blocks(case: Case, row: int) -> int:
    """Blocks of it that others hold too. Swapped requests share nothing on the device."""
    return 0 if case.requests[STATUS, row] == RequestStatus.SWAPPED else case.requests[NUM_SHARED_BLOCKS, row]


@lean
def block_passes(case: Case, row: int) -> int:
    """Blocks that one in the queue is expected to hold alone, added up over the passes until it is complete.

    As if it ran in every pass and held all the time the mean of what its tokens fill now and at its end.
    """
    outputs_left, block_size = expected_outputs_left(case, row), case.limits.block_size
    num_passes = blocks_for(num_lacking_tokens(case, row), case.policy.chunk_size_tokens) + outputs_left - 1
    now = blocks_for(num_tokens(case, row), block_size)
    at_end = blocks_for(num_tokens(case, row) + outputs_left - 1, block_size)
    alone = (now + at_end) // 2 - _shared_blocks(case, row)
    # Beyond a million of either they make no difference, and the sums over a queue stay whole.
    return min(num_passes, _MOST) * min(max(alone, 0), _MOST)


@lean
def kept_free(case: Case, row: int, num_beside: int) -> int:
    """Blocks that stay free when it enters beside so many others. Under RESERVE there is no need for any.

    The watermark for everybody; and for one that was evicted before, a block of growth for each request that then runs,
    itself included. So whoever comes back runs until one of them has filled a whole block: nobody is thrown in and out
    of the device, whatever the watermark. Beside nobody: nothing, or one that needs all blocks would never start.
    """
    if case.policy.admission == Admission.RESERVE or num_beside == 0:
        return 0
    growth = num_beside + 1 if ran_before(case, row) else 0
    return math.ceil(case.policy.watermark * case.limits.num_blocks) + growth
