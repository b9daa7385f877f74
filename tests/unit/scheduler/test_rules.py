"""Rules of the planner, one small state each."""

from __future__ import annotations

from dataclasses import replace

import pytest

from scheduler_service.core.executor_plan import EvictMode, ExecutorPlan, Reason
from scheduler_service.core.explain import explain_executor
from scheduler_service.core.plan import plan_executor
from scheduler_service.core.policy import Admission, Eviction, Ordering, Policy, Preemption, PrefillSharing
from scheduler_service.core.state import ExecutorLimits
from support.arithmetic_executor import ArithmeticExecutor
from support.states import LATENCY, executor_of, loading, preempted, running, swapped, waiting

FIFO = Policy()


def tokens(plan: ExecutorPlan) -> dict[int, int]:
    return dict(zip(plan.scheduled.id.tolist(), plan.scheduled.num_tokens.tolist(), strict=True))


@pytest.mark.parametrize(
    ("prompt", "chunks"),
    [(128, [128]), (512, [512]), (1500, [512, 512, 476]), (3000, [512] * 5 + [440])],
)
def test_a_chunk_size_of_512_splits_a_prompt(prompt: int, chunks: list[int]) -> None:
    limits = ExecutorLimits(
        max_num_batched_tokens=4096, max_num_seqs=4, block_size=16, num_blocks=256, max_model_len=4096
    )
    executor = ArithmeticExecutor(limits=limits, policy=Policy(chunk_size_tokens=512))
    executor.submit(1, prompt=prompt, new=1)
    executor.run()
    assert executor.tokens_of(1) == chunks


def test_decodes_come_first_then_running_prefills_then_resumes_then_admissions() -> None:
    state = executor_of(
        waiting(1, num_prompt_tokens=100),
        swapped(2, num_prompt_tokens=20),
        running(3, num_prompt_tokens=100, num_output_tokens=0, num_computed_tokens=60),
        running(4),
        max_num_batched_tokens=44,
        num_swap_blocks=4,
    )
    assert tokens(plan_executor(state, FIFO)) == {4: 1, 3: 40, 2: 1, 1: 2}


def test_those_that_ran_before_come_before_those_that_never_did() -> None:
    state = executor_of(waiting(1), preempted(2), swapped(3), max_num_seqs=2, num_swap_blocks=4)
    plan = plan_executor(state, FIFO)
    assert plan.admit.id.tolist() == [2]
    assert plan.admit.reason.tolist() == [Reason.READMITTED]
    assert plan.resume.id.tolist() == [3]
    assert plan.shortfall is not None
    assert (plan.shortfall.id, plan.shortfall.reason) == (1, Reason.WAITING_FOR_SEQS)


def test_the_least_recently_run_decode_has_its_turn() -> None:
    rows = [running(1, last_run_iteration=9), running(2, last_run_iteration=7), running(3, last_run_iteration=8)]
    assert tokens(plan_executor(executor_of(*rows, max_num_batched_tokens=2), FIFO)) == {2: 1, 3: 1}


def test_a_prefill_in_progress_keeps_the_blocks_of_the_rest_of_its_prompt() -> None:
    half_way = running(1, num_prompt_tokens=96, num_output_tokens=0, num_computed_tokens=32)
    state = executor_of(half_way, waiting(2, num_prompt_tokens=32), num_blocks=8, max_num_batched_tokens=16)
    plan = plan_executor(state, Policy(watermark=0))
    assert plan.admit.id.tolist() == []
    state = replace(state, limits=replace(state.limits, max_num_batched_tokens=64, num_blocks=9), num_free_blocks=7)
    plan = plan_executor(state, replace(FIFO, watermark=0, chunk_size_tokens=32))
    assert plan.admit.id.tolist() == [2]


def test_the_watermark_stays_free_unless_nothing_else_runs() -> None:
    half_free = Policy(watermark=0.5)
    beside = executor_of(running(1), waiting(2, num_prompt_tokens=64), num_blocks=8)
    plan = plan_executor(beside, half_free)
    assert plan.shortfall is not None
    # Seven blocks are free, one goes to the running request, four are kept.
    assert (plan.shortfall.needed, plan.shortfall.available) == (4, 2)
    alone = executor_of(waiting(2, num_prompt_tokens=128), num_blocks=8)
    assert plan_executor(alone, half_free).admit.id.tolist() == [2]


def test_one_that_was_evicted_comes_back_only_beside_a_block_of_growth_for_each() -> None:
    row = preempted(2, num_prompt_tokens=31)
    tight = executor_of(running(1, num_prompt_tokens=20), row, num_blocks=6, num_free_blocks=3)
    assert plan_executor(tight, Policy(watermark=0)).admit.id.tolist() == []
    loose = executor_of(running(1, num_prompt_tokens=20), row, num_blocks=6, num_free_blocks=4)
    assert plan_executor(loose, Policy(watermark=0)).admit.id.tolist() == [2]


