"""Who leaves the device: victims, and those that make way for more important work."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from scheduler_service.core.executor_plan import Reason
from scheduler_service.core.plan import plan_executor
from scheduler_service.core.policy import Admission, Eviction, Ordering, Policy, Preemption, Victim
from scheduler_service.core.state import ExecutorLimits
from scheduler_service.core.verify import verify
from support.arithmetic_executor import ArithmeticExecutor
from support.states import executor_of, preempted, running, waiting

URGENT_FIRST = Policy(
    ordering=Ordering.PRIORITY, preemption=Preemption.FOR_PRIORITY, eviction=Eviction.RECOMPUTE, watermark=0
)


def evicted(*rows: Any, policy: Policy = URGENT_FIRST, **settings: Any) -> list[int]:
    state = executor_of(*rows, **settings)
    plan = plan_executor(state, policy)
    assert verify(state, plan, policy) == ()
    return plan.evict.id.tolist()


def test_the_least_important_leaves_first_and_only_as_many_as_must() -> None:
    rows = [running(1, priority=2), running(2, priority=1), running(3, priority=1), waiting(9, priority=3)]
    assert evicted(*rows, max_num_seqs=3) == [3]
    assert evicted(*rows, waiting(10, priority=3), max_num_seqs=3) == [2, 3]
    assert evicted(*rows, max_num_seqs=4) == []


def test_nobody_leaves_in_vain() -> None:
    rows = [running(1), running(2, priority=7), waiting(9, priority=1, num_prompt_tokens=64)]
    # With 1 gone, three blocks are free and the urgent request needs four.
    assert evicted(*rows, num_blocks=5, num_free_blocks=3) == []
    assert evicted(*rows, num_blocks=6, num_free_blocks=4) == [1]


def test_waiting_does_not_buy_an_eviction_of_equal_or_higher_priority() -> None:
    rows = [running(1, priority=1, arrival_time_us=900_000), waiting(2, priority=1, arrival_time_us=0)]
    policy = replace(URGENT_FIRST, aging_seconds=0.001)
    assert evicted(*rows, policy=policy, max_num_seqs=1) == []
    rows[1] = waiting(2, priority=0, arrival_time_us=0)
    assert evicted(*rows, policy=policy, max_num_seqs=1) == []


def test_one_that_waited_long_enough_to_stand_first_is_not_thrown_out_again() -> None:
    rows = [running(1, arrival_time_us=0), waiting(2, priority=1, arrival_time_us=900_000)]
    assert evicted(*rows, policy=replace(URGENT_FIRST, aging_seconds=0.1), max_num_seqs=1) == []
    assert evicted(*rows, policy=replace(URGENT_FIRST, aging_seconds=10), max_num_seqs=1) == [1]


def test_who_was_evicted_often_enough_makes_way_no_more() -> None:
    rows = [running(1, num_preemptions=2), waiting(2, priority=1)]
    assert evicted(*rows, policy=replace(URGENT_FIRST, max_preemptions=2), max_num_seqs=1) == []
    assert evicted(*rows, policy=replace(URGENT_FIRST, max_preemptions=3), max_num_seqs=1) == [1]


def test_the_cheapest_loses_the_least_for_the_blocks_that_it_frees() -> None:
    cheapest = Policy(victim=Victim.CHEAPEST, eviction=Eviction.RECOMPUTE)
    rows = [running(1), running(2, num_prompt_tokens=33), running(3, num_prompt_tokens=48)]
    # 33 tokens in 3 blocks against 48 in 3.
    assert evicted(*rows, policy=cheapest, num_free_blocks=0, num_blocks=7) == [2]
    assert evicted(*rows, policy=replace(cheapest, victim=Victim.LAST_IN_ORDER), num_blocks=7) == [3]


def test_the_first_in_order_is_never_the_cheapest() -> None:
    cheapest = Policy(victim=Victim.CHEAPEST, eviction=Eviction.RECOMPUTE, max_preemptions=0)
    rows = [running(1, num_prompt_tokens=17), running(2, num_prompt_tokens=32, num_preemptions=9)]
    assert evicted(*rows, policy=cheapest, num_blocks=4) == [2]


def test_under_priority_the_cheapest_is_one_of_the_least_important() -> None:
    policy = Policy(victim=Victim.CHEAPEST, ordering=Ordering.PRIORITY, eviction=Eviction.RECOMPUTE)
    rows = [running(1, priority=5), running(2, priority=1, num_prompt_tokens=17), running(3, num_prompt_tokens=32)]
    assert evicted(*rows, policy=policy, num_blocks=5) == [3]


def test_never_evicts_nobody_even_from_a_state_that_another_policy_left() -> None:
    never = Policy(preemption=Preemption.NEVER, admission=Admission.RESERVE)
    state = executor_of(running(1), running(2), num_blocks=3)
    plan = plan_executor(state, never)
    assert plan.evict.id.tolist() == []
    assert plan.scheduled.id.tolist() == [1]


@pytest.mark.parametrize("admission", [Admission.RESERVE, Admission.PREDICTIVE])
def test_what_is_reserved_is_not_needed_twice(admission: Admission) -> None:
    limits = ExecutorLimits(max_num_batched_tokens=64, max_num_seqs=8, block_size=16, num_blocks=12, max_model_len=256)
    executor = ArithmeticExecutor(limits=limits, policy=Policy(admission=admission, watermark=0))
    for id in range(1, 9):
        executor.submit(id, prompt=20 + id, new=30 + 3 * id, expected_output_tokens=30 + 3 * id)
    executor.run()
    assert len(executor.finished) == 8
    assert executor.num_evictions == {}


def test_an_unknown_length_reserves_what_the_model_takes() -> None:
    state = executor_of(waiting(1), waiting(2), num_blocks=64, max_model_len=512)
    assert plan_executor(state, Policy(admission=Admission.RESERVE)).admit.id.tolist() == [1, 2]
    plan = plan_executor(
        replace(state, limits=replace(state.limits, max_model_len=529)), Policy(admission=Admission.RESERVE)
    )
    assert plan.admit.id.tolist() == [1]
    assert plan.shortfall is not None
    assert (plan.shortfall.reason, plan.shortfall.needed) == (Reason.WAITING_FOR_BLOCKS, 33)


def test_one_that_outlived_its_estimate_is_expected_to_end_next() -> None:
    late = running(1, num_output_tokens=9, expected_output_tokens=4, num_prompt_tokens=8)
    state = executor_of(late, waiting(2, num_prompt_tokens=48, expected_output_tokens=1), num_blocks=5)
    policy = Policy(admission=Admission.PREDICTIVE, watermark=0)
    # A block is held for its next token, and no more.
    assert plan_executor(state, policy).admit.id.tolist() == [2]
    assert plan_executor(replace(state, num_free_blocks=3), policy).admit.id.tolist() == []


def test_an_evicted_request_ages_on() -> None:
    rows = [preempted(1, priority=0, arrival_time_us=0), waiting(2, priority=1, arrival_time_us=900_000)]
    plan = plan_executor(executor_of(*rows, max_num_seqs=1), Policy(ordering=Ordering.PRIORITY, aging_seconds=0.5))
    assert plan.admit.id.tolist() == [1]
