"""Cases 2, 6, 14 to 17, 20 to 22, 24, 36 to 38 and 40 of the product's case list, on the engine.

The scheduler is the real one, the plans go through all conversions, and the device stores tokens (token_runner.py), so
that a wrong block or a lost copy is a wrong answer. The books are checked after every step.
"""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np
import pytest
import torch

from executor_service.engine.books import Status
from executor_service.engine.plan import EvictMode, Plan, PlanSource
from executor_service.engine.planning import Overlap
from executor_service.engine.request import EndCause, FinishReason
from executor_service.engine.snapshot import Snapshot
from scheduler_service.core.policy import Policy
from support.engine import EngineUnderTest, engine_on_model, engine_on_tokens, limits_of
from support.planners import RECOMPUTE, SWAP, Alteration, EvictAtLength, LocalPlanner, evicting
from support.tiny_models import tiny_model
from support.token_runner import BlockIds, TokenCache, TokenRunner, true_tokens


def prompt_of(length: int, seed: int = 0) -> list[int]:
    tokens: list[int] = np.random.default_rng(seed).integers(0, 200, length).tolist()
    return tokens


def tokens_per_pass(served: EngineUnderTest, request_id: int) -> list[int]:
    """How many tokens each plan ran of a request, from the first pass that had any."""
    assert isinstance(served.planner, LocalPlanner)
    counts = [
        dict(zip(plan.scheduled.tolist(), plan.num_tokens.tolist(), strict=True)).get(request_id, 0)
        for plan in served.planner.plans
    ]
    return counts[next(i for i, count in enumerate(counts) if count) :]


def assert_right(served: EngineUnderTest, request_id: int, prompt: list[int], new: int) -> None:
    assert served.tokens(request_id) == true_tokens(prompt, new)
    assert served.finish(request_id).finish_reason is FinishReason.LENGTH
    assert served.finish(request_id).usage.num_output_tokens == new


def at_iteration(iteration: int, alter: Alteration) -> Alteration:
    return lambda snapshot, plan: alter(snapshot, plan) if snapshot.iteration == iteration else plan


def test_case_1_what_can_never_fit_is_refused_in_the_first_iteration_and_the_next_one_is_served() -> None:
    served = engine_on_tokens(limits_of())
    too_long = served.submit(prompt_of(200), 8)
    fits = served.submit(prompt_of(20), 4)
    served.step()
    end = served.end(too_long)
    assert end.cause is EndCause.REJECTED
    assert end.detail == "REJECTED_EXCEEDS_BLOCKS: needs 13, there are 8"
    served.run()
    assert_right(served, fits, prompt_of(20), 4)


def test_case_2_an_answer_that_fills_the_cache_ends_and_the_next_one_is_served() -> None:
    served = engine_on_tokens(limits_of())
    fills = served.submit(prompt_of(100), 29)
    too_long = served.submit(prompt_of(100), 100)
    small = served.submit(prompt_of(20), 4)
    served.run()
    assert_right(served, fills, prompt_of(100), 29)
    assert served.finish(fills).usage.num_preemptions == 0
    assert served.end(too_long).cause is EndCause.REJECTED
    assert_right(served, small, prompt_of(20), 4)


@pytest.mark.parametrize("limits", [{"max_num_seqs": 2}, {"max_num_batched_tokens": 2}, {"num_blocks": 2}])
def test_case_6_nothing_left_admits_nobody_until_somebody_ends(limits: dict[str, int]) -> None:
    served = engine_on_tokens(limits_of(**limits), planner=LocalPlanner(replace(RECOMPUTE, watermark=0.0)))
    first, second = served.submit(prompt_of(1), 6), served.submit(prompt_of(1), 9)
    served.step_until_tokens(second, 1)
    third = served.submit(prompt_of(1), 3)
    served.step()
    while first in served.books:
        assert served.status(third) is Status.WAITING
        assert served.step()
    served.step()
    assert served.status(third) is Status.RUNNING
    served.run()
    for request_id, new in ((first, 6), (second, 9), (third, 3)):
        assert_right(served, request_id, prompt_of(1), new)


