"""Who leaves the device first.

- LAST_IN_ORDER: the last in the policy's order.
- CHEAPEST: the one with the least lost work for the blocks that it frees: tokens to compute again (a prefix that others
  hold survives) against blocks that nobody else holds; under PRIORITY, of the least important. Ties: the last in order.
- Who was evicted `max_preemptions` times goes after all others.
- The first in order goes last of all, so it finishes.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from scheduler_service.core.policy import Ordering, Policy, Victim
from scheduler_service.core.state import BoolArray, IntArray, Requests


def in_order_of_staying(running: Requests, block_size: int, policy: Policy) -> IntArray:
    """Rows of `running`, which is in order: who stays longest comes first, the first victim last."""
    rows = np.arange(len(running))
    if policy.victim is Victim.LAST_IN_ORDER and policy.max_preemptions is None:
        return rows
    keys: list[NDArray[Any]] = [rows]
    if policy.victim is Victim.CHEAPEST:
        keys.append(-_lost_tokens_a_block(running, block_size))
        if policy.ordering is Ordering.PRIORITY:
            keys.append(-running.priority)
    keys.append(~is_protected(running, policy))
    keys.append(rows > 0)
    return np.lexsort(keys)


def is_protected(running: Requests, policy: Policy) -> BoolArray:
    """Who was evicted so often that others go first."""
    if policy.max_preemptions is None:
        return np.zeros(len(running), dtype=np.bool_)
    return running.num_preemptions >= policy.max_preemptions


def freed_blocks(running: Requests) -> IntArray:
    """Blocks that are free once each has left: those that nobody else holds."""
    freed: IntArray = running.num_blocks - running.num_shared_blocks
    return freed


def _lost_tokens_a_block(running: Requests, block_size: int) -> IntArray:
    """Lost tokens for each block freed, in 1/1024: whole numbers, to compare them exactly."""
    lost = np.maximum(running.num_computed_tokens - running.num_shared_blocks * block_size, 0)
    freed = freed_blocks(running)
    # One that frees nothing is no help at any price.
    return np.where(freed > 0, lost * 1024 // np.maximum(freed, 1), np.iinfo(np.int64).max)
