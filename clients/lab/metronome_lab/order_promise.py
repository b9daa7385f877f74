"""Whether a policy kept its promise of how long anyone waits: docs/policies.md has the bounds, which are about order.

Under FIFO nobody passes anybody. Under aged PRIORITY a request of priority p is passed only by those of priority q that
arrive less than (q - p + 1) x `aging_seconds` after it; under aged SHORTEST_JOB_FIRST one with w tokens left by one
with v only if that arrives within log2(w / v) x `aging_seconds`, and under SHORTEST_PREFILL_FIRST the same holds of
prompts. Under FEWEST_LATE nobody is passed by one that arrives more than `aging_seconds` after it. Under FAIR it is so
among the requests of one tenant, by the ordering there; how tenants share is told in figures (`fairness.py`). Other
orderings, and a head of line that lets others by, promise something else, which is not looked at here.

A prompt counts whole for who waits, since how much of it a cache had at the time is not known later, and less what was
found in the cache for who enters.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metronome_lab.records import NEVER, Records
from scheduler_service.core.policy import HeadOfLine, Ordering, Policy

# A logarithm that is straight between powers of two is at most so much below the true one.
_LOG2_ERROR = 0.0861


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderPromise:
    """`num_broken`: requests that entered although one waited that they may not pass. None: nothing is promised."""

    num_broken: int | None

    @property
    def is_kept(self) -> bool | None:
        return None if self.num_broken is None else self.num_broken == 0


def order_promise(records: Records, policy: Policy) -> OrderPromise:
    """Of those that ran, and before they ran for the first time."""
    if policy.head_of_line is not HeadOfLine.STRICT or policy.hold_for_shared_prefix:
        return OrderPromise(num_broken=None)
    ranked = _ranks(records, policy)
    if ranked is None:
        return OrderPromise(num_broken=None)
    requests, workload = records.requests, records.requests.workload
    ran = requests.first_run_us != NEVER
    among = workload.tenant if policy.ordering is Ordering.FAIR else np.zeros_like(workload.tenant)
    queues = np.unique(np.stack([requests.executor[ran], among[ran]]), axis=1).T.tolist()
    return OrderPromise(
        num_broken=sum(
            _num_broken(records, np.flatnonzero(ran & (requests.executor == executor) & (among == tenant)), *ranked)
            for executor, tenant in queues
        )
    )


def _ranks(records: Records, policy: Policy) -> tuple[NDArray[np.float64], NDArray[np.float64], float] | None:
    """What each is ordered by while it waits and when it enters, the least first; and by how much one that is passed
    may stand before who passes.
    """
    workload, aging_us = records.requests.workload, policy.aging_seconds * 1e6
    arrived = workload.arrival_us / aging_us
    match policy.ordering_within_tenant if policy.ordering is Ordering.FAIR else policy.ordering:
        case Ordering.FIFO:
            by_arrival = workload.arrival_us.astype(np.float64)
            return by_arrival, by_arrival, 0.0
        case Ordering.FEWEST_LATE:
            by_arrival = workload.arrival_us.astype(np.float64)
            return by_arrival, by_arrival - aging_us, 0.0
        case Ordering.PRIORITY:
            levels = arrived - workload.priority
            return levels, levels, np.nextafter(1.0, 0.0)
        case Ordering.SHORTEST_JOB_FIRST:
            expected = np.where(
                workload.expected_output_tokens > 0, workload.expected_output_tokens, workload.max_output_tokens
            )
            sizes = workload.num_prompt_tokens + expected - 1.0
        case Ordering.SHORTEST_PREFILL_FIRST:
            sizes = workload.num_prompt_tokens.astype(np.float64)
        case _:
            return None
    left = np.maximum(sizes - records.requests.num_cached_tokens, 1.0)
    return arrived + np.log2(sizes + 1e-9), arrived + np.log2(left + 1e-9), _LOG2_ERROR


def _num_broken(
    records: Records, own: NDArray[Any], waiting_ranks: NDArray[Any], entering_ranks: NDArray[Any], slack: float
) -> int:
    """Of those of one queue, `own`: how many entered although one waited that they may not pass."""
    arrival_us: NDArray[Any] = records.requests.workload.arrival_us
    first_run_us: NDArray[Any] = records.requests.first_run_us
    by_entry = own[np.argsort(first_run_us[own], kind="stable")].tolist()
    waiting: list[tuple[float, int]] = []
    num_arrived = num_broken = 0
    for entered in by_entry:
        now_us = first_run_us[entered]
        while num_arrived < len(own) and arrival_us[own[num_arrived]] <= now_us:
            heapq.heappush(waiting, (float(waiting_ranks[own[num_arrived]]), int(own[num_arrived])))
            num_arrived += 1
        while waiting and first_run_us[waiting[0][1]] <= now_us:
            heapq.heappop(waiting)
        num_broken += bool(waiting) and waiting[0][0] + slack < entering_ranks[entered]
    return num_broken
