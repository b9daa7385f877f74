"""Who is turned away because too many wait, or because it would be late."""

from __future__ import annotations

from dataclasses import replace

import pytest

from scheduler_service.core.executor_plan import Reason
from scheduler_service.core.plan import plan_executor
from scheduler_service.core.policy import Ordering, Policy
from scheduler_service.core.state import ExecutorLimits, LatencyModel
from support.arithmetic_executor import ArithmeticExecutor
from support.states import EVEN_TENANTS, LATENCY, NOW_US, executor_of, preempted, running, swapped, waiting


def test_case_7_the_queue_has_a_limit_and_room_again_once_one_has_ended() -> None:
    limits = ExecutorLimits(
        max_num_batched_tokens=64, max_num_seqs=1, block_size=16, num_blocks=8, max_model_len=64, max_num_waiting=4
    )
    executor = ArithmeticExecutor(limits=limits)
    executor.submit(1, prompt=16, new=3)
    executor.step()
    for id in (2, 3, 4, 5, 6):
        executor.submit(id, prompt=16, new=3)
    plan = executor.step()
    assert plan.reject.id.tolist() == [6]
    assert plan.reject.reason.tolist() == [Reason.REJECTED_QUEUE_FULL]
    while 1 in executor.requests:
        executor.step()
    executor.submit(7, prompt=16, new=3)
    assert executor.step().reject.id.tolist() == []
    executor.run()
    assert set(executor.finished) == {1, 2, 3, 4, 5, 7}


def test_the_policy_s_limit_stands_before_the_executor_s() -> None:
    rows = [running(9), *(waiting(id) for id in range(1, 5))]
    state = executor_of(*rows, max_num_seqs=1, max_num_waiting=3)
    assert plan_executor(state, Policy()).reject.id.tolist() == [4]
    assert plan_executor(state, Policy(max_num_waiting=1)).reject.id.tolist() == [2, 3, 4]
    assert plan_executor(state, Policy(max_num_waiting=9)).reject.id.tolist() == []


def test_with_a_limit_of_zero_only_those_stay_that_start_at_once() -> None:
    state = executor_of(*(waiting(id) for id in range(1, 5)), max_num_seqs=2)
    plan = plan_executor(state, Policy(max_num_waiting=0))
    assert plan.admit.id.tolist() == [1, 2]
    assert plan.reject.id.tolist() == [3, 4]
    assert plan.shortfall is None


def test_those_that_ran_before_are_not_counted_and_not_turned_away() -> None:
    rows = [running(9), preempted(1), swapped(2), waiting(3), waiting(4)]
    state = executor_of(*rows, max_num_seqs=1, num_swap_blocks=4)
    assert plan_executor(state, Policy(max_num_waiting=1)).reject.id.tolist() == [4]


def test_the_last_in_the_policy_s_order_is_turned_away() -> None:
    rows = [running(9), waiting(1, priority=0), waiting(2, priority=3)]
    state = executor_of(*rows, max_num_seqs=1)
    assert plan_executor(state, Policy(max_num_waiting=1)).reject.id.tolist() == [2]
    assert plan_executor(state, Policy(max_num_waiting=1, ordering=Ordering.PRIORITY)).reject.id.tolist() == [1]


def test_a_tenant_s_share_of_the_queue_is_its_own() -> None:
    rows = [running(9), *(waiting(id, tenant=id % 2) for id in (1, 2, 3, 5, 7))]
    state = executor_of(*rows, max_num_seqs=1, tenants=EVEN_TENANTS)
    plan = plan_executor(state, Policy(max_num_waiting_per_tenant=2))
    assert plan.reject.id.tolist() == [5, 7]
    assert plan.reject.reason.tolist() == [Reason.REJECTED_TENANT_QUEUE_FULL] * 2
    plan = plan_executor(state, Policy(max_num_waiting_per_tenant=2, max_num_waiting=2))
    assert plan.reject.id.tolist() == [3, 5, 7]
    assert plan.reject.reason.tolist()[0] == Reason.REJECTED_QUEUE_FULL


def test_who_is_turned_away_hears_how_long_it_would_have_waited() -> None:
    rows = [running(9, max_output_tokens=5), waiting(1, max_output_tokens=10), waiting(2, max_output_tokens=10)]
    state = executor_of(*rows, max_num_seqs=1, latency=LATENCY)
    (wait_us,) = plan_executor(state, Policy(max_num_waiting=1)).reject.estimated_wait_us.tolist()
    # 4 and 10 tokens to come, one request at a time, and a prompt of 16 tokens.
    assert wait_us == 14 * (1000 + 20) + 16 * 10
    without = plan_executor(replace(state, latency=None), Policy(max_num_waiting=1))
    assert without.reject.estimated_wait_us.tolist() == [0]


@pytest.mark.parametrize(("left_us", "late"), [(6359, True), (6360, False)])
def test_a_deadline_that_cannot_be_met_is_told_at_once(left_us: int, late: bool) -> None:
    # One chunk of 36 tokens and five further passes of 1000 us: the first token comes with the chunk.
    row = waiting(1, num_prompt_tokens=36, expected_output_tokens=6, max_output_tokens=9, deadline_us=NOW_US + left_us)
    plan = plan_executor(executor_of(row, latency=LATENCY), Policy(reject_missed_deadlines=True))
    assert plan.reject.id.tolist() == ([1] if late else [])
    if late:
        assert plan.reject.reason.tolist() == [Reason.REJECTED_DEADLINE]
        assert (plan.reject.needed.tolist(), plan.reject.available.tolist()) == ([6360], [left_us])
    assert plan_executor(executor_of(row, latency=LATENCY), Policy()).reject.id.tolist() == []


def test_without_a_latency_model_only_a_deadline_that_is_past_is_missed() -> None:
    policy = Policy(reject_missed_deadlines=True)
    rows = [waiting(1, deadline_us=NOW_US - 1), waiting(2, deadline_us=NOW_US), waiting(3)]
    assert plan_executor(executor_of(*rows), policy).reject.id.tolist() == [1]


def test_a_running_request_is_never_turned_away() -> None:
    state = executor_of(running(1, deadline_us=1), latency=LATENCY)
    assert plan_executor(state, Policy(reject_missed_deadlines=True)).reject.id.tolist() == []


def test_a_model_with_figures_beyond_all_measure_says_a_very_long_time() -> None:
    latency = LatencyModel(pass_us=1e308, prefill_token_us=1e308, decode_request_us=1e308, kv_token_us=1e308)
    rows = [running(9), waiting(1, max_output_tokens=1), waiting(2, deadline_us=NOW_US + 10**15)]
    state = executor_of(*rows, max_num_seqs=1, latency=latency)
    plan = plan_executor(
        state, Policy(max_num_waiting=0, reject_missed_deadlines=True, target_inter_token_latency_us=5)
    )
    assert plan.reject.id.tolist() == [1, 2]
    assert all(wait_us >= 0 for wait_us in plan.reject.estimated_wait_us.tolist())
