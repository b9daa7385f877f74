"""What each ordering ranks by: a figure for every request, the least first.

- FIFO: all are alike.
- SHORTEST_JOB_FIRST: the tokens left to compute, in powers of two, plus the arrival time in steps of `aging_seconds`:
  a request that has waited one step longer stands where one of half its work does.
- SHORTEST_PREFILL_FIRST: the same of the tokens left until the next one is sampled: until the first token, for one that
  waits. What is not known, how long answers get, does not matter.
- FEWEST_LATE: see `lateness.py`. It looks at all prompts together, and at the clock.
- PRIORITY: the arrival time in steps of `aging_seconds`, less the priority: one step of waiting is worth one level.
- EARLIEST_DEADLINE_FIRST: the deadline; those without one come last.
- FAIR: the service of the tenant so far over its weight, its virtual token counter (VTC, arXiv 2401.00588). The
  executor adds it up: tokens, and `kv_residency_charge`, of which plans tell it, for a block held in a pass. A tenant
  that has nothing on the device is lifted to where the least of those that have stands, just before it: being idle
  earns no credit, and what others have queued earlier does not stand before its turn. Those of one tenant are ranked by
  `ordering_within_tenant`, one of the others.

Elsewhere aging needs no clock. Two that wait gain alike, so what one has waited longer is the difference of their
arrivals, for ever: the order of two requests does not turn around while they wait, and nobody is overtaken by those
that arrive too much later. A running request keeps what it gained, or the next arrival would throw out again whom
waiting let in.

Every figure is worked out from its own row (and its tenant), under FEWEST_LATE from all rows in order of arrival, with
operations that are exact or correctly rounded, so that neither the order of the rows nor the processor matters. Those
that are no whole numbers are kept as whole numbers of the same order, `ordinal` has them, so that all ranks are
compared alike.
"""

from __future__ import annotations

import math

import numpy as np

from scheduler_service.core.case import (
    ARRIVAL_TIME_US,
    DEADLINE_US,
    PRIORITY,
    TENANT,
    Case,
    is_on_device,
    num_lacking_tokens,
)
from scheduler_service.core.compiled import compiled, lean, rule
from scheduler_service.core.lateness import rank_fewest_late
from scheduler_service.core.policy import Ordering
from scheduler_service.core.state import FloatArray, IntArray
from scheduler_service.core.work import tokens_to_compute

_MOST = 2**63 - 1
_FARTHEST = _MOST // 2


@compiled
def rank_requests(case: Case) -> None:
    """Write the rank of each request, and under FAIR that within its tenant."""
    if case.policy.ordering != Ordering.FAIR:
        _rank_by(case.policy.ordering, case.rank, case)
        return
    counters = tenant_counters(case)
    for row in range(len(case.rank)):
        case.rank[row] = ordinal(counters[case.requests[TENANT, row]])
    _rank_by(case.policy.ordering_within_tenant, case.rank_within_tenant, case)


@compiled
def _rank_by(ordering: int, rank: IntArray, case: Case) -> None:
    """Write what an ordering ranks by."""
    if ordering == Ordering.FEWEST_LATE:
        rank_fewest_late(rank, case)
    else:
        _rank_each_by(ordering, rank, case)


@lean
def _rank_each_by(ordering: int, rank: IntArray, case: Case) -> None:
    """The same of an ordering that looks at each request alone."""
    requests = case.requests
    if ordering == Ordering.SHORTEST_JOB_FIRST:
        for row in range(len(rank)):
            rank[row] = _aged_size(case, row, tokens_to_compute(case, row))
    elif ordering == Ordering.SHORTEST_PREFILL_FIRST:
        for row in range(len(rank)):
            rank[row] = _aged_size(case, row, num_lacking_tokens(case, row))
    elif ordering == Ordering.PRIORITY:
        for row in range(len(rank)):
            # The farthest times that a column holds leave room for the farthest priorities.
            arrival_time = min(max(requests[ARRIVAL_TIME_US, row], -_FARTHEST), _FARTHEST)
            rank[row] = arrival_time // case.policy.aging_us - requests[PRIORITY, row]
    elif ordering == Ordering.EARLIEST_DEADLINE_FIRST:
        for row in range(len(rank)):
            deadline = requests[DEADLINE_US, row]
            rank[row] = deadline if deadline > 0 else _MOST


@rule
def _aged_size(case: Case, row: int, num_tokens: int) -> int:
    """Tokens in powers of two, and the arrival time in steps of `aging_seconds`."""
    levels_waited = float(case.requests[ARRIVAL_TIME_US, row]) / float(case.policy.aging_us)
    return ordinal(log2_interpolated(num_tokens) + levels_waited)


@rule
def log2_interpolated(value: int) -> float:
    """The binary logarithm, straight between powers of two: as exact as halving, where `log2` differs by processor.

    value >= 1.
    """
    mantissa, exponent = math.frexp(float(value))
    return exponent + 2.0 * mantissa - 2.0


@rule
def ordinal(value: float) -> int:
    """A whole number for each float, in the same order: the bits of a positive one, and of a negative one turned."""
    bits = int(np.float64(value + 0.0).view(np.int64))  # 0 is added since there is a negative one, which is no other
    return bits if bits >= 0 else bits ^ _MOST


@compiled
def tenant_counters(case: Case) -> FloatArray:
    """Virtual token counter of each tenant: [num_tenants]."""
    counters = np.empty(len(case.weight))
    for tenant in range(len(counters)):
        counters[tenant] = case.service[tenant] / case.weight[tenant]
    least, is_anyone_active = math.inf, False
    for row in range(len(case.rank)):
        if is_on_device(case, row):
            least = min(least, counters[case.requests[TENANT, row]])
            is_anyone_active = True
    if is_anyone_active:
        for tenant in range(len(counters)):
            if counters[tenant] < least:
                counters[tenant] = np.nextafter(least, -math.inf)
    return counters
