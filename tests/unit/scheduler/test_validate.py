"""States that contradict the contract or themselves, and the field that is named for each."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from scheduler_service.core.errors import ErrorReason, StateError
from scheduler_service.core.state import ClusterState, LatencyModel, RequestStatus, Tenant, Tenants
from scheduler_service.core.validate import validate
from support.states import NOW_US, cluster_of, executor_of, loading, running, swapped, waiting

MISSING, RANGE = ErrorReason.MISSING_FIELD, ErrorReason.OUT_OF_RANGE
TWICE, INCONSISTENT, UNKNOWN = ErrorReason.DUPLICATE, ErrorReason.INCONSISTENT, ErrorReason.UNKNOWN_VALUE


def refused(cluster: ClusterState) -> tuple[str, ErrorReason]:
    with pytest.raises(StateError) as caught:
        validate(cluster)
    return caught.value.field.removeprefix("state.executors[0]."), caught.value.reason


@pytest.mark.parametrize(
    ("rows", "settings", "field", "reason"),
    [
        ([], {"executor_id": ""}, "executor_id", MISSING),
        ([], {"executor_id": "x" * 257}, "executor_id", RANGE),
        ([], {"iteration": 0}, "iteration", MISSING),
        ([], {"iteration": -1}, "iteration", RANGE),
        ([], {"block_size": 0}, "limits.block_size", MISSING),
        ([], {"max_num_seqs": -2}, "limits.max_num_seqs", RANGE),
        ([], {"num_swap_blocks": -1}, "limits.num_swap_blocks", RANGE),
        ([], {"num_free_blocks": 65}, "num_free_blocks", RANGE),
        ([], {"num_free_swap_blocks": 1}, "num_free_swap_blocks", RANGE),
        ([], {"latency": LatencyModel(pass_us=math.nan)}, "latency.pass_us", RANGE),
        ([waiting(1), waiting(0)], {}, "requests.id[1]", RANGE),
        ([waiting(1), waiting(2), waiting(1)], {}, "requests.id[2]", TWICE),
        ([{**waiting(1), "status": 0}], {}, "requests.status[0]", UNKNOWN),
        ([waiting(1), {**waiting(2), "status": 5}], {}, "requests.status[1]", UNKNOWN),
        ([waiting(1, num_prompt_tokens=0)], {}, "requests.num_prompt_tokens[0]", RANGE),
        ([waiting(1, tenant=1)], {}, "requests.tenant[0]", RANGE),
        ([running(1, num_computed_tokens=17)], {}, "requests.num_computed_tokens[0]", INCONSISTENT),
        ([running(1, num_blocks=0)], {}, "requests.num_blocks[0]", INCONSISTENT),
        ([running(1, num_blocks=65)], {"num_free_blocks": 0}, "requests.num_blocks[0]", INCONSISTENT),
        ([swapped(1)], {"num_free_swap_blocks": 0}, "requests.num_blocks[0]", INCONSISTENT),
        ([running(1, num_shared_blocks=2)], {"num_free_blocks": 0}, "requests.num_shared_blocks[0]", INCONSISTENT),
        ([running(1), loading(2)], {"max_num_seqs": 1}, "limits.max_num_seqs", INCONSISTENT),
        ([running(1)], {"num_free_blocks": 64}, "num_free_blocks", INCONSISTENT),
        ([swapped(1)], {"num_swap_blocks": 2, "num_free_swap_blocks": 2}, "num_free_swap_blocks", INCONSISTENT),
        ([], {"prefixes": [(0, 1), (3, 1), (1, 1)]}, "cached_prefixes.parent[1]", RANGE),
        ([], {"prefixes": [(1, 1)]}, "cached_prefixes.parent[0]", RANGE),
        ([], {"prefixes": [(0, 1), (-1, 1)]}, "cached_prefixes.parent[1]", RANGE),
        ([], {"prefixes": [(row, 0) for row in range(33)]}, "cached_prefixes.parent[32]", RANGE),
        ([], {"prefixes": [(0, 1), (0, -1)]}, "cached_prefixes.num_free_blocks[1]", RANGE),
        ([], {"prefixes": [(0, 40), (1, 25)]}, "cached_prefixes.num_free_blocks", INCONSISTENT),
        ([waiting(1, cached_prefix=1)], {}, "requests.cached_prefix[0]", RANGE),
        ([waiting(1), waiting(2, cached_prefix=-1)], {"prefixes": [(0, 1)]}, "requests.cached_prefix[1]", RANGE),
        (
            [waiting(1, num_blocks=3, num_shared_blocks=1, cached_prefix=2)],
            {"prefixes": [(0, 1), (1, 2)]},
            "requests.cached_prefix[0]",
            INCONSISTENT,
        ),
    ],
)
def test_the_field_at_fault_is_named(
    rows: list[Any], settings: dict[str, Any], field: str, reason: ErrorReason
) -> None:
    assert refused(cluster_of(executor_of(*rows, **settings))) == (field, reason)


def test_two_executors_of_one_name_are_refused() -> None:
    assert refused(cluster_of(executor_of(), executor_of())) == ("state.executors[1].executor_id", TWICE)


def test_a_state_needs_a_clock() -> None:
    assert refused(replace(cluster_of(), now_us=0)) == ("state.now_us", MISSING)


@pytest.mark.parametrize(
    ("tenants", "field", "reason"),
    [
        (Tenants.of(Tenant(name="a"), Tenant(name="a")), "state.tenants.name[1]", TWICE),
        (Tenants.of(Tenant(name="a", weight=0)), "state.tenants.weight[0]", RANGE),
        (Tenants.of(Tenant(name="a", service=-1)), "state.tenants.service[0]", RANGE),
    ],
)
def test_tenants_are_checked(tenants: Tenants, field: str, reason: ErrorReason) -> None:
    assert refused(ClusterState(now_us=NOW_US, executors=(), tenants=tenants)) == (field, reason)


def test_any_clock_and_priority_are_fine() -> None:
    row = waiting(1, arrival_time_us=-(2**63), priority=-(2**31), deadline_us=2**63 - 1)
    validate(cluster_of(executor_of(row, {**running(2), "status": RequestStatus.RUNNING})))
