"""Drafts are verified with what a pass leaves of tokens and blocks, and cost nobody anything."""

from __future__ import annotations

from scheduler_service.core.plan import plan_executor
from scheduler_service.core.policy import Admission, BatchComposition, Policy
from scheduler_service.core.state import ExecutorState
from scheduler_service.core.verify import verify
from support.states import executor_of, running, swapped, waiting

FIFO = Policy(watermark=0)


def tokens(state: ExecutorState, policy: Policy = FIFO) -> dict[int, int]:
    scheduled = plan_executor(state, policy).scheduled
    return dict(zip(scheduled.id.tolist(), scheduled.num_tokens.tolist(), strict=True))


def test_each_gets_as_many_as_the_budget_leaves_in_order() -> None:
    rows = [running(1, num_draft_tokens=3), running(2, num_draft_tokens=3)]
    for budget, expected in ((9, {1: 4, 2: 4}), (7, {1: 4, 2: 3}), (3, {1: 2, 2: 1}), (2, {1: 1, 2: 1}), (1, {1: 1})):
        assert tokens(executor_of(*rows, max_num_batched_tokens=budget)) == expected


def test_prompts_go_before_drafts() -> None:
    decodes = running(1, num_draft_tokens=3)
    prefills = running(2, num_prompt_tokens=60, num_output_tokens=0, num_computed_tokens=0)
    assert tokens(executor_of(decodes, prefills, max_num_batched_tokens=61)) == {1: 1, 2: 60}
    assert tokens(executor_of(decodes, prefills, max_num_batched_tokens=63)) == {1: 3, 2: 60}
    assert tokens(executor_of(decodes, waiting(2), max_num_batched_tokens=18)) == {1: 2, 2: 16}


def test_only_who_runs_has_drafts_verified() -> None:
    rows = [running(1, num_draft_tokens=3), waiting(2), swapped(3, num_draft_tokens=3)]
    separate = Policy(batch_composition=BatchComposition.SEPARATE)
    # One that enters has just got its KV back: what it guessed is forgotten.
    assert tokens(executor_of(*rows, num_swap_blocks=1)) == {3: 1, 1: 4, 2: 16}
    assert tokens(executor_of(*rows[:2]), separate) == {2: 16}


def test_none_is_beyond_the_end_of_the_answer() -> None:
    assert tokens(executor_of(running(1, num_draft_tokens=5, max_output_tokens=4))) == {1: 3}
    assert tokens(executor_of(running(1, num_draft_tokens=5, num_output_tokens=4, max_output_tokens=5))) == {1: 1}
    assert tokens(executor_of(running(1, num_draft_tokens=5), max_model_len=20)) == {1: 3}


def test_they_evict_nobody() -> None:
    # The drafts of 1 would take the only free block, which the next token of 2 needs.
    rows = [running(1, num_prompt_tokens=30, num_draft_tokens=4), running(2)]
    state = executor_of(*rows, num_blocks=4)
    plan = plan_executor(state, FIFO)
    assert plan.evict.id.tolist() == []
    # One draft, so that the token after it still has room.
    assert tokens(state) == {1: 1, 2: 1}
    assert tokens(executor_of(*rows, num_blocks=5)) == {1: 5, 2: 1}


def test_they_take_no_block_that_the_next_token_of_another_needs() -> None:
    # 2 needs no block now, and one in the next pass.
    rows = [running(1, num_prompt_tokens=30, num_draft_tokens=4), running(2, num_prompt_tokens=31)]
    assert tokens(executor_of(*rows, num_blocks=5)) == {1: 1, 2: 1}
    assert tokens(executor_of(*rows, num_blocks=6)) == {1: 5, 2: 1}


def test_they_take_no_block_while_someone_waits_for_blocks() -> None:
    decodes = running(1, num_prompt_tokens=29, num_draft_tokens=4)
    assert tokens(executor_of(decodes, num_blocks=6)) == {1: 5}
    assert tokens(executor_of(decodes, waiting(2, num_prompt_tokens=80), num_blocks=6)) == {1: 2}
    # Who waits for a place has no use for blocks yet.
    assert tokens(executor_of(decodes, waiting(2), num_blocks=6, max_num_seqs=1)) == {1: 5}


def test_who_enters_comes_before_them() -> None:
    rows = [running(1, num_prompt_tokens=30, num_draft_tokens=4), waiting(2, num_prompt_tokens=30)]
    assert tokens(executor_of(*rows, num_blocks=4)) == {1: 1, 2: 30}
    assert tokens(executor_of(*rows, num_blocks=5)) == {1: 5, 2: 30}


def test_blocks_that_are_held_for_a_request_are_there_for_its_drafts() -> None:
    reserve = Policy(admission=Admission.RESERVE)
    rows = [running(1, num_prompt_tokens=30, num_draft_tokens=4, max_output_tokens=9), waiting(2, num_prompt_tokens=80)]
    assert tokens(executor_of(*rows, num_blocks=6)) == {1: 1}
    assert tokens(executor_of(*rows, num_blocks=6), reserve) == {1: 5}


def test_what_an_eviction_leaves_held_for_a_request_is_there_for_its_drafts() -> None:
    predictive = Policy(admission=Admission.PREDICTIVE)
    first = running(1, num_prompt_tokens=32, num_draft_tokens=17, expected_output_tokens=40)
    state = executor_of(first, running(2, num_prompt_tokens=48), num_blocks=5)
    plan = plan_executor(state, predictive)
    assert plan.evict.id.tolist() == [2]
    assert tokens(state, predictive) == {1: 18}
    assert verify(state, plan, predictive) == ()