def test_case_14_nobody_starts_on_a_first_chunk_that_fits() -> None:
    served = engine_on_tokens(limits_of(max_num_batched_tokens=32))
    running = [served.submit(prompt_of(33, seed), 16) for seed in (1, 2)]
    for request_id in running:
        served.step_until_tokens(request_id, 4)
    late = served.submit(prompt_of(96), 4)
    while running[1] in served.books:
        before = [len(served.tokens(request_id)) for request_id in running if request_id in served.books]
        together = running[0] in served.books
        served.step()
        if together:
            assert served.status(late) is Status.WAITING
            assert [len(served.tokens(id)) for id in running] == [count + 1 for count in before]
    served.run()
    assert served.finish(late).usage.num_preemptions == 0
    for seed, request_id in zip((1, 2), running, strict=True):
        assert_right(served, request_id, prompt_of(33, seed), 16)
    assert_right(served, late, prompt_of(96), 4)


@pytest.mark.parametrize("policy", [SWAP, RECOMPUTE])
def test_case_15_one_of_two_makes_room_and_the_other_goes_on_in_the_same_pass(policy: Policy) -> None:
    """Both hold two full blocks of four when they have 32 tokens stored."""
    planner = LocalPlanner(replace(policy, watermark=0.0))
    served = engine_on_tokens(limits_of(num_blocks=4, num_swap_blocks=4), planner=planner)
    first, second = served.submit(prompt_of(30, 1), 20), served.submit(prompt_of(30, 2), 20)
    served.step_until_tokens(second, 3)
    assert served.books.block_pool.num_free == 0
    served.step()
    assert served.status(first) is Status.RUNNING
    assert len(served.tokens(first)) == 4
    assert served.status(second) in (Status.SWAPPED, Status.WAITING)
    served.run()
    assert_right(served, first, prompt_of(30, 1), 20)
    assert_right(served, second, prompt_of(30, 2), 20)
    assert served.finish(first).usage.num_preemptions == 0
    assert served.finish(second).usage.num_preemptions == 1


@pytest.mark.parametrize("overlap", Overlap)
@pytest.mark.parametrize("policy", [SWAP, RECOMPUTE])
def test_case_16_all_complete_under_heavy_overload(policy: Policy, overlap: Overlap) -> None:
    limits = limits_of(num_blocks=12, num_swap_blocks=12, max_num_seqs=6)
    served = engine_on_tokens(limits, planner=LocalPlanner(policy), overlap=overlap)
    ids = [served.submit(prompt_of(32, seed), 64) for seed in range(6)]
    served.run()
    for seed, request_id in enumerate(ids):
        assert_right(served, request_id, prompt_of(32, seed), 64)
    preemptions = [served.finish(request_id).usage.num_preemptions for request_id in ids]
    assert preemptions[0] == 0
    assert 0 < max(preemptions) <= 4


