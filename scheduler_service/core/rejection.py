"""Who is turned away.

- Who can never run here. A waiting request that never ran fits never if all that it may become is more than the
  executor's blocks hold, or than the model takes (length unknown: the prompt is all that is asked). One that ran before
  was let in on that bound; of it only the next token is asked. Requests on the device are the executor's to end.
- Who cannot meet its deadline any more (`reject_missed_deadlines`): even alone on the executor, by the latency model,
  it would be late. Without a model: whose deadline is past.
- Who is over the limit of the queue: `surge.py`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from scheduler_service.core.executor_plan import NO_REJECTIONS, Reason, Rejections
from scheduler_service.core.latency import time_alone_us
from scheduler_service.core.memory import blocks_for
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

_NONE: IntArray = np.zeros(0, dtype=np.int64)


def _none() -> IntArray:
    return _NONE


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Rejected:
    """Rows that are turned away, with their reasons and figures; of equal length."""

    rows: IntArray = field(default_factory=_none)
    reason: IntArray = field(default_factory=_none)
    needed: IntArray = field(default_factory=_none)
    available: IntArray = field(default_factory=_none)
    estimated_wait_us: IntArray = field(default_factory=_none)

    def beside(self, others: Rejected) -> Rejected:
        """Both; the rows of the two are different ones."""
        if len(self.rows) == 0 or len(others.rows) == 0:
            return self if len(others.rows) == 0 else others
        return Rejected(
            **{name: np.concatenate((getattr(self, name), getattr(others, name))) for name in self.__slots__}
        )

    def table(self, ranked: Requests) -> Rejections:
        """As a list of the plan, in order."""
        if len(self.rows) == 0:
            return NO_REJECTIONS
        position = np.argsort(self.rows)
        order = position[np.searchsorted(self.rows[position], in_order(ranked.of(self.rows)).rows)]
        columns = {name: getattr(self, name)[order] for name in self.__slots__ if name != "rows"}
        return Rejections(id=ranked.id[self.rows[order]], **columns)


NOBODY = Rejected()


def hopeless(ranked: Requests, executor: ExecutorState, policy: Policy) -> Rejected:
    """Those in the queue that can never run, and those that would be late."""
    rejected = _never_fitting(ranked, executor)
    if policy.reject_missed_deadlines:
        late = _late(ranked, executor, policy)
        known = np.isin(late.rows, rejected.rows, invert=True)
        rejected = rejected.beside(Rejected(**{name: getattr(late, name)[known] for name in late.__slots__}))
    return rejected


def _never_fitting(requests: Requests, executor: ExecutorState) -> Rejected:
    limits = executor.limits
    # t - 1 tokens take more than all blocks exactly if t - 1 > num_blocks * block_size: no division over the queue.
    most = min(limits.num_blocks * limits.block_size + 1, limits.max_model_len)
    greatest = requests.whole.greatest
    if greatest["num_prompt_tokens"] + max(greatest["max_output_tokens"], greatest["num_output_tokens"] + 1) <= most:
        return NOBODY
    rows = rows_where(_longest(requests) > most)
    if len(rows) > 0:
        suspects = requests.take(rows)
        rows = rows[_in_queue(suspects) & (_length_asked(suspects) > most)]
    return _too_large(requests.take(rows), rows, limits) if len(rows) > 0 else NOBODY


def _too_large(rejected: Requests, rows: IntArray, limits: ExecutorLimits) -> Rejected:
    length = _length_asked(rejected)
    blocks = blocks_for(length - 1, limits.block_size)
    exceeds_blocks = blocks > limits.num_blocks
    return Rejected(
        rows=rows,
        reason=np.where(exceeds_blocks, int(Reason.REJECTED_EXCEEDS_BLOCKS), int(Reason.REJECTED_EXCEEDS_MODEL_LEN)),
        needed=np.where(exceeds_blocks, blocks, length),
        available=np.where(exceeds_blocks, limits.num_blocks, limits.max_model_len),
        estimated_wait_us=np.zeros_like(length),
    )


def _late(requests: Requests, executor: ExecutorState, policy: Policy) -> Rejected:
    rows = rows_where((requests.deadline_us > 0) & _in_queue(requests))
    left_us = requests.deadline_us[rows] - executor.now_us
    needed_us = time_alone_us(requests.take(rows), executor, policy)
    late = rows_where(needed_us > left_us)
    return Rejected(
        rows=rows[late],
        reason=np.full(len(late), int(Reason.REJECTED_DEADLINE)),
        needed=needed_us[late],
        available=np.maximum(left_us[late], 0),
        estimated_wait_us=np.zeros(len(late), dtype=np.int64),
    )


def _in_queue(requests: Requests) -> BoolArray:
    in_queue: BoolArray = requests.having(RequestStatus.WAITING) | requests.having(RequestStatus.SWAPPED)
    return in_queue


def _longest(requests: Requests) -> IntArray:
    """Prompt and all output that each may have; at least the token that it computes next."""
    longest: IntArray = requests.num_prompt_tokens + np.maximum(
        requests.max_output_tokens, requests.num_output_tokens + 1
    )
    return longest


def _length_asked(requests: Requests) -> IntArray:
    """The length that must fit: all of it for one that never ran, the next token for one that did."""
    return np.where(requests.ran_before, requests.num_tokens + 1, _longest(requests))
