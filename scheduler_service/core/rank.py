"""What each ordering ranks by: a figure for every request, the least first.

- FIFO: all are alike.
- SHORTEST_JOB_FIRST: the tokens left to compute, in powers of two, plus the arrival time in steps of `aging_seconds`:
  a request that has waited one step longer stands where one of half its work does.
- PRIORITY: the arrival time in steps of `aging_seconds`, less the priority: one step of waiting is worth one level.
- EARLIEST_DEADLINE_FIRST: the deadline; those without one come last.
- FAIR: the service of the tenant so far over its weight, its virtual token counter (VTC, arXiv 2401.00588). The
  executor adds it up: tokens, and `kv_residency_charge`, of which plans tell it, for a block held in a pass. A tenant
  that has nothing on the device is lifted to where the least of those that have stands, just before it: being idle
  earns no credit, and what others have queued earlier does not stand before its turn.

Aging needs no clock. Two that wait gain alike, so what one has waited longer is the difference of their arrivals, for
ever: the order of two requests does not turn around while they wait, and nobody is overtaken by those that arrive too
much later. A running request keeps what it gained, or the next arrival would throw out again whom waiting let in.

Every figure is worked out from its own row (and its tenant) with operations that are exact or correctly rounded, so
that neither the order of the rows nor the processor matters.
"""

from __future__ import annotations

import numpy as np

from scheduler_service.core.policy import Ordering, Policy
from scheduler_service.core.state import (
    ExecutorState,
    IntArray,
    RankArray,
    Requests,
    Tenant,
)
from scheduler_service.core.work import tokens_to_compute

_MOST = np.iinfo(np.int64).max


def ranked(executor: ExecutorState, policy: Policy) -> Requests:
    """The executor's requests with the rank that the policy gives each."""
    if policy.ordering is Ordering.FIFO:
        return executor.requests
    return executor.requests.ranked_by(_rank(executor, policy))


def aging_us(policy: Policy) -> int:
    """Microseconds of waiting that are worth one level."""
    return round(min(max(policy.aging_seconds * 1e6, 1.0), 2.0**62))


def _rank(executor: ExecutorState, policy: Policy) -> RankArray:
    requests = executor.requests
    match policy.ordering:
        case Ordering.SHORTEST_JOB_FIRST:
            work = tokens_to_compute(requests, executor.limits)
            by_work: RankArray = log2_interpolated(work) + requests.arrival_time_us / aging_us(policy)
            return by_work
        case Ordering.PRIORITY:
            arrival_time, farthest = requests.arrival_time_us, _MOST // 2
            if requests.least["arrival_time_us"] < -farthest or requests.greatest["arrival_time_us"] > farthest:
                # Halved, the farthest times that a column holds leave room for the farthest priorities.
                arrival_time = np.clip(arrival_time, -farthest, farthest)
            by_level: RankArray = arrival_time // aging_us(policy) - requests.priority
            return by_level
        case Ordering.EARLIEST_DEADLINE_FIRST:
            return np.where(requests.deadline_us > 0, requests.deadline_us, _MOST)
        case _:
            return tenant_counters(executor)[requests.tenant]


def log2_interpolated(values: IntArray) -> RankArray:
    """The binary logarithm, straight between powers of two: as exact as halving, where `np.log2` differs by processor.

    values >= 1.
    """
    # A float64 holds its exponent, 1023 added to it, above the 52 bits of how far it is on the way to the next power.
    bits = values.astype(np.float64).view(np.int64)
    logarithm: RankArray = bits * 2.0**-52
    logarithm -= 1023
    return logarithm


def tenant_counters(executor: ExecutorState) -> RankArray:
    """Virtual token counter of each tenant: [num_tenants]."""
    tenants = executor.tenants or (Tenant(name=""),)
    counters = np.array([tenant.service / tenant.weight for tenant in tenants])
    of_active = counters[executor.requests.on_device.tenant]
    if len(of_active) > 0:
        least = of_active.min()
        counters = np.where(counters < least, np.nextafter(least, -np.inf), counters)
    return counters