def test_case_27_cached_blocks_that_are_free_are_used_up() -> None:
    busy = running(1, num_prompt_tokens=47)
    cached = waiting(2, num_prompt_tokens=96, num_computed_tokens=32, num_blocks=2)
    no_watermark = Policy(watermark=0)
    assert plan_executor(executor_of(busy, cached, num_blocks=8), no_watermark).admit.id.tolist() == []
    assert plan_executor(executor_of(busy, cached, num_blocks=9), no_watermark).admit.id.tolist() == [2]
    shared = {**cached, "num_shared_blocks": 2}
    assert plan_executor(executor_of(busy, shared, num_blocks=7), no_watermark).admit.id.tolist() == [2]


def test_case_12_the_victim_is_in_one_list_only() -> None:
    state = executor_of(
        running(1, num_prompt_tokens=32), running(2, num_prompt_tokens=30), num_blocks=4, max_num_batched_tokens=8
    )
    plan = plan_executor(state, FIFO)
    assert plan.evict.id.tolist() == [2]
    assert tokens(plan) == {1: 1}


def test_shared_blocks_are_not_freed_by_evicting_one_of_those_that_hold_them() -> None:
    rows = [running(1, num_prompt_tokens=16), *(running(id, num_shared_blocks=1) for id in (2, 3)), running(4)]
    state = executor_of(*rows, num_blocks=3, num_free_blocks=0)
    # Four need a block; 4 frees its own, 3 and 2 free none.
    assert plan_executor(state, FIFO).evict.id.tolist() == [2, 3, 4]


def test_where_loading_requests_hold_the_blocks_nobody_is_evicted_in_vain() -> None:
    state = executor_of(
        running(1), loading(2, num_prompt_tokens=40), running(3, num_prompt_tokens=10, num_shared_blocks=1)
    )
    state = replace(state, num_free_blocks=0)
    plan = plan_executor(state, FIFO)
    assert plan.evict.id.tolist() == []
    assert tokens(plan) == {3: 1}


def test_a_plan_that_evicts_admits_nobody() -> None:
    rows = [running(1), running(2), waiting(3, num_prompt_tokens=1)]
    plan = plan_executor(executor_of(*rows, num_blocks=2), FIFO)
    assert plan.evict.id.tolist() == [2]
    assert plan.admit.id.tolist() == []
    assert plan.shortfall is not None
    assert plan.shortfall.reason is Reason.WAITING_AFTER_EVICTION


@pytest.mark.parametrize(
    ("eviction", "swap_block_us", "mode"),
    [
        (Eviction.AUTO, 1.0, EvictMode.SWAP),
        (Eviction.AUTO, 1000.0, EvictMode.RECOMPUTE),
        (Eviction.SWAP, 1000.0, EvictMode.SWAP),
        (Eviction.RECOMPUTE, 1.0, EvictMode.RECOMPUTE),
    ],
)
def test_auto_takes_the_cheaper_mode(eviction: Eviction, swap_block_us: float, mode: EvictMode) -> None:
    latency = replace(LATENCY, swap_block_us=swap_block_us)
    state = executor_of(running(1), running(2), num_blocks=2, num_swap_blocks=1, latency=latency)
    assert plan_executor(state, Policy(eviction=eviction)).evict.mode.tolist() == [mode]


def test_auto_recomputes_without_a_latency_model() -> None:
    state = executor_of(running(1), running(2), num_blocks=2, num_swap_blocks=1)
    assert plan_executor(state, FIFO).evict.mode.tolist() == [EvictMode.RECOMPUTE]


def test_a_model_with_figures_beyond_all_measure_recomputes() -> None:
    latency = replace(LATENCY, swap_block_us=1e308, pass_us=1e308, prefill_token_us=1e308)
    state = executor_of(running(1), running(2), num_blocks=2, num_swap_blocks=1, latency=latency)
    assert plan_executor(state, FIFO).evict.mode.tolist() == [EvictMode.RECOMPUTE]


def test_a_draining_executor_ends_what_it_has_accepted() -> None:
    state = executor_of(preempted(1), waiting(2), draining=True)
    plan = plan_executor(state, FIFO)
    assert plan.admit.id.tolist() == [1, 2]
    assert plan.shortfall is None


