"""Played to the end, every request of any workload finishes under any policy, and no iteration runs nothing."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from scheduler_service.core.policy import Policy
from scheduler_service.core.state import ExecutorLimits
from support.arithmetic_executor import ArithmeticExecutor
from support.depth import seeds
from support.random_states import random_policy
from support.states import LATENCY


def busy_executor(random: Random) -> ArithmeticExecutor:
    """A crowded executor under any policy that turns nobody away."""
    policy = random_policy(random)
    policy = replace(policy, max_num_waiting=None, max_num_waiting_per_tenant=None, reject_missed_deadlines=False)
    limits = ExecutorLimits(
        max_num_batched_tokens=random.choice([4, 16, 64]),
        max_num_seqs=random.choice([1, 2, 4, 8]),
        block_size=4,
        num_blocks=random.choice([12, 20, 40]),
        num_swap_blocks=random.choice([0, 6, 40]),
        max_model_len=48,
    )
    return ArithmeticExecutor(
        limits=limits, policy=policy, latency=random.choice([None, LATENCY]), weights=(1.0, 2.0, 0.5)
    )


def submit_some(executor: ArithmeticExecutor, random: Random, first_id: int, count: int) -> None:
    for id in range(first_id, first_id + count):
        new = random.randint(1, 24)
        executor.submit(
            id,
            prompt=random.randint(1, 24),
            new=new,
            priority=random.choice([0, 0, 1, 5]),
            tenant=random.randrange(3),
            expected_output_tokens=random.choice([0, new, random.randint(1, 24)]),
            deadline_us=random.choice([0, executor.now_us + random.randint(0, 100_000)]),
        )


@pytest.mark.parametrize("seed", seeds(60))
def test_all_finish(seed: int) -> None:
    random = Random(seed)
    executor = busy_executor(random)
    submit_some(executor, random, 1, 6)
    for _ in range(20):
        executor.step()
    submit_some(executor, random, 7, 6)
    executor.run(max_iterations=3000)
    assert len(executor.finished) == 12
    assert all(request.num_output_tokens == request.max_output_tokens for request in executor.finished.values())
    assert executor.num_free_blocks == executor.limits.num_blocks


def test_the_policies_of_the_test_are_of_all_kinds() -> None:
    policies = [busy_executor(Random(seed)).policy for seed in range(60)]
    for setting in ("ordering", "admission", "preemption", "victim", "batch_composition", "head_of_line"):
        kind = type(getattr(Policy(), setting))
        assert {getattr(policy, setting) for policy in policies} == set(kind)
