"""Cases 1, 2, 3, 6, 14, 15, 16, 20, 21, 22, 36, 37 and 38 of the product's case list, played to their end.

Every plan on the way is verified by the arithmetic executor, and no iteration may run nothing.
"""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from scheduler_service.core.executor_plan import EvictMode, Reason
from scheduler_service.core.plan import plan_executor
from scheduler_service.core.policy import Eviction, Policy
from scheduler_service.core.state import ExecutorLimits, RequestStatus
from support.arithmetic_executor import ArithmeticExecutor
from support.states import executor_of, running, swapped, waiting

RECOMPUTE = Policy(eviction=Eviction.RECOMPUTE)
SWAP = Policy(eviction=Eviction.SWAP)


def executor(policy: Policy = RECOMPUTE, **limits: Any) -> ArithmeticExecutor:
    sizes = {"max_num_batched_tokens": 64, "max_num_seqs": 8, "block_size": 16, "num_blocks": 8, "max_model_len": 256}
    return ArithmeticExecutor(limits=ExecutorLimits(**(sizes | limits)), policy=policy)


def test_case_1_a_prompt_that_can_never_fit_is_refused_and_hurts_nobody() -> None:
    served = executor()
    served.submit(1, prompt=200, new=8)
    served.submit(2, prompt=20, new=4)
    plan = served.step()
    assert plan.reject.id.tolist() == [1]
    assert plan.reject.reason.tolist() == [Reason.REJECTED_EXCEEDS_BLOCKS]
    assert (plan.reject.needed.tolist(), plan.reject.available.tolist()) == ([13], [8])
    served.run()
    alone = executor()
    alone.submit(2, prompt=20, new=4)
    alone.run()
    assert served.tokens_of(2) == alone.tokens_of(2)
    assert served.num_free_blocks == 8


def test_case_1_a_prompt_that_does_not_fit_now_stays_queued() -> None:
    served = executor(num_blocks=16)
    served.submit_decoding(9, prompt=180, new=20, num_stored=180)
    served.submit(1, prompt=200, new=8)
    plan = served.step()
    assert plan.reject.id.tolist() == []
    assert plan.admit.id.tolist() == []
    assert plan.shortfall is not None
    assert (plan.shortfall.id, plan.shortfall.reason) == (1, Reason.WAITING_FOR_BLOCKS)
    assert plan.shortfall.needed == 13
    served.run()
    assert set(served.finished) == {1, 9}


def test_case_2_an_answer_that_can_never_fit_is_refused_at_once() -> None:
    served = executor()
    served.submit(1, prompt=100, new=100)
    served.submit(2, prompt=20, new=4)
    served.run()
    assert served.rejected == {1: Reason.REJECTED_EXCEEDS_BLOCKS}
    assert set(served.finished) == {2}


def test_case_2_with_an_unknown_length_the_prompt_alone_counts() -> None:
    state = executor_of(waiting(1, num_prompt_tokens=128), num_blocks=8)
    plan = plan_executor(state, RECOMPUTE)
    assert plan.admit.id.tolist() == [1]


def test_case_3_the_last_token_needs_no_slot() -> None:
    served = executor()
    served.submit(1, prompt=120, new=9)
    served.submit(2, prompt=120, new=10)
    most_blocks = 0
    while served.requests:
        served.step()
        most_blocks = max(most_blocks, 8 - served.num_free_blocks)
    assert served.rejected == {2: Reason.REJECTED_EXCEEDS_BLOCKS}
    assert served.finished[1].num_output_tokens == 9
    assert served.finished[1].num_computed_tokens == 128
    assert served.finished[1].num_blocks == 8
    assert most_blocks <= 8


@pytest.mark.parametrize(
    ("limits", "reason"),
    [
        ({"max_num_seqs": 2, "num_blocks": 8}, Reason.WAITING_FOR_SEQS),
        ({"max_num_batched_tokens": 2, "num_blocks": 8}, Reason.WAITING_FOR_TOKEN_BUDGET),
        ({"num_blocks": 2}, Reason.WAITING_FOR_BLOCKS),
    ],
)
def test_case_6_nothing_left_admits_nobody(limits: dict[str, int], reason: Reason) -> None:
    served = executor(**limits)
    served.submit_decoding(1, prompt=8, new=3, num_stored=9)
    served.submit_decoding(2, prompt=8, new=3, num_stored=9)
    served.submit(3, prompt=8, new=2)
    plan = served.step()
    assert plan.admit.id.tolist() == []
    assert plan.shortfall is not None
    assert (plan.shortfall.reason, plan.shortfall.available) == (reason, 0)
    served.run()
    assert set(served.finished) == {1, 2, 3}


def test_case_14_nobody_starts_on_a_first_chunk_that_fits() -> None:
    served = executor(max_num_batched_tokens=32)
    served.submit_decoding(1, prompt=33, new=16, num_stored=40)
    served.submit_decoding(2, prompt=33, new=16, num_stored=40)
    served.submit(3, prompt=96, new=4)
    while 1 in served.requests:
        plan = served.step()
        assert {1, 2} <= set(plan.scheduled.id.tolist())
        assert 3 not in plan.scheduled.id
    assert set(served.finished) == {1, 2}
    assert served.step().admit.id.tolist() == [3]
    served.run()
    assert served.num_evictions == {}
    assert served.finished[3].num_output_tokens == 4


