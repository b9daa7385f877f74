"""Who is turned away.

- Who can never run here. A waiting request that never ran fits never if all that it may become is more than the
  executor's blocks hold, or than the model takes (length unknown: the prompt is all that is asked). One that ran before
  was let in on that bound; of it only the next token is asked. Requests on the device are the executor's to end.
- Who cannot meet its deadline any more (`reject_missed_deadlines`): even alone on the executor, by the latency model,
  it would be late. Without a model: whose deadline is past.
- Who is over the limit of the queue: `surge.py`.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from scheduler_service.core.case import (
    DEADLINE_US,
    ID,
    MAX_OUTPUT_TOKENS,
    NUM_OUTPUT_TOKENS,
    NUM_PROMPT_TOKENS,
    Case,
    is_on_device,
    num_tokens,
    ran_before,
)
from scheduler_service.core.compiled import compiled, rule
from scheduler_service.core.executor_plan import Reason
from scheduler_service.core.latency import time_alone_us
from scheduler_service.core.memory import blocks_for
from scheduler_service.core.ordering import order_of
from scheduler_service.core.rows import joined, nowhere, places_where, zeros
from scheduler_service.core.state import IntArray

# Not turned away.
NOT_REJECTED = 0


class Rejected(NamedTuple):
    """Rows that are turned away, each once, and columns of `Rejections` beside them; of equal length."""

    rows: IntArray
    reason: IntArray
    needed: IntArray
    available: IntArray
    estimated_wait_us: IntArray


@compiled
def room_for(rows: IntArray) -> Rejected:
    """These rows, the figures to be filled in."""
    count = len(rows)
    return Rejected(rows, zeros(count), zeros(count), zeros(count), zeros(count))


@compiled
def hopeless(case: Case) -> Rejected:
    """Those in the queue that can never run, and those that would be late."""
    is_hopeless = nowhere(len(case.rank))
    for row in range(len(is_hopeless)):
        is_hopeless[row] = _why(case, row) != NOT_REJECTED
    rows = places_where(is_hopeless)
    rejected = room_for(rows)
    for place in range(len(rows)):
        row = rows[place]
        reason = _why(case, row)
        rejected.reason[place] = reason
        if reason == Reason.REJECTED_EXCEEDS_BLOCKS:
            rejected.needed[place] = blocks_for(_length_asked(case, row) - 1, case.limits.block_size)
            rejected.available[place] = case.limits.num_blocks
        elif reason == Reason.REJECTED_EXCEEDS_MODEL_LEN:
            rejected.needed[place] = _length_asked(case, row)
            rejected.available[place] = case.limits.max_model_len
        else:
            rejected.needed[place] = time_alone_us(case, row)
            rejected.available[place] = max(case.requests[DEADLINE_US, row] - case.now_us, 0)
    return rejected


@rule
def _why(case: Case, row: int) -> int:
    if is_on_device(case, row):
        return NOT_REJECTED
    length, deadline_us = _length_asked(case, row), case.requests[DEADLINE_US, row]
    if length - 1 > case.limits.num_blocks * case.limits.block_size:
        return Reason.REJECTED_EXCEEDS_BLOCKS
    if length > case.limits.max_model_len:
        return Reason.REJECTED_EXCEEDS_MODEL_LEN
    if case.policy.reject_missed_deadlines and deadline_us > 0:
        return Reason.REJECTED_DEADLINE if time_alone_us(case, row) > deadline_us - case.now_us else NOT_REJECTED
    return NOT_REJECTED


@rule
def _length_asked(case: Case, row: int) -> int:
    """The length that must fit: all of it for one that never ran, the next token for one that did."""
    requests = case.requests
    if ran_before(case, row):
        return num_tokens(case, row) + 1
    num_outputs = max(requests[MAX_OUTPUT_TOKENS, row], requests[NUM_OUTPUT_TOKENS, row] + 1)
    return requests[NUM_PROMPT_TOKENS, row] + num_outputs


@compiled
def beside(rejected: Rejected, others: Rejected) -> Rejected:
    """Both; the rows of the two are different ones."""
    return Rejected(
        joined(rejected.rows, others.rows),
        joined(rejected.reason, others.reason),
        joined(rejected.needed, others.needed),
        joined(rejected.available, others.available),
        joined(rejected.estimated_wait_us, others.estimated_wait_us),
    )


@compiled
def rejections(rejected: Rejected, case: Case) -> IntArray:
    """The list of the plan, in order: the columns of `Rejections`, one below the other."""
    table = np.empty((5, len(rejected.rows)), dtype=np.int64)
    order = order_of(rejected.rows, case)
    for place in range(len(order)):
        which = order[place]
        table[0, place] = case.requests[ID, rejected.rows[which]]
        table[1, place] = rejected.reason[which]
        table[2, place] = rejected.needed[which]
        table[3, place] = rejected.available[which]
        table[4, place] = rejected.estimated_wait_us[which]
    return table
