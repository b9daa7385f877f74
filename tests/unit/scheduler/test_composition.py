"""Which phases share a pass, and how the tokens of a pass are shared out."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from scheduler_service.core.chunking import equal_shares
from scheduler_service.core.executor_plan import ExecutorPlan, Reason
from scheduler_service.core.explain import explain_executor
from scheduler_service.core.plan import plan_executor
from scheduler_service.core.policy import Admission, BatchComposition, Policy, Preemption, PrefillSharing
from scheduler_service.core.state import ExecutorLimits
from support.arithmetic_executor import ArithmeticExecutor
from support.states import LATENCY, Row, executor_of, running, swapped, waiting


def tokens(plan: ExecutorPlan) -> dict[int, int]:
    return dict(zip(plan.scheduled.id.tolist(), plan.scheduled.num_tokens.tolist(), strict=True))


def planned(composition: BatchComposition, *rows: Row, **settings: int) -> dict[int, int]:
    return tokens(plan_executor(executor_of(*rows, **settings), Policy(batch_composition=composition)))


def prefilling(id: int, num_lacking: int = 40, **columns: int) -> Row:
    return running(
        id, num_prompt_tokens=16 + num_lacking, num_output_tokens=0, num_computed_tokens=16, num_blocks=1, **columns
    )


@pytest.mark.parametrize(
    ("composition", "expected"),
    [
        (BatchComposition.MIXED, {1: 1, 2: 1, 3: 40, 4: 6}),
        (BatchComposition.PREFILL_FIRST, {3: 40, 4: 8}),
        (BatchComposition.DECODE_FIRST, {1: 1, 2: 1}),
        (BatchComposition.SEPARATE, {3: 40, 4: 8}),
    ],
)
def test_each_composition_on_one_state(composition: BatchComposition, expected: dict[int, int]) -> None:
    rows = [running(1), running(2), prefilling(3), waiting(4)]
    assert planned(composition, *rows, max_num_batched_tokens=48) == expected


def test_prefill_first_gives_decodes_what_is_left_the_least_recently_run_first() -> None:
    rows = [running(1, last_run_iteration=9), running(2, last_run_iteration=8), waiting(3)]
    assert planned(BatchComposition.PREFILL_FIRST, *rows, max_num_batched_tokens=17) == {2: 1, 3: 16}


def test_decode_first_prefills_where_nobody_decodes() -> None:
    assert planned(BatchComposition.DECODE_FIRST, prefilling(1), waiting(2)) == {1: 40, 2: 16}


def test_one_phase_goes_by_the_head_of_the_queue_where_those_that_run_leave_it_open() -> None:
    back = swapped(2, num_prompt_tokens=20)
    for composition in (BatchComposition.SEPARATE, BatchComposition.DECODE_FIRST):
        assert planned(composition, back, waiting(3), num_swap_blocks=4) == {2: 1}
    assert planned(BatchComposition.SEPARATE, running(1), back, waiting(3), num_swap_blocks=4) == {1: 1, 2: 1}
    assert planned(BatchComposition.DECODE_FIRST, prefilling(1), back, num_swap_blocks=4) == {2: 1}


def test_who_waits_for_the_other_phase_is_told_so() -> None:
    state = executor_of(running(1), prefilling(2), waiting(3))
    for composition, reasons in (
        (BatchComposition.SEPARATE, [Reason.WAITING_FOR_PHASE, Reason.PREFILL, Reason.PREFILL]),
        (BatchComposition.DECODE_FIRST, [Reason.DECODE, Reason.WAITING_FOR_PHASE, Reason.WAITING_FOR_PHASE]),
    ):
        policy = Policy(batch_composition=composition)
        assert explain_executor(state, plan_executor(state, policy), policy).reason.tolist() == reasons


@pytest.mark.parametrize("composition", list(BatchComposition))
def test_a_static_workload_ends_under_each_composition(composition: BatchComposition) -> None:
    limits = ExecutorLimits(max_num_batched_tokens=16, max_num_seqs=4, block_size=16, num_blocks=12, max_model_len=128)
    executor = ArithmeticExecutor(limits=limits, policy=Policy(batch_composition=composition))
    for id in range(1, 9):
        executor.submit(id, prompt=30, new=12)
    executor.run()
    assert len(executor.finished) == 8


def test_case_35_decodes_have_a_token_in_every_pass_and_prompts_advance() -> None:
    limits = ExecutorLimits(max_num_batched_tokens=32, max_num_seqs=8, block_size=16, num_blocks=64, max_model_len=256)
    executor = ArithmeticExecutor(limits=limits)
    for id in (1, 2):
        executor.submit_decoding(id, prompt=16, new=100, num_stored=16)
    for iteration in range(90):
        if iteration % 2 == 0:
            executor.submit(10 + iteration, prompt=64, new=1)
        plan = executor.step()
        assert {1, 2} <= set(plan.scheduled.id.tolist())
        assert plan.composition.num_prefill_tokens == 30


@pytest.mark.parametrize(
    ("want", "budget", "taken"),
    [
        ([10, 10, 10], 9, [3, 3, 3]),
        ([10, 10, 10], 11, [4, 4, 3]),
        ([2, 10, 10], 12, [2, 5, 5]),
        ([10, 2, 0, 7], 10, [4, 2, 0, 4]),
        ([5, 5], 1, [1, 0]),
        ([5, 5], 0, [0, 0]),
    ],
)
def test_equal_shares(want: list[int], budget: int, taken: list[int]) -> None:
    assert equal_shares(np.array(want), budget).tolist() == taken


def test_equal_sharing_lets_all_prompts_advance() -> None:
    rows = [prefilling(1, 80), prefilling(2, 4), prefilling(3, 80)]
    state = executor_of(*rows, max_num_batched_tokens=24)
    assert tokens(plan_executor(state, Policy())) == {1: 24}
    assert tokens(plan_executor(state, Policy(prefill_sharing=PrefillSharing.EQUAL))) == {1: 10, 2: 4, 3: 10}


@pytest.mark.parametrize(
    ("composition", "num_decodes"),
    [
        (BatchComposition.MIXED, 2),
        (BatchComposition.PREFILL_FIRST, 0),
        (BatchComposition.DECODE_FIRST, 2),
        (BatchComposition.SEPARATE, 0),
    ],
)
def test_equal_sharing_lets_in_who_waits_beside_a_chunk_that_fills_the_pass(
    composition: BatchComposition, num_decodes: int
) -> None:
    """As long as tokens are left once each has a block of 16: for three of the four that wait beside the first."""
    rows = [running(1), running(2), prefilling(3, 200), *(waiting(id, num_prompt_tokens=90) for id in (4, 5, 6, 7))]
    state = executor_of(*rows, max_num_batched_tokens=60)
    policy = Policy(prefill_sharing=PrefillSharing.EQUAL, batch_composition=composition)
    share = {id: num_tokens for id, num_tokens in tokens(plan_executor(state, policy)).items() if id > 2}
    assert sum(share.values()) == (0 if composition is BatchComposition.DECODE_FIRST else 60 - num_decodes)
    if composition is not BatchComposition.DECODE_FIRST:
        assert list(share) == [3, 4, 5, 6]
        assert max(share.values()) - min(share.values()) <= 1
    first_come = plan_executor(state, replace(policy, prefill_sharing=PrefillSharing.FIRST_COME))
    assert not tokens(first_come).keys() & {4, 5, 6, 7}


@pytest.mark.parametrize(
    ("target_us", "num_tokens"),
    [(1390, 35), (1050, 16), (1, 16), (10**9, 64 - 2)],
)
def test_a_target_for_the_inter_token_latency_bounds_the_prefill(target_us: int, num_tokens: int) -> None:
    # A pass takes 1000 us, each decode 20, a prefill token 10; the KV that is read is free of charge here.
    latency = replace(LATENCY, kv_token_us=0.0)
    rows = [running(1), running(2), waiting(3, num_prompt_tokens=200)]
    state = executor_of(*rows, latency=latency)
    assert tokens(plan_executor(state, Policy(target_inter_token_latency_us=target_us)))[3] == num_tokens
    alone = executor_of(rows[2], latency=latency)
    assert tokens(plan_executor(alone, Policy(target_inter_token_latency_us=target_us))) == {3: 64}


@pytest.mark.parametrize(
    ("slowdown", "target_us", "num_tokens"),
    [
        (1.5, None, 52),
        (1.25, None, 26),
        (1.0, None, 16),  # a block, so that prompts go on
        (0.5, None, 16),
        (1e6, None, 64 - 2),
        (1.5, 1390, 35),  # the target, as long as the decodes take less and the factor gives no more
        (1.5, 1040, 52),
        (1.5, 1, 52),
        (1.5, 2500, 64 - 2),
    ],
)
def test_prefills_slow_decodes_down_by_a_factor_at_most(
    slowdown: float, target_us: int | None, num_tokens: int
) -> None:
    # The two decodes take 1040 us alone, a prefill token 10.
    latency = replace(LATENCY, kv_token_us=0.0)
    rows = [running(1), running(2), waiting(3, num_prompt_tokens=200)]
    policy = Policy(max_inter_token_slowdown=slowdown, target_inter_token_latency_us=target_us)
    assert tokens(plan_executor(executor_of(*rows, latency=latency), policy))[3] == num_tokens
    prompt_that_runs = executor_of(running(1), running(2), prefilling(3, 200), latency=latency)
    assert tokens(plan_executor(prompt_that_runs, policy))[3] == num_tokens
    assert tokens(plan_executor(executor_of(rows[2], latency=latency), policy)) == {3: 64}


@pytest.mark.parametrize(
    ("slowdown", "num_tokens"),
    [(1.5, 52), (2.0, 104), (2.5, 156), (3.0, 208), (4.0, 312), (9.0, 312)],
)
def test_each_prompt_gets_as_long_as_the_decodes_up_to_the_bound(slowdown: float, num_tokens: int) -> None:
    # The two decodes take 1040 us alone, a prefill token 10; one prompt runs, two wait, the last of them for a slot.
    latency = replace(LATENCY, kv_token_us=0.0)
    prompts = [prefilling(3, 500), waiting(4, num_prompt_tokens=500), waiting(5, num_prompt_tokens=500)]
    limits = {"max_num_batched_tokens": 2048, "max_num_seqs": 4, "num_blocks": 200}
    state = executor_of(running(1), running(2), *prompts, latency=latency, **limits)
    of_each = tokens(plan_executor(state, Policy(max_inter_token_slowdown=slowdown)))
    assert sum(count for id, count in of_each.items() if id > 2) == num_tokens


def prefill_tokens_beside_two_decodes(target_us: int | None) -> int:
    """Where these take 1040 us alone, a prefill token 10; one prompt runs, two wait, the last of them for a slot."""
    latency = replace(LATENCY, kv_token_us=0.0)
    prompts = [prefilling(3, 500), waiting(4, num_prompt_tokens=500), waiting(5, num_prompt_tokens=500)]
    limits = {"max_num_batched_tokens": 2048, "max_num_seqs": 4, "num_blocks": 200}
    state = executor_of(running(1), running(2), *prompts, latency=latency, **limits)
    policy = Policy(max_inter_token_slowdown=4.0, target_inter_token_latency_us=target_us)
    of_each = tokens(plan_executor(state, policy))
    return sum(count for id, count in of_each.items() if id > 2)


@pytest.mark.parametrize(
    ("target_us", "num_tokens"),
    [
        (1, 312),
        (1040, 312),  # the decodes take all of it: four times as long
        (1300, 228),  # four fifths: 3.2 times
        (1560, 173),
        (2079, 104),
        (2080, 104),  # half: as long as the target
        (2600, 156),
        (4000, 296),
        (9000, 675 - 104),
        (None, 312),
    ],
)
def test_the_target_bounds_what_all_prompts_get_and_the_factor_by_degrees_where_decodes_are_slow(
    target_us: int | None, num_tokens: int
) -> None:
    assert prefill_tokens_beside_two_decodes(target_us) == num_tokens


def test_a_target_that_decodes_miss_by_a_little_bounds_passes_by_a_little_more() -> None:
    """Whatever part of the target the decodes take: a model of what they cost is never quite right."""
    of_targets = [1040 + prefill_tokens_beside_two_decodes(target_us) * 10 for target_us in range(800, 9000, 20)]
    steps = [abs(after / before - 1) for before, after in pairwise(of_targets)]
    assert max(steps) <= 20 / 800 + 2 * 10 / 1040


def test_figures_that_no_machine_has_bound_prefills_all_the_same() -> None:
    latency = replace(LATENCY, decode_request_us=1e308, kv_token_us=1e308)
    state = executor_of(running(1), running(2), waiting(3, num_prompt_tokens=200), latency=latency)
    assert tokens(plan_executor(state, Policy(max_inter_token_slowdown=1.0)))[3] == 16
    assert tokens(plan_executor(state, Policy(max_inter_token_slowdown=2.0)))[3] == 64 - 2


def test_what_a_prefill_has_no_blocks_for_goes_to_the_decodes() -> None:
    # No block is free and nobody may leave: of 4 tokens the prompt has room for one, and the decodes have the others.
    policy = Policy(
        batch_composition=BatchComposition.PREFILL_FIRST, admission=Admission.RESERVE, preemption=Preemption.NEVER
    )
    prefills = running(1, num_prompt_tokens=40, num_output_tokens=0, num_computed_tokens=15)
    decodes = [running(id, num_prompt_tokens=9, num_draft_tokens=1) for id in (2, 3)]
    state = executor_of(prefills, *decodes, num_blocks=3, max_num_batched_tokens=4)
    assert tokens(plan_executor(state, policy)) == {1: 1, 2: 2, 3: 1}
