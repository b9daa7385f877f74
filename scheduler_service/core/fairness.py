"""The queue under FAIR: tenants take turns, by the service that they have had and that they are about to get.

Within a tenant the order is that of the queue. Across tenants each request starts at a tag: its tenant's virtual token
counter, plus what those of the same tenant that stand before it will be charged, over the tenant's weight; the least
tag comes first (start-time fair queueing, Goyal et al. 1996, over the counters of VTC, arXiv 2401.00588, where the cost
of a request may be any function). So several places that come free at once go round, and two tenants that both wait
differ by one largest request at most, over their weights.

A request is charged the tokens that it is expected to compute and, where the policy charges for KV residency, the
blocks that it is expected to hold in each pass. Both are whole numbers until they meet the charge and the weight.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from scheduler_service.core.memory import block_passes
from scheduler_service.core.ordering import FEW, order_within_rank
from scheduler_service.core.policy import Policy
from scheduler_service.core.state import ExecutorState, IntArray, Requests, Tenant, rows_where
from scheduler_service.core.work import tokens_to_compute


def first_in_turn(executor: ExecutorState, queued: Requests, count: int, policy: Policy) -> Requests:
    """The `count` first of those that wait (all, if there are fewer), in turn."""
    if len(queued) == 0:
        return queued
    weights = np.array([tenant.weight for tenant in executor.tenants or (Tenant(name=""),)])
    chosen = _first_of_each(queued, count) if len(queued) > FEW else queued
    chosen = chosen.take(_positions_by(chosen, chosen.tenant))
    tenant = chosen.tenant
    before: NDArray[Any] = _before(tokens_to_compute(chosen, executor.limits), tenant)
    if policy.kv_residency_charge > 0:
        before = before + policy.kv_residency_charge * _before(block_passes(chosen, executor.limits, policy), tenant)
    assert chosen.rank is not None
    tag = chosen.rank + before / weights[tenant]
    return chosen.take(_positions_by(chosen, tag)[:count])


def _before(costs: IntArray, tenant: IntArray) -> IntArray:
    """The costs of those of the same tenant before each; `tenant` ascends."""
    before: IntArray = costs.cumsum() - costs
    before -= before[tenant.searchsorted(tenant)]
    return before


def _positions_by(queued: Requests, key: NDArray[Any]) -> IntArray:
    """Which comes first, second, ... by this key, and where it is equal in the order of the queue."""
    return np.lexsort([getattr(queued, name) for name in reversed(order_within_rank(queued))] + [key])


def _first_of_each(queued: Requests, count: int) -> Requests:
    """At least the `count` first of each tenant that may get one of so many places, and all who stand before them."""
    tenant, key = queued.tenant, _by_tenant(queued)
    num_of_tenant = np.bincount(tenant)
    tenants = num_of_tenant.nonzero()[0]
    num_of_tenant = num_of_tenant[tenants]
    # Where the last of those that count stands among the keys of all.
    last = num_of_tenant.cumsum() - np.maximum(num_of_tenant - count, 0) - 1
    bound = np.empty(tenants[-1] + 1, dtype=np.int64)
    bound[tenants] = np.sort(key)[last]
    first = queued.take(rows_where(key <= bound[tenant]))
    return first if count >= len(tenants) else _with_least_counters(first, tenants, count)


def _with_least_counters(queued: Requests, tenants: IntArray, count: int) -> Requests:
    """Those whose tenants have the `count` least counters of all `tenants`, or equal ones."""
    counters = np.empty(tenants[-1] + 1)
    # Within a tenant all are of one rank, which is its counter.
    counters[queued.tenant] = queued.rank
    most = np.partition(counters[tenants], count - 1)[count - 1]
    return queued.take(rows_where(counters[queued.tenant] <= most))


def _by_tenant(queued: Requests) -> IntArray:
    """Numbers that order a queue by tenant, and those of one tenant as the queue does, except for ties."""
    least, greatest = queued.whole.least["arrival_time_us"], queued.whole.greatest["arrival_time_us"]
    span, arrival_time = greatest - least + 1, queued.arrival_time_us
    # Times so far apart that the numbers would not fit are told apart less finely.
    shift = (2 * span * (queued.whole.greatest["tenant"] + 1)).bit_length() - 62
    if shift > 0:
        least, span, arrival_time = least >> shift, (span >> shift) + 2, arrival_time >> shift
    group = 2 * queued.tenant + queued.never_ran if queued.whole.anyone_ran_before else queued.tenant
    key: IntArray = arrival_time - least
    key += group * span
    return key
