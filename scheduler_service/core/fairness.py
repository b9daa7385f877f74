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
from scheduler_service.core.ordering import first_in_queue
from scheduler_service.core.policy import Policy
from scheduler_service.core.state import ExecutorState, IntArray, Requests, Tenant
from scheduler_service.core.work import tokens_to_compute

# Up to so many tenants, selecting the first of each is faster than sorting the queue.
_FEW_TENANTS = 16


def first_in_turn(executor: ExecutorState, ranked: Requests, rows: IntArray, count: int, policy: Policy) -> IntArray:
    """The `count` first of `rows` (all, if there are fewer), in turn. `ranked`: the executor's requests, by FAIR."""
    assert ranked.rank is not None
    if count <= 0 or len(rows) == 0:
        return rows[:0]
    weights = np.array([tenant.weight for tenant in executor.tenants or (Tenant(name=""),)])
    chosen = _first_of_each(ranked, rows, count)
    tenant = ranked.tenant[chosen]
    requests = ranked.take(chosen)
    before: NDArray[Any] = _before(tokens_to_compute(requests, executor.limits), tenant)
    if policy.kv_residency_charge > 0:
        before = before + policy.kv_residency_charge * _before(block_passes(requests, executor.limits, policy), tenant)
    tag = ranked.rank[chosen] + before / weights[tenant]
    keys = (ranked.id[chosen], ranked.arrival_time_us[chosen], ~ranked.ran_before[chosen], tag)
    return chosen[np.lexsort(keys)[:count]]


def _before(costs: IntArray, tenant: IntArray) -> IntArray:
    """The costs of those of the same tenant before each; `tenant` ascends."""
    before: IntArray = costs.cumsum() - costs
    return before - before[np.searchsorted(tenant, tenant)]


def _first_of_each(ranked: Requests, rows: IntArray, count: int) -> IntArray:
    """The `count` first of each tenant that may get one of so many places, tenant by tenant, ascending."""
    tenant_of = ranked.tenant[rows]
    tenants = _contenders(ranked, rows, count)
    if len(tenants) <= _FEW_TENANTS:
        return np.concatenate([first_in_queue(ranked, rows[tenant_of == tenant], count) for tenant in tenants])
    rows = rows[np.isin(tenant_of, tenants)]
    keys = (ranked.id[rows], ranked.arrival_time_us[rows], ~ranked.ran_before[rows], ranked.tenant[rows])
    rows = rows[np.lexsort(keys)]
    tenant = ranked.tenant[rows]
    first: IntArray = rows[np.arange(len(rows)) - np.searchsorted(tenant, tenant) < count]
    return first


def _contenders(ranked: Requests, rows: IntArray, count: int) -> IntArray:
    """Tenants with the `count` least counters, and those with equal ones, ascending."""
    assert ranked.rank is not None
    tenant_of = ranked.tenant[rows]
    tenants = np.bincount(tenant_of).nonzero()[0]
    # Within a tenant all are of one rank.
    counters = np.empty(tenants[-1] + 1)
    counters[tenant_of] = ranked.rank[rows]
    counters = counters[tenants]
    if count < len(tenants):
        tenants = tenants[counters <= np.partition(counters, count - 1)[count - 1]]
    return tenants
