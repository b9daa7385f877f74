"""Turns of tenants in a long queue, against plain sorting."""

from __future__ import annotations

from random import Random

import pytest

from scheduler_service.core.fairness import first_in_turn
from scheduler_service.core.policy import Ordering, Policy
from scheduler_service.core.rank import ranked
from scheduler_service.core.state import ExecutorState, Requests, Tenant
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
    for seed in range(20):
        random = Random(seed)
        executor = long_queue(random, num_tenants, arrivals)
        queued = ranked(executor, FAIR).queued
        for count in (1, 2, 5, 50, 500):
            expected = by_plain_sorting(queued, executor)[:count]
            assert first_in_turn(executor, queued, count, FAIR).id.tolist() == expected, (seed, count)


def long_queue(random: Random, num_tenants: int, arrivals: list[int]) -> ExecutorState:
    rows = [waiting(id) for id in range(1, 150)]
    if random.random() < 0.5:
        rows += [preempted(id) for id in range(150, 170)]
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
    return executor_of(*rows, tenants=tuple(tenants))


def by_plain_sorting(queued: Requests, executor: ExecutorState) -> list[int]:
    """All ids in turn: one request after the other, plain loops and lists."""
    assert queued.rank is not None
    stands = [
        (not ran_before, arrival, id)
        for ran_before, arrival, id in zip(
            queued.ran_before.tolist(), queued.arrival_time_us.tolist(), queued.id.tolist(), strict=True
        )
    ]
    work = tokens_to_compute(queued, executor.limits).tolist()
    served = [0] * len(executor.tenants)
    turns = []
    for row in sorted(range(len(queued)), key=stands.__getitem__):
        tenant = int(queued.tenant[row])
        tag = float(queued.rank[row]) + served[tenant] / executor.tenants[tenant].weight
        served[tenant] += work[row]
        turns.append((tag, *stands[row]))
    return [id for *_, id in sorted(turns)]
