"""Turns of tenants in a long queue, against plain sorting."""

from __future__ import annotations

from random import Random

import pytest

from scheduler_service.core.case import Case, case_of, ran_before
from scheduler_service.core.fairness import first_in_turn
from scheduler_service.core.policy import Ordering, Policy
from scheduler_service.core.rank import rank_requests, tenant_counters
from scheduler_service.core.rows import count_up
from scheduler_service.core.state import ExecutorState, Tenant, Tenants
from scheduler_service.core.work import tokens_to_compute
from support.states import executor_of, preempted, waiting

FAIR = Policy(ordering=Ordering.FAIR)
ARRIVALS = {
    "alike": [7],
    "near": [0, 1, 2, 3],
    "as far as a column holds": [-(2**63), -1, 0, 5, 2**62, 2**63 - 1],
}


@pytest.mark.parametrize("arrivals", ARRIVALS.values(), ids=ARRIVALS)
@pytest.mark.parametrize("num_tenants", [1, 3, 40])
def test_the_turns_are_those_of_plain_sorting(num_tenants: int, arrivals: list[int]) -> None:
    for seed in range(4):
        random = Random(seed)
        executor = long_queue(random, num_tenants, arrivals)
        case = case_of(executor, FAIR)
        rank_requests(case)
        turns = by_plain_sorting(case, executor)
        for count in (1, 2, 5, 50, 500):
            first = first_in_turn(count_up(len(executor.requests)), count, case)
            assert executor.requests.id[first].tolist() == turns[:count], (seed, count)


def long_queue(random: Random, num_tenants: int, arrivals: list[int]) -> ExecutorState:
    rows = [waiting(id) for id in range(1, 80)]
    if random.random() < 0.5:
        rows += [preempted(id) for id in range(80, 100)]
    rows = [
        {
            **row,
            "arrival_time_us": random.choice(arrivals),
            "tenant": random.randrange(num_tenants),
            "num_prompt_tokens": random.randint(1, 90),
        }
        for row in random.sample(rows, len(rows))
    ]
    tenants = [
        Tenant(name=str(i), weight=random.choice([1.0, 2.0]), service=random.choice([0.0, 50.0, 300.0]))
        for i in range(num_tenants)
    ]
    return executor_of(*rows, tenants=Tenants.of(*tenants))


def by_plain_sorting(case: Case, executor: ExecutorState) -> list[int]:
    """All ids in turn: one request after the other, plain loops and lists."""
    requests, counters = executor.requests, tenant_counters(case).tolist()
    stands = [
        (not ran_before(case, row), int(requests.arrival_time_us[row]), int(requests.id[row]))
        for row in range(len(requests))
    ]
    served = [0] * len(executor.tenants)
    turns = []
    for row in sorted(range(len(requests)), key=stands.__getitem__):
        tenant = int(requests.tenant[row])
        tag = counters[tenant] + served[tenant] / executor.tenants[tenant].weight
        served[tenant] += int(tokens_to_compute(case, row))
        turns.append((tag, *stands[row]))
    return [id for *_, id in sorted(turns)]