def test_case_15_when_all_need_a_block_the_last_goes_and_the_first_decodes() -> None:
    served = executor(num_blocks=4)
    served.submit_decoding(1, prompt=30, new=8, num_stored=32)
    served.submit_decoding(2, prompt=30, new=8, num_stored=32)
    plan = served.step()
    assert plan.evict.id.tolist() == [2]
    assert plan.scheduled.id.tolist() == [1]
    served.run()
    assert served.num_evictions == {2: 1}
    assert set(served.finished) == {1, 2}


def test_case_16_all_finish_under_heavy_overload() -> None:
    served = executor(num_blocks=12, max_num_seqs=6)
    for id in range(1, 7):
        served.submit(id, prompt=32, new=64)
    served.run()
    assert set(served.finished) == {1, 2, 3, 4, 5, 6}
    assert all(request.num_output_tokens == 64 for request in served.finished.values())
    assert 1 not in served.num_evictions
    assert max(served.num_evictions.values()) <= 4


@pytest.mark.parametrize(
    ("num_swap_blocks", "mode"), [(2, EvictMode.RECOMPUTE), (0, EvictMode.RECOMPUTE), (3, EvictMode.SWAP)]
)
def test_case_20_a_victim_that_swap_space_cannot_hold_is_recomputed(num_swap_blocks: int, mode: EvictMode) -> None:
    served = executor(SWAP, num_swap_blocks=num_swap_blocks)
    served.submit_decoding(1, prompt=70, new=40, num_stored=80)
    served.submit_decoding(2, prompt=40, new=8, num_stored=46)
    plan = served.step()
    assert plan.evict.id.tolist() == [2]
    assert plan.evict.mode.tolist() == [mode]
    assert plan.scheduled.id.tolist() == [1]
    served.run()
    assert set(served.finished) == {1, 2}


def test_case_21_work_goes_on_once_swap_is_in_use() -> None:
    served = executor(SWAP, num_swap_blocks=8)
    for id in (1, 2, 3):
        served.submit(id, prompt=32, new=40)
    served.run()
    assert all(served.finished[id].num_output_tokens == 40 for id in (1, 2, 3))
    assert served.num_evictions
    assert all(mode == EvictMode.SWAP for plan in served.history for mode in plan.evict.mode)
    assert (served.num_free_blocks, served.num_free_swap_blocks) == (8, 8)


def test_case_22_a_loaded_request_runs_past_a_blocked_head() -> None:
    served = executor()
    head = served.submit(1, prompt=90, new=4)
    loaded = served.submit_decoding(2, prompt=70, new=6, num_stored=72)
    loaded.status = RequestStatus.LOADING
    plan = served.step()
    assert plan.scheduled.id.tolist() == []
    assert plan.shortfall is not None
    assert (plan.shortfall.id, plan.shortfall.needed, plan.shortfall.available) == (head.id, 6, 2)
    loaded.status = RequestStatus.RUNNING
    assert served.step().scheduled.id.tolist() == [loaded.id]
    while loaded.id in served.requests:
        assert head.status is RequestStatus.WAITING
        served.step()
    assert served.step().admit.id.tolist() == [head.id]
    served.run()


def test_case_36_a_huge_prompt_never_holds_up_the_decodes() -> None:
    served = executor(max_num_batched_tokens=32, num_blocks=64)
    served.submit_decoding(1, prompt=16, new=60, num_stored=16)
    served.submit_decoding(2, prompt=16, new=60, num_stored=16)
    served.submit(3, prompt=200, new=4)
    served.run()
    assert served.tokens_of(3)[:7] == [30] * 6 + [20]
    assert served.tokens_of(1)[:59] == [1] * 59
    assert served.tokens_of(2)[:59] == [1] * 59


def test_case_37_decodes_over_the_budget_take_turns() -> None:
    served = executor(max_num_batched_tokens=4, num_blocks=64)
    for id in range(1, 7):
        served.submit_decoding(id, prompt=16, new=20, num_stored=16)
    served.run()
    assert max(len(plan.scheduled.id) for plan in served.history) == 4
    for id in range(1, 7):
        ran = served.tokens_of(id)
        until_end = ran[: len(ran) - ran[::-1].index(1)]
        assert all(sum(pair) >= 1 for pair in itertools.pairwise(until_end))


def test_case_37_decodes_over_the_budget_finish_in_little_memory() -> None:
    served = executor(max_num_batched_tokens=4, num_blocks=12)
    for id in range(1, 7):
        served.submit_decoding(id, prompt=16, new=20, num_stored=16)
    served.run()
    assert len(served.finished) == 6


def test_case_38_decodes_resumes_and_chunks_share_one_budget() -> None:
    state = executor_of(
        running(1),
        running(2),
        swapped(3, num_prompt_tokens=40),
        waiting(4, num_prompt_tokens=80, num_computed_tokens=20, num_blocks=2),
        max_num_batched_tokens=32,
        num_swap_blocks=8,
    )
    plan = plan_executor(state, RECOMPUTE)
    assert dict(zip(plan.scheduled.id.tolist(), plan.scheduled.num_tokens.tolist(), strict=True)) == {
        1: 1,
        2: 1,
        3: 1,
        4: 29,
    }
    assert plan.resume.id.tolist() == [3]
    assert plan.admit.id.tolist() == [4]
