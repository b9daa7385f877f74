"""Who is held until another has computed the prefix that both share, and who computes it."""

from __future__ import annotations

from dataclasses import replace

from scheduler_service.core.executor_plan import Reason, Shortfall
from scheduler_service.core.explain import explain_executor
from scheduler_service.core.plan import plan_executor
from scheduler_service.core.policy import HeadOfLine, Ordering, Policy, Preemption
from scheduler_service.core.state import ExecutorState
from support.states import TENANTS, executor_of, preempted, running, swapped, waiting

HOLD = Policy(hold_for_shared_prefix=True)
HELD = Reason.WAITING_FOR_SHARED_PREFIX


def entering(state: ExecutorState, policy: Policy = HOLD) -> list[int]:
    plan = plan_executor(state, policy)
    return [*plan.admit.id.tolist(), *plan.resume.id.tolist()]


def held(state: ExecutorState, policy: Policy = HOLD) -> dict[int, int]:
    """Who is held, and behind whom."""
    explained = explain_executor(state, plan_executor(state, policy), policy)
    columns = (explained.id.tolist(), explained.reason.tolist(), explained.behind_id.tolist())
    return {id: behind for id, reason, behind in zip(*columns, strict=True) if reason == HELD}


def test_the_first_in_order_computes_and_the_others_step_aside() -> None:
    state = executor_of(
        *(waiting(id, next_block_hash=7) for id in (3, 1, 2)), waiting(4), waiting(5, next_block_hash=8)
    )
    assert entering(state) == [1, 4, 5]
    assert held(state) == {2: 1, 3: 1}
    assert entering(state, Policy()) == [1, 2, 3, 4]


def test_the_first_is_so_by_the_policy_s_order() -> None:
    rows = [waiting(1, next_block_hash=7), waiting(2, next_block_hash=7, priority=1), preempted(3, next_block_hash=7)]
    assert held(executor_of(*rows)) == {1: 3, 2: 3}
    assert held(executor_of(*rows), replace(HOLD, ordering=Ordering.PRIORITY)) == {1: 2, 3: 2}


def test_one_that_runs_computes() -> None:
    prefills = running(1, num_prompt_tokens=90, num_output_tokens=0, num_computed_tokens=20, next_block_hash=7)
    state = executor_of(prefills, waiting(2, next_block_hash=7), waiting(3), max_num_batched_tokens=128)
    assert entering(state) == [3]
    assert held(state) == {2: 1}


def test_one_that_runs_and_gets_no_token_holds_nobody() -> None:
    prefills = running(1, num_prompt_tokens=90, num_output_tokens=0, num_computed_tokens=20, next_block_hash=7)
    state = executor_of(prefills, running(2), waiting(3, next_block_hash=7), max_num_batched_tokens=1)
    assert held(state) == {}
    assert plan_executor(state, HOLD).shortfall == Shortfall(
        id=3, reason=Reason.WAITING_FOR_TOKEN_BUDGET, needed=16, available=0
    )


def test_the_next_one_takes_over_when_the_one_that_computed_is_gone() -> None:
    rows = [waiting(id, next_block_hash=7) for id in (2, 3)]
    assert entering(executor_of(*rows)) == [2]
    assert entering(executor_of(preempted(1, next_block_hash=7), *rows)) == [1]
    assert entering(executor_of(rows[1])) == [3]


def test_one_that_needs_what_is_evicted_in_this_very_plan_is_held_no_longer_than_that() -> None:
    computes = running(1, num_prompt_tokens=40, num_output_tokens=0, num_computed_tokens=20, next_block_hash=7)
    rows = [computes, waiting(2, next_block_hash=7), waiting(3, priority=5)]
    urgent = replace(HOLD, ordering=Ordering.PRIORITY, preemption=Preemption.FOR_PRIORITY)
    state = executor_of(*rows, max_num_seqs=1)
    plan = plan_executor(state, urgent)
    assert (plan.evict.id.tolist(), plan.admit.id.tolist()) == ([1], [3])
    assert held(state, urgent) == {2: 1}
    assert entering(executor_of({**rows[0], "status": 1, "num_computed_tokens": 0, "num_blocks": 0}, rows[1])) == [1]


def test_swapped_requests_are_never_held_but_others_for_them() -> None:
    rows = [swapped(id, next_block_hash=7) for id in (1, 2)]
    state = executor_of(*rows, waiting(3, next_block_hash=7), num_swap_blocks=4)
    assert entering(state) == [1, 2]
    assert held(state) == {3: 1}


def test_a_block_that_nobody_names_holds_nobody() -> None:
    state = executor_of(waiting(1), waiting(2), waiting(3))
    assert entering(state) == [1, 2, 3]
    assert held(state) == {}


def test_those_behind_one_that_does_not_fit_wait_with_it() -> None:
    rows = [running(1, num_prompt_tokens=62), waiting(2, num_prompt_tokens=96, next_block_hash=7)]
    rows += [waiting(3, next_block_hash=7), waiting(4)]
    state = executor_of(*rows, num_blocks=8)
    skip = replace(HOLD, head_of_line=HeadOfLine.SKIP, watermark=0)
    assert entering(state) == []
    assert entering(state, skip) == [4]
    assert held(state, skip) == {3: 2}


def test_under_fair_tenants_do_not_wait_for_the_turns_of_others() -> None:
    rows = [waiting(id, tenant=id % 2, next_block_hash=7) for id in (1, 2, 3, 4)]
    fair = replace(HOLD, ordering=Ordering.FAIR)
    assert sorted(entering(executor_of(*rows, tenants=TENANTS), fair)) == [1, 2]
    assert held(executor_of(*rows, tenants=TENANTS), fair) == {3: 1, 4: 2}
    computes = running(9, num_prompt_tokens=90, num_output_tokens=0, num_computed_tokens=20, next_block_hash=7)
    assert held(executor_of(computes, *rows, tenants=TENANTS), fair) == dict.fromkeys((1, 2, 3, 4), 9)


def test_the_shortfall_tells_of_those_that_are_held_where_nobody_else_waits() -> None:
    rows = [waiting(id, next_block_hash=7) for id in (1, 2, 3)]
    assert plan_executor(executor_of(*rows), HOLD).shortfall == Shortfall(id=2, reason=HELD)
    short = plan_executor(executor_of(*rows, waiting(4, next_block_hash=8), max_num_seqs=1), HOLD).shortfall
    assert short == Shortfall(id=4, reason=Reason.WAITING_FOR_SEQS, needed=1, available=0)
    over = replace(HOLD, max_num_waiting=0)
    assert plan_executor(executor_of(*rows), over).shortfall is None
    assert plan_executor(executor_of(*rows), over).reject.id.tolist() == [2, 3]
