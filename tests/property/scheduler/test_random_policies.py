"""The invariants on busy random states, under every combination of settings that the contract allows.

Faster to make than what Hypothesis thinks up and fuller, so that each rule meets the others: a seed that fails is a
scenario to keep.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from random import Random

import numpy as np
import pytest

from scheduler_service.core.executor_plan import ExecutorPlan, Reason
from scheduler_service.core.explain import explain_executor
from scheduler_service.core.plan import plan_executor
from scheduler_service.core.policy import Policy, check_policy
from scheduler_service.core.state import ExecutorState
from scheduler_service.core.validate import validate
from scheduler_service.core.verify import verify
from support.depth import seeds
from support.random_states import random_executor, random_policy
from support.states import cluster_of, permuted

SEEDS = seeds(1500)
CHUNKS = range(6)


def drawn(seed: int) -> tuple[ExecutorState, Policy]:
    random = Random(seed)
    executor, policy = random_executor(random), random_policy(random)
    validate(cluster_of(executor))
    check_policy(policy, "policy")
    return executor, policy


def seeds_of(chunk: int) -> Sequence[int]:
    return SEEDS[chunk :: len(CHUNKS)]


@pytest.mark.parametrize("chunk", CHUNKS)
def test_a_plan_keeps_every_invariant_and_explains_itself(chunk: int) -> None:
    for seed in seeds_of(chunk):
        executor, policy = drawn(seed)
        plan = plan_executor(executor, policy)
        assert verify(executor, plan, policy) == (), seed
        assert (explain_executor(executor, plan, policy).reason > 0).all(), seed


@pytest.mark.parametrize("chunk", CHUNKS)
def test_the_order_of_the_rows_does_not_matter(chunk: int) -> None:
    for seed in seeds_of(chunk):
        executor, policy = drawn(seed)
        order = np.random.default_rng(seed).permutation(len(executor.requests))
        plan = plan_executor(executor, policy)
        again = plan_executor(replace(executor, requests=permuted(executor, order)), policy)
        assert (plan.digest, plan.shortfall) == (again.digest, again.shortfall), seed
        assert (plan.composition, plan.predicted_time_us) == (again.composition, again.predicted_time_us), seed


def test_the_states_are_busy_enough_to_meet_every_reason() -> None:
    met: Counter[Reason] = Counter()
    for seed in range(1500):
        executor, policy = drawn(seed)
        plan = plan_executor(executor, policy)
        met.update(Reason(reason) for reason in reasons_of(plan, executor, policy))
    unmet = set(Reason) - set(met)
    # Said of placements alone.
    assert unmet == {Reason.WAITING_DRAINING}


def reasons_of(plan: ExecutorPlan, executor: ExecutorState, policy: Policy) -> list[int]:
    tables = (plan.admit, plan.resume, plan.evict, plan.reject, explain_executor(executor, plan, policy))
    return [reason for table in tables for reason in table.reason.tolist()]