def test_a_limit_on_prefills_leaves_the_others_waiting() -> None:
    state = executor_of(running(1), waiting(2, num_prompt_tokens=8), waiting(3, num_prompt_tokens=8))
    plan = plan_executor(state, Policy(max_num_partial_prefills=1))
    assert tokens(plan) == {1: 1, 2: 8}
    assert plan.shortfall is not None
    assert plan.shortfall.reason is Reason.WAITING_FOR_PREFILL_SLOT


def test_longer_than_the_model_takes_is_rejected_with_the_figures() -> None:
    state = executor_of(waiting(1, num_prompt_tokens=30, max_output_tokens=3), max_model_len=32)
    plan = plan_executor(state, FIFO)
    assert plan.reject.reason.tolist() == [Reason.REJECTED_EXCEEDS_MODEL_LEN]
    assert (plan.reject.needed.tolist(), plan.reject.available.tolist()) == ([33], [32])
    exact = executor_of(waiting(1, num_prompt_tokens=30, max_output_tokens=2), max_model_len=32)
    assert plan_executor(exact, FIFO).admit.id.tolist() == [1]


def test_reasons_say_what_bounded_a_chunk() -> None:
    rows = [running(1), waiting(2, num_prompt_tokens=10), waiting(3, num_prompt_tokens=40), waiting(4)]
    plan = plan_executor(executor_of(*rows, max_num_batched_tokens=48), Policy(chunk_size_tokens=32))
    assert tokens(plan) == {1: 1, 2: 10, 3: 32, 4: 5}
    assert plan.scheduled.reason.tolist() == [
        Reason.DECODE,
        Reason.PREFILL,
        Reason.PREFILL_CHUNK_SIZE,
        Reason.PREFILL_TOKEN_BUDGET,
    ]


def test_the_pass_is_predicted_by_the_latency_model() -> None:
    state = executor_of(running(1, num_prompt_tokens=100), waiting(2, num_prompt_tokens=10), latency=LATENCY)
    plan = plan_executor(state, FIFO)
    assert (plan.composition.num_prefill_tokens, plan.composition.num_decode_tokens) == (10, 1)
    assert (plan.composition.num_prefill_requests, plan.composition.num_decode_requests) == (1, 1)
    assert plan.predicted_time_us == 1000 + 10 * 10 + 20 + 10


def test_every_waiting_request_is_told_whom_it_waits_behind() -> None:
    rows = [running(5), loading(4), waiting(1, num_prompt_tokens=900), waiting(2), waiting(3)]
    state = executor_of(*rows, max_model_len=512, max_num_seqs=3, max_num_batched_tokens=9)
    explained = explain_executor(state, plan_executor(state, FIFO), FIFO)
    assert explained.id.tolist() == [1, 2, 3, 4, 5]
    assert [Reason(reason) for reason in explained.reason] == [
        Reason.REJECTED_EXCEEDS_MODEL_LEN,
        Reason.PREFILL_TOKEN_BUDGET,
        Reason.WAITING_FOR_SEQS,
        Reason.WAITING_FOR_KV,
        Reason.DECODE,
    ]
    assert explained.needed.tolist() == [901, 0, 1, 0, 0]


def test_an_executor_without_requests_gets_an_empty_plan() -> None:
    plan = plan_executor(executor_of(), FIFO)
    assert tokens(plan) == {}
    assert plan.shortfall is None
    assert plan.predicted_time_us == 0


def test_a_prompt_without_tokens_waits_for_these_and_not_for_the_block_that_they_would_need() -> None:
    begun = {"num_prompt_tokens": 100, "num_output_tokens": 0, "num_computed_tokens": 16, "num_blocks": 1}
    state = executor_of(running(1, **begun), running(2, **begun), max_num_batched_tokens=64)
    explained = explain_executor(state, plan_executor(state, FIFO), FIFO)
    assert explained.reason.tolist() == [Reason.PREFILL_TOKEN_BUDGET, Reason.WAITING_FOR_TOKEN_BUDGET]
    in_order = Policy(ordering=Ordering.SHORTEST_PREFILL_FIRST, prefill_sharing=PrefillSharing.IN_ORDER)
    state = executor_of(running(1, **begun), waiting(2, num_prompt_tokens=64), max_num_batched_tokens=64)
    explained = explain_executor(state, plan_executor(state, in_order), in_order)
    assert explained.reason.tolist() == [Reason.WAITING_FOR_TOKEN_BUDGET, Reason.PREFILL]
    never = Policy(admission=Admission.RESERVE, preemption=Preemption.NEVER)
    state = executor_of(running(1, **begun), num_free_blocks=0)
    explained = explain_executor(state, plan_executor(state, never), never)
    assert explained.reason.tolist() == [Reason.WAITING_FOR_BLOCKS]
