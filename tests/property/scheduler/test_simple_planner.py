"""The planner gives the plan of the deliberately simple one."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from scheduler_service.core.plan import plan_executor
from scheduler_service.core.policy import Ordering, Policy, Preemption
from scheduler_service.core.state import ExecutorState, Tenants
from support.depth import seeds
from support.random_states import random_executor, random_policy
from support.simple_planner import SimplePlanner
from support.states import TENANTS

SEEDS = seeds(1500)
CHUNKS = range(6)


def known_to_both(random: Random) -> tuple[ExecutorState, Policy]:
    executor, drawn = random_executor(random), random_policy(random)
    if drawn.ordering is Ordering.FAIR:
        # With one tenant there are no turns to take.
        executor.requests.tenant[:] = 0
        executor = replace(executor, tenants=Tenants.of(TENANTS[0]))
    kept = (
        "ordering",
        "aging_seconds",
        "admission",
        "watermark",
        "chunk_size_tokens",
        "max_num_partial_prefills",
        "prefill_sharing",
        "target_time_to_first_token_us",
        "ordering_within_tenant",
        "hold_for_shared_prefix",
    )
    policy = Policy(**{name: getattr(drawn, name) for name in kept})
    if drawn.preemption is Preemption.NEVER:
        policy = replace(policy, preemption=Preemption.NEVER)
    return replace(executor, limits=replace(executor.limits, max_num_waiting=None)), policy


@pytest.mark.parametrize("chunk", CHUNKS)
def test_both_planners_agree(chunk: int) -> None:
    for seed in SEEDS[chunk :: len(CHUNKS)]:
        executor, policy = known_to_both(Random(seed))
        simple, plan = SimplePlanner(executor, policy).plan(), plan_executor(executor, policy)
        assert plan.scheduled.id.tolist() == list(simple.scheduled), seed
        assert plan.scheduled.num_tokens.tolist() == list(simple.scheduled.values()), seed
        assert sorted([*plan.admit.id.tolist(), *plan.resume.id.tolist()]) == sorted(simple.enter), seed
        assert plan.evict.id.tolist() == simple.evict, seed
        assert plan.reject.id.tolist() == simple.reject, seed
