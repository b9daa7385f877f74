"""Who leaves the device first.

- LAST_IN_ORDER: the last in the policy's order.
- CHEAPEST: the one with the least lost work for the blocks that it frees: tokens to compute again (a prefix that others
  hold survives) against blocks that nobody else holds; under PRIORITY, of the least important. Ties: the last in order.
- Who was evicted `max_preemptions` times goes after all others.
- The first in order goes last of all, so it finishes.
"""

from __future__ import annotations

import numpy as np

from scheduler_service.core.case import (
    NUM_COMPUTED_TOKENS,
    NUM_PREEMPTIONS,
    NUM_SHARED_BLOCKS,
    PRIORITY,
    Case,
)
from scheduler_service.core.compiled import compiled, rule
from scheduler_service.core.memory import blocks_alone
from scheduler_service.core.policy import Ordering, Victim
from scheduler_service.core.sorting import places_in_order
from scheduler_service.core.state import IntArray

_MOST = 2**63 - 1


@compiled
def in_order_of_staying(running: IntArray, case: Case) -> IntArray:
    """Places in `running`, which is in order: who stays longest comes first, the first victim last."""
    cheapest_first = case.policy.victim == Victim.CHEAPEST
    keys = np.empty((4, len(running)), dtype=np.int64)
    for place in range(len(running)):
        row = running[place]
        keys[0, place] = place > 0
        keys[1, place] = not is_protected(case, row)
        keys[2, place] = 0
        if cheapest_first and case.policy.ordering == Ordering.PRIORITY:
            keys[2, place] = -case.requests[PRIORITY, row]
        keys[3, place] = -_lost_tokens_a_block(case, row) if cheapest_first else 0
    return places_in_order(keys)


@rule
def is_protected(case: Case, row: int) -> bool:
    """Whether it was evicted so often that others go first."""
    return case.requests[NUM_PREEMPTIONS, row] >= case.policy.max_preemptions


@rule
def _lost_tokens_a_block(case: Case, row: int) -> int:
    """Lost tokens for each block freed, in 1/1024: whole numbers, to compare them exactly."""
    freed = blocks_alone(case, row)
    # One that frees nothing is no help at any price.
    if freed <= 0:
        return _MOST
    kept = case.requests[NUM_SHARED_BLOCKS, row] * case.limits.block_size
    return max(case.requests[NUM_COMPUTED_TOKENS, row] - kept, 0) * 1024 // freed
