"""What happens behind one that does not fit."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from scheduler_service.core.executor_plan import Reason
from scheduler_service.core.explain import explain_executor
from scheduler_service.core.plan import plan_executor
from scheduler_service.core.policy import HeadOfLine, Ordering, Policy
from scheduler_service.core.state import ExecutorLimits, RequestStatus
from support.arithmetic_executor import ArithmeticExecutor
from support.states import EVEN_TENANTS, Row, executor_of, running, swapped, waiting

SKIP = Policy(head_of_line=HeadOfLine.SKIP, watermark=0)
BACKFILL = Policy(head_of_line=HeadOfLine.BACKFILL, watermark=0)


def test_skip_lets_pass_what_fits_beside_those_that_passed_before() -> None:
    rows = [running(1, num_prompt_tokens=62), waiting(2, num_prompt_tokens=96)]
    rows += [waiting(3, num_prompt_tokens=32), waiting(4, num_prompt_tokens=48), waiting(5), waiting(6)]
    plan = plan_executor(executor_of(*rows, num_blocks=8, max_num_batched_tokens=256), SKIP)
    assert plan.admit.id.tolist() == [3, 5, 6]
    assert plan.shortfall is not None
    assert (plan.shortfall.id, plan.shortfall.reason) == (2, Reason.WAITING_FOR_BLOCKS)


def test_those_that_pass_say_how_many_they_pass() -> None:
    ends_soon = {"max_output_tokens": 2}
    rows = [running(1, num_prompt_tokens=62, max_output_tokens=30), waiting(2, num_prompt_tokens=96)]
    rows += [waiting(3, num_prompt_tokens=32, **ends_soon), waiting(4, num_prompt_tokens=48, **ends_soon)]
    state = executor_of(*rows, waiting(5, **ends_soon), num_blocks=8, max_num_batched_tokens=256)
    for policy, reason, num_passed in (
        (SKIP, Reason.SKIPPED_AHEAD, {3: 1, 5: 2}),
        (BACKFILL, Reason.BACKFILLED, {3: 1}),
    ):
        plan = plan_executor(state, policy)
        assert (plan.admit.id.tolist(), set(plan.admit.reason.tolist())) == (list(num_passed), {reason})
        explained = explain_executor(state, plan, policy)
        passing = explained.reason == reason
        assert dict(zip(explained.id[passing], explained.needed[passing], strict=True)) == num_passed


def test_tenants_take_turns_so_only_those_of_its_own_are_passed() -> None:
    rows = [running(1, num_prompt_tokens=62), waiting(2, num_prompt_tokens=96, tenant=0)]
    rows += [waiting(3, tenant=1, num_prompt_tokens=80), waiting(4, tenant=1), waiting(5, tenant=1)]
    fair = replace(SKIP, ordering=Ordering.FAIR)
    state = executor_of(*rows, num_blocks=8, tenants=EVEN_TENANTS)
    plan = plan_executor(state, fair)
    assert plan.admit.reason.tolist() == [Reason.SKIPPED_AHEAD] * 2
    assert explain_executor(state, plan, fair).needed.tolist()[3:] == [1, 1]


def test_nobody_is_overtaken_more_often_than_the_policy_says() -> None:
    rows = [running(1, num_prompt_tokens=62), waiting(2, num_prompt_tokens=96, times_overtaken=1)]
    rows += [waiting(3), waiting(4), waiting(5)]
    state = executor_of(*rows, num_blocks=8)
    for most, admitted in ((0, []), (1, []), (2, [3]), (3, [3, 4]), (16, [3, 4, 5])):
        assert plan_executor(state, replace(SKIP, max_times_overtaken=most)).admit.id.tolist() == admitted


def test_one_that_is_passed_on_the_way_is_not_overtaken_too_often_either() -> None:
    rows = [running(1, num_prompt_tokens=62), waiting(2, num_prompt_tokens=96), waiting(3)]
    rows += [waiting(4, num_prompt_tokens=90, times_overtaken=16), waiting(5)]
    assert plan_executor(executor_of(*rows, num_blocks=8), SKIP).admit.id.tolist() == [3]


def test_a_steady_stream_of_small_requests_passes_a_large_one_so_many_times_and_no_more() -> None:
    limits = ExecutorLimits(max_num_batched_tokens=64, max_num_seqs=4, block_size=16, num_blocks=8, max_model_len=256)
    executor = ArithmeticExecutor(limits=limits, policy=replace(SKIP, max_times_overtaken=5))
    executor.submit_decoding(1, prompt=40, new=30, num_stored=40)
    executor.submit(2, prompt=112, new=2)
    for iteration in range(60):
        executor.submit(10 + iteration, prompt=16, new=4)
        executor.step()
    started = next(i for i, tokens in enumerate(executor.tokens_of(2)) if tokens > 0)
    admitted_before = {id for plan in executor.history[:started] for id in plan.admit.id.tolist()}
    assert len(admitted_before) == 5
    executor.run()


def test_backfill_lets_pass_what_ends_before_the_head_starts() -> None:
    holder = running(1, num_prompt_tokens=79, max_output_tokens=12, expected_output_tokens=6)
    rows = [holder, waiting(2, num_prompt_tokens=120)]
    for num_outputs, admitted in ((5, [3]), (6, [])):
        state = executor_of(*rows, waiting(3, max_output_tokens=num_outputs), num_blocks=8)
        plan = plan_executor(state, BACKFILL)
        assert plan.admit.id.tolist() == admitted
        assert plan.admit.reason.tolist() == [Reason.BACKFILLED] * len(admitted)


@pytest.mark.parametrize(
    "before",
    [
        swapped(1, num_prompt_tokens=64, max_output_tokens=3),
        waiting(1, num_prompt_tokens=65, num_computed_tokens=64, num_blocks=4, max_output_tokens=3),
    ],
    ids=["swapped", "cached"],
)
def test_backfill_counts_what_one_that_enters_gives_back_once(before: Row) -> None:
    # When 1 has ended its 5 blocks are free again, and the head may have all but 2 of the 10. 3 takes 3, for longer.
    rows = [before, waiting(2, num_prompt_tokens=128, max_output_tokens=1)]
    state = executor_of(*rows, waiting(3, num_prompt_tokens=40, max_output_tokens=9), num_blocks=10, num_swap_blocks=4)
    plan = plan_executor(state, BACKFILL)
    assert [*plan.resume.id, *plan.admit.id] == [1]


def test_backfill_lets_the_head_find_what_others_reuse_too() -> None:
    # 1 and the head have 4 cached blocks in common. When 2 has ended 1 still holds them: the head needs 7 others, of 9.
    # So who passes and stays longer than 2 may have 2 blocks, although the head would need all 11 once 1 has ended too.
    common = {"num_prompt_tokens": 65, "num_computed_tokens": 64, "num_blocks": 4, "cached_prefix": 1}
    rows = [
        waiting(1, **common, max_output_tokens=40),
        waiting(2, num_prompt_tokens=64, max_output_tokens=2),
        waiting(3, **{**common, "num_prompt_tokens": 170}, max_output_tokens=1),
    ]
    late, soon = waiting(4, num_prompt_tokens=20, max_output_tokens=30), waiting(4, max_output_tokens=1)
    for passing, admitted in ((late, [1, 2]), (soon, [1, 2, 4])):
        state = executor_of(*rows, passing, num_blocks=14, max_num_batched_tokens=256, prefixes=[(0, 4)])
        assert plan_executor(state, BACKFILL).admit.id.tolist() == admitted


def test_backfill_lets_pass_what_is_spare_beside_the_head() -> None:
    rows = [
        running(1, num_prompt_tokens=79, max_output_tokens=2),
        waiting(2, num_prompt_tokens=90, max_output_tokens=2),
    ]
    state = executor_of(*rows, waiting(3, max_output_tokens=33), num_blocks=9)
    assert plan_executor(state, BACKFILL).admit.id.tolist() == [3]
    state = executor_of(*rows, waiting(3, max_output_tokens=50), num_blocks=9)
    assert plan_executor(state, BACKFILL).admit.id.tolist() == []


def test_backfill_lets_nobody_pass_whose_length_is_open() -> None:
    rows = [running(1, num_prompt_tokens=79, max_output_tokens=12), waiting(2, num_prompt_tokens=120), waiting(3)]
    assert plan_executor(executor_of(*rows, num_blocks=8), BACKFILL).admit.id.tolist() == []


def start_of_the_head(seed: int, policy: Policy) -> int:
    """The iteration in which the head of the queue starts, all lengths being known."""
    random = Random(seed)
    limits = ExecutorLimits(
        max_num_batched_tokens=512, max_num_seqs=random.choice([3, 8]), block_size=4, num_blocks=24, max_model_len=96
    )
    executor = ArithmeticExecutor(limits=limits, policy=policy)
    for id in (1, 2):
        executor.submit_decoding(id, prompt=random.randint(12, 16), new=random.randint(8, 24), num_stored=17)
    executor.submit(3, prompt=random.randint(60, 80), new=random.randint(1, 8))
    for id in range(4, 12):
        executor.submit(id, prompt=random.randint(1, 12), new=random.randint(1, 30))
    while 3 in executor.requests and executor.requests[3].status is RequestStatus.WAITING:
        executor.step()
        assert len(executor.history) < 300
    return len(executor.history)


@pytest.mark.parametrize("seed", range(60))
def test_backfill_does_not_delay_the_head(seed: int) -> None:
    strict = start_of_the_head(seed, replace(BACKFILL, head_of_line=HeadOfLine.STRICT))
    assert start_of_the_head(seed, BACKFILL) <= strict