@pytest.mark.parametrize("length", [15, 16, 17, 32])
def test_case_17_an_eviction_at_a_block_boundary_loses_no_token(length: int) -> None:
    evict = EvictAtLength(request_id=1, length=length, mode=EvictMode.RECOMPUTE)
    served = engine_on_tokens(limits_of(), planner=LocalPlanner(RECOMPUTE, evict))
    served.submit(prompt_of(10), 40)
    while not evict.done:
        served.step()
    assert served.status(1) is Status.WAITING
    assert served.num_held_blocks == 0
    while len(served.books):
        served.step()
        if 1 in served.books:
            num_stored = 10 + len(served.tokens(1)) - 1
            assert served.num_held_blocks == -(-num_stored // 16)
    assert_right(served, 1, prompt_of(10), 40)


@pytest.mark.parametrize("num_swap_blocks", [0, 2])
def test_case_20_where_swap_has_no_room_the_victim_is_computed_again(num_swap_blocks: int) -> None:
    served = engine_on_tokens(limits_of(num_swap_blocks=num_swap_blocks), planner=LocalPlanner(SWAP))
    ids = [served.submit(prompt_of(40, seed), 40) for seed in range(2)]
    served.run()
    assert served.engine.counters.num_evicted_swap == 0
    assert served.engine.counters.num_evicted_recompute > 0
    for seed, request_id in enumerate(ids):
        assert_right(served, request_id, prompt_of(40, seed), 40)


@pytest.mark.parametrize("num_swap_blocks", [0, 2])
def test_case_20_a_plan_that_swaps_without_room_is_refused_by_name_and_hurts_nobody(num_swap_blocks: int) -> None:
    planner = LocalPlanner(RECOMPUTE, EvictAtLength(request_id=2, length=43, mode=EvictMode.SWAP))
    served = engine_on_tokens(limits_of(num_swap_blocks=num_swap_blocks), planner=planner)
    ids = [served.submit(prompt_of(40, seed), 8) for seed in range(2)]
    served.run()
    (refusal,) = served.heard.refusals
    assert refusal == f"swaps requests [2] out to 3 swap blocks, {num_swap_blocks} are free"
    assert served.engine.counters.num_refused_plans == 1
    assert served.engine.counters.num_evicted_swap == 0
    for seed, request_id in enumerate(ids):
        assert_right(served, request_id, prompt_of(40, seed), 8)


def test_case_21_work_goes_on_while_swap_is_in_use() -> None:
    served = engine_on_tokens(limits_of(num_swap_blocks=8), planner=LocalPlanner(SWAP))
    ids = [served.submit(prompt_of(32, seed), 40) for seed in range(3)]
    served.run()
    counters = served.engine.counters
    assert counters.num_evicted_swap > 0
    assert counters.num_evicted_recompute == 0
    for seed, request_id in enumerate(ids):
        assert_right(served, request_id, prompt_of(32, seed), 40)


def test_case_22_one_that_was_swapped_comes_back_although_an_earlier_one_waits() -> None:
    """A needs six blocks and never ran; B holds five, in swap space, and comes before it."""
    planner = LocalPlanner(SWAP, EvictAtLength(request_id=2, length=72, mode=EvictMode.SWAP))
    served = engine_on_tokens(limits_of(num_swap_blocks=8, max_num_batched_tokens=128), planner=planner)
    head = served.submit(prompt_of(40), 12)
    loaded = served.submit(prompt_of(70, 1), 9)
    served.step_until_tokens(loaded, 2)
    blocked = served.submit(prompt_of(90, 2), 4, arrival_time_us=0)
    served.step()
    assert served.status(loaded) is Status.SWAPPED
    served.step()
    assert served.status(loaded) is Status.RUNNING
    assert served.status(blocked) is Status.WAITING
    served.run()
    assert served.finish(blocked).usage.num_preemptions == 0
    assert_right(served, head, prompt_of(40), 12)
    assert_right(served, loaded, prompt_of(70, 1), 9)
    assert_right(served, blocked, prompt_of(90, 2), 4)


class SlowCopies:
    """A cache whose copies take a while, and are told of."""

    def __init__(self, cache: TokenCache) -> None:
        self._cache = cache
        self.copied_out: list[list[int]] = []

    def copy_out(self, device_blocks: BlockIds, swap_blocks: BlockIds) -> None:
        time.sleep(0.02)
        self.copied_out.append(device_blocks.tolist())
        self._cache.copy_out(device_blocks, swap_blocks)

    def copy_in(self, swap_blocks: BlockIds, device_blocks: BlockIds) -> None:
        time.sleep(0.02)
        self._cache.copy_in(swap_blocks, device_blocks)

    def copy_within(self, source: BlockIds, target: BlockIds) -> None:
        time.sleep(0.02)
        self._cache.copy_within(source, target)


def test_case_24_blocks_are_copied_out_before_their_next_holder_writes_them() -> None:
    """In one plan A is swapped out of its three blocks and B is admitted into the very same."""
    limits = limits_of(num_blocks=3, num_swap_blocks=3)

    def swap_a_for_b(snapshot: Snapshot, plan: Plan) -> Plan:
        evicted = evicting(plan, 1, EvictMode.SWAP)
        b = np.array([2], dtype=np.int64)
        return replace(evicted, scheduled=b, num_tokens=np.array([48], dtype=np.int32), admit=b)

    planner = LocalPlanner(RECOMPUTE, at_iteration(4, swap_a_for_b))
    cache = TokenCache(num_blocks=3, num_swap_blocks=3, block_size=16)
    copies = SlowCopies(cache)
    served = EngineUnderTest(limits=limits, runner=TokenRunner(cache), kv=copies, planner=planner)
    a, b = served.submit(prompt_of(36, 1), 12), served.submit(prompt_of(48, 2), 1)
    for _ in range(3):
        served.step()
    assert served.status(b) is Status.WAITING
    held = served.books.block_tables[served.books.rows_of([a])[0]].tolist()[:3]
    served.step()
    assert copies.copied_out == [held]
    assert sorted(held) == [0, 1, 2]
    assert served.status(a) is Status.SWAPPED
    assert_right(served, b, prompt_of(48, 2), 1)
    served.run()
    assert_right(served, a, prompt_of(36, 1), 12)


def test_case_36_a_huge_prompt_delays_the_decodes_of_others_by_no_pass() -> None:
    served = engine_on_tokens(limits_of(max_num_batched_tokens=32, num_blocks=32))
    decoding = [served.submit(prompt_of(8, seed), 20) for seed in (1, 2)]
    for request_id in decoding:
        served.step_until_tokens(request_id, 2)
    huge = served.submit(prompt_of(200), 4)
    num_passes = len(served.heard.passes)
    served.step_until_tokens(huge, 1)
    prefills = served.heard.passes[num_passes:]
    assert [record.num_prefill_tokens for record in prefills] == [30] * 6 + [20]
    assert all(record.num_decode_tokens == 2 for record in prefills)
    served.run()
    assert_right(served, huge, prompt_of(200), 4)


def test_case_37_more_decodes_than_the_budget_take_turns() -> None:
    served = engine_on_tokens(limits_of(max_num_batched_tokens=4, num_blocks=12))
    ids = [served.submit(prompt_of(1, seed), 20) for seed in range(6)]
    for request_id in ids:
        served.step_until_tokens(request_id, 1)
    while all(request_id in served.books for request_id in ids):
        before = [len(served.tokens(request_id)) for request_id in ids]
        assert served.step()
        assert served.step()
        assert all(len(served.tokens(id)) > count for id, count in zip(ids, before, strict=True))
    served.run()
    for seed, request_id in enumerate(ids):
        assert_right(served, request_id, prompt_of(1, seed), 20)


def forty_tokens(snapshot: Snapshot, plan: Plan) -> Plan:
    return Plan(
        iteration=plan.iteration, scheduled=np.array([1, 2, 4]), num_tokens=np.array([1, 1, 38], dtype=np.int32)
    )


def evicts_a_swapped_request(snapshot: Snapshot, plan: Plan) -> Plan:
    return replace(evicting(plan, 3, EvictMode.RECOMPUTE), resume=np.empty(0, dtype=np.int64))


def names_an_unknown_request(snapshot: Snapshot, plan: Plan) -> Plan:
    return replace(
        plan, scheduled=np.append(plan.scheduled, 99), num_tokens=np.append(plan.num_tokens, 1).astype(np.int32)
    )


def is_stale(snapshot: Snapshot, plan: Plan) -> Plan:
    return replace(plan, iteration=plan.iteration - 1)


def decides_twice(snapshot: Snapshot, plan: Plan) -> Plan:
    return replace(plan, evict=plan.scheduled[:1], evict_modes=np.array([EvictMode.RECOMPUTE], dtype=np.int32))


@pytest.mark.parametrize("overlap", Overlap)
@pytest.mark.parametrize(
    ("spoil", "refusal"),
    [
        (forty_tokens, "runs 40 tokens, the budget is 32"),
        (evicts_a_swapped_request, "evicts request 3, which is SWAPPED, not RUNNING"),
        (names_an_unknown_request, "names unknown requests [99] in scheduled"),
        (is_stale, "made for iteration 6, this is 7"),
        (decides_twice, "decides twice on requests [1]"),
    ],
)
def test_case_38_a_bad_plan_is_refused_whole_and_the_next_pass_works(
    spoil: Alteration, refusal: str, overlap: Overlap
) -> None:
    """Requests 1 and 2 decode, 3 is swapped out and 4 is half through its prompt when the bad plan comes."""
    swap_out = at_iteration(6, lambda _, plan: evicting(plan, 3, EvictMode.SWAP))
    limits = limits_of(max_num_batched_tokens=32, num_blocks=24, num_swap_blocks=4)
    planner = LocalPlanner(RECOMPUTE, swap_out, at_iteration(7, spoil))
    served = engine_on_tokens(limits, planner=planner, overlap=overlap)
    requests = {1: (8, 30), 2: (9, 30), 3: (15, 30), 4: (220, 3)}
    for request_id, (length, new) in requests.items():
        served.submit(prompt_of(length, request_id), new)
    for _ in range(6):
        served.step()
    assert [served.status(request_id) for request_id in (1, 2, 3, 4)] == [
        Status.RUNNING,
        Status.RUNNING,
        Status.SWAPPED,
        Status.RUNNING,
    ]
    served.step()
    assert served.heard.refusals == [refusal]
    assert served.heard.passes[-1].plan_source is PlanSource.SAFE
    assert served.heard.passes[-1].predicted_us == 0
    served.run()
    assert len(served.heard.refusals) == served.engine.counters.num_refused_plans == 1
    for request_id, (length, new) in requests.items():
        assert_right(served, request_id, prompt_of(length, request_id), new)


def test_case_38_the_tokens_of_every_pass_are_within_the_budget() -> None:
    limits = limits_of(max_num_batched_tokens=32, num_blocks=12, num_swap_blocks=8)
    served = engine_on_tokens(limits, planner=LocalPlanner(SWAP))
    for seed in range(6):
        served.submit(prompt_of(20 + 10 * seed, seed), 40)
    served.run()
    assert served.engine.counters.num_evicted_swap > 0
    assert max(record.num_prefill_tokens + record.num_decode_tokens for record in served.heard.passes) == 32
    assert served.engine.counters.num_refused_plans == 0


def test_case_40_logits_that_are_no_numbers_end_one_request_and_no_other() -> None:
    loaded = tiny_model("tiny-llama")
    poison = 299
    with torch.no_grad():
        loaded.model.model.embed_tokens.weight[poison] = float("nan")
    prompt = prompt_of(8)
    alone = engine_on_model(loaded, limits_of())
    alone.submit(prompt, 8)
    alone.run()
    served = engine_on_model(loaded, limits_of())
    healthy = served.submit(prompt, 8)
    faulty = served.submit([*prompt[:7], poison], 8)
    served.step()
    end = served.end(faulty)
    assert end.cause is EndCause.INVALID_LOGITS
    assert faulty not in served.books
    served.run()
    assert served.tokens(healthy) == alone.tokens(1)
    later = served.submit(prompt, 8)
    served.run()
    assert served.tokens(later) == alone.tokens(1)
