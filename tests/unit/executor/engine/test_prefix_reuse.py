"""What was computed before is not computed again, and no answer is another for it. Cases 19 and 25 to 29.

The harness checks after every step that each block is accounted for and that no pass wrote a block of others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from executor_service.engine.books import Status
from executor_service.engine.plan import EvictMode
from executor_service.engine.planning import Overlap
from executor_service.engine.request import EndCause
from executor_service.kv.prefix_cache import PrefixScope
from executor_service.model.batch import RaggedBatch
from executor_service.model.runner import ExecuteResult
from executor_service.sampling.sampler import NOT_SAMPLED, SamplingBatch
from scheduler_service.core.policy import Eviction, Ordering, Policy, Preemption
from support.engine import EngineUnderTest, engine_on_model, engine_on_tokens, limits_of
from support.planners import RECOMPUTE, SWAP, EvictAtLength, LocalPlanner, Outage
from support.tiny_models import tiny_model
from support.token_runner import TokenCache, TokenRunner, true_tokens


def text_of(length: int, seed: int = 0) -> list[int]:
    """Texts of one seed begin alike."""
    tokens: list[int] = np.random.default_rng(seed).integers(0, 200, 1000).tolist()
    return tokens[:length]


def prefills(served: EngineUnderTest) -> list[int]:
    """Prompt tokens of each pass that had any."""
    return [record.num_prefill_tokens for record in served.heard.passes if record.num_prefill_tokens]


def num_cached(served: EngineUnderTest, request_id: int) -> int:
    return served.finish(request_id).usage.num_cached_tokens


def ask(served: EngineUnderTest, prompt: Sequence[int], new: int = 4, **fields: object) -> int:
    """Submit a request and run until it has ended. Returns its id."""
    request_id = served.submit(prompt, new, **fields)
    served.run()
    return request_id


# Case 25


@pytest.mark.parametrize(("length", "cached"), [(32, 16), (16, 0), (33, 32), (40, 32), (15, 0), (1, 0)])
def test_case_25_of_a_prompt_that_is_cached_the_last_block_is_computed(length: int, cached: int) -> None:
    served = engine_on_tokens(limits_of())
    first, second = (ask(served, text_of(length)) for _ in range(2))
    assert prefills(served) == [length, length - cached]
    assert (num_cached(served, first), num_cached(served, second)) == (0, cached)
    assert served.tokens(first) == served.tokens(second) == true_tokens(text_of(length), 4)


@pytest.mark.parametrize("length", [16, 32])
def test_case_25_two_at_the_same_time_share_and_neither_writes_what_the_other_reads(length: int) -> None:
    served = engine_on_tokens(limits_of())
    ask(served, text_of(length))
    ids = [served.submit(text_of(length), 20) for _ in range(2)]
    served.step_until_tokens(ids[1], 2)
    tables = served.books.block_tables[served.books.rows_of(ids)]
    num_shared = (length - 1) // 16
    assert tables[0, :num_shared].tolist() == tables[1, :num_shared].tolist()
    assert tables[0, num_shared] != tables[1, num_shared]
    served.run()
    assert all(served.tokens(request_id) == true_tokens(text_of(length), 20) for request_id in ids)


# Case 26


@pytest.mark.parametrize("overlap", Overlap)
def test_case_26_an_evicted_request_finds_its_own_blocks(overlap: Overlap) -> None:
    """Evicted with 48 prompt and 4 output tokens, of which the first 48 fill blocks."""
    evict = EvictAtLength(request_id=1, length=52, mode=EvictMode.RECOMPUTE)
    served = engine_on_tokens(limits_of(), planner=LocalPlanner(RECOMPUTE, evict), overlap=overlap)
    served.submit(text_of(48), 20)
    served.step()
    while len(served.books):  # the plan that evicts it runs nothing
        served.step()
    assert evict.done
    assert served.tokens(1) == true_tokens(text_of(48), 20)
    assert prefills(served) == [48, 4]
    assert num_cached(served, 1) == 0, "of its own blocks, at its second coming"
    assert served.engine.counters.num_prefix_hit_tokens == 48


# Case 27


def test_case_27_one_whose_prefix_is_cached_waits_for_the_blocks_that_are_truly_free() -> None:
    """8 blocks, 3 in use; W needs six, of which two are cached among the five free ones."""
    served = engine_on_tokens(
        limits_of(max_num_batched_tokens=128), planner=LocalPlanner(replace(RECOMPUTE, watermark=0.0))
    )
    ask(served, text_of(33), 1)
    running = served.submit(text_of(40, seed=1), 8)
    served.step_until_tokens(running, 1)
    waits = served.submit(text_of(96), 1)
    served.step()
    assert served.status(waits) is Status.WAITING
    assert served.books.block_pool.num_free == 5
    served.run()
    assert num_cached(served, waits) == 32
    assert served.tokens(waits) == true_tokens(text_of(96), 1)
    assert served.engine.counters.num_refused_plans == 0


# Case 28


def test_case_28_a_request_that_has_just_finished_is_no_victim() -> None:
    """Four blocks, none free. A has its last token when B, with 32 tokens stored, needs a third block."""
    served = engine_on_tokens(limits_of(num_blocks=4), planner=LocalPlanner(replace(RECOMPUTE, watermark=0.0)))
    b = served.submit(text_of(30, seed=1), 20)
    a = served.submit(text_of(30, seed=2), 3)
    served.run()
    for request_id, seed, new in ((a, 2, 3), (b, 1, 20)):
        assert served.finish(request_id).usage.num_preemptions == 0
        assert served.tokens(request_id) == true_tokens(text_of(30, seed), new)
    assert served.engine.counters.num_evicted_recompute == 0


# Case 29


def test_case_29_tenants_do_not_find_each_others_prompts() -> None:
    served = engine_on_tokens(limits_of())
    tenants = ("t1", "t2", "")
    first = [ask(served, text_of(33), 1, tenant=tenant) for tenant in tenants]
    again = [ask(served, text_of(33), 1, tenant=tenant) for tenant in tenants]
    assert [num_cached(served, request_id) for request_id in first] == [0, 0, 0]
    assert [num_cached(served, request_id) for request_id in again] == [32, 32, 32]


def test_in_the_shared_scope_tenants_find_each_others_prompts() -> None:
    served = engine_on_tokens(limits_of(), prefix_scope=PrefixScope.SHARED)
    ids = [ask(served, text_of(33), 1, tenant=tenant) for tenant in ("t1", "t2")]
    assert [num_cached(served, request_id) for request_id in ids] == [0, 32]


# What is reused


def test_the_next_turn_of_a_conversation_finds_the_answer_too() -> None:
    served = engine_on_tokens(limits_of(num_blocks=16))
    first = ask(served, text_of(20), 30)
    prompt = [*text_of(20), *served.tokens(first), 7, 8, 9]
    second = ask(served, prompt, 5)
    assert num_cached(served, second) == 48
    assert served.tokens(second) == true_tokens(prompt, 5)


def test_free_blocks_keep_their_text_until_they_are_needed() -> None:
    served = engine_on_tokens(limits_of())
    ask(served, text_of(49), 1)
    assert (served.books.block_pool.num_free, served.books.block_pool.num_kept) == (8, 3)
    assert num_cached(served, ask(served, text_of(65, seed=1), 1)) == 0
    assert num_cached(served, ask(served, text_of(49), 1)) == 48
    ask(served, text_of(110, seed=2), 1)
    assert num_cached(served, ask(served, text_of(49), 1)) < 48


def test_one_may_bypass_the_cache_and_others_find_what_it_computed() -> None:
    served = engine_on_tokens(limits_of())
    ids = [
        ask(served, text_of(33), 1),
        ask(served, text_of(33), 1, reuse_prefix=False),
        ask(served, [*text_of(32), 1], 1),
    ]
    assert [num_cached(served, request_id) for request_id in ids] == [0, 0, 32]
    counters = served.engine.counters
    assert (counters.num_prefix_query_tokens, counters.num_prefix_hit_tokens) == (66, 32)
    assert prefills(served) == [33, 33, 1]


def test_switched_off_nothing_is_kept_and_nothing_counted() -> None:
    served = engine_on_tokens(limits_of(), prefix_scope=PrefixScope.OFF)
    ids = [ask(served, text_of(33), 1) for _ in range(2)]
    assert [num_cached(served, request_id) for request_id in ids] == [0, 0]
    assert served.books.block_pool.num_kept == 0
    assert served.engine.counters.num_prefix_query_tokens == 0
    assert prefills(served) == [33, 33]


@pytest.mark.parametrize("overlap", Overlap)
def test_a_queue_of_one_beginning_computes_it_once(overlap: Overlap) -> None:
    """One runs at a time: each after the first computes its own question alone."""
    served = engine_on_tokens(limits_of(max_num_seqs=1), overlap=overlap)
    prompts = [[*text_of(64), 100 + i, 101 + i] for i in range(4)]
    ids = [served.submit(prompt, 2) for prompt in prompts]
    served.run()
    assert prefills(served) == [64, 2, 2, 2, 2]
    assert [served.tokens(request_id) for request_id in ids] == [true_tokens(prompt, 2) for prompt in prompts]
    assert served.engine.counters.num_refused_plans == 0


@pytest.mark.parametrize("overlap", Overlap)
def test_a_burst_of_one_beginning_computes_it_once_where_the_policy_holds_for_it(overlap: Overlap) -> None:
    policy = replace(RECOMPUTE, hold_for_shared_prefix=True)
    served = engine_on_tokens(limits_of(num_blocks=32, max_num_batched_tokens=512), planner=LocalPlanner(policy))
    prompts = [[*text_of(64), 100 + i, 101 + i] for i in range(4)]
    ids = [served.submit(prompt, 2) for prompt in prompts]
    served.run()
    assert prefills(served) == [66, 6]
    assert [num_cached(served, request_id) for request_id in ids] == [0, 64, 64, 64]
    assert [served.tokens(request_id) for request_id in ids] == [true_tokens(prompt, 2) for prompt in prompts]


# Sharers come and go


def two_sharers(**parts: object) -> tuple[EngineUnderTest, list[int], list[int]]:
    """Two run that share two blocks; with their ids and the blocks of the second."""
    served = engine_on_tokens(limits_of(num_blocks=16, num_swap_blocks=8), **parts)
    ask(served, text_of(33), 1)
    ids = [served.submit([*text_of(32), 50 + i], 40) for i in range(2)]
    served.step_until_tokens(ids[1], 3)
    assert served.num_held_blocks == 4
    (row,) = served.books.rows_of(ids[1:])
    return served, ids, served.books.block_tables[row, :3].tolist()


@pytest.mark.parametrize("mode", EvictMode)
def test_case_19_an_evicted_sharer_leaves_the_shared_blocks_to_the_other(mode: EvictMode) -> None:
    evict = EvictAtLength(request_id=3, length=36, mode=mode)
    served, ids, _ = two_sharers(planner=LocalPlanner(RECOMPUTE, evict))
    served.run()
    assert evict.done
    for i, request_id in enumerate(ids):
        assert served.tokens(request_id) == true_tokens([*text_of(32), 50 + i], 40)
    assert served.finish(ids[1]).usage.num_preemptions == 1
    assert (served.engine.counters.num_refused_plans, served.engine.counters.num_safe_plans) == (0, 0)


def test_what_was_copied_back_from_swap_space_is_found_again() -> None:
    """While A is in swap space B writes all blocks of the device."""
    evict = EvictAtLength(request_id=1, length=52, mode=EvictMode.SWAP)
    planner = LocalPlanner(replace(RECOMPUTE, watermark=0.0), evict)
    served = engine_on_tokens(limits_of(num_swap_blocks=8, max_num_batched_tokens=128), planner=planner)
    a = served.submit(text_of(48), 8)
    served.step_until_tokens(a, 4)
    served.step()
    assert served.status(a) is Status.SWAPPED
    b = served.submit(text_of(127, seed=1), 1, arrival_time_us=0, priority=1)
    planner.policy = replace(planner.policy, ordering=Ordering.PRIORITY)
    served.run()
    assert served.tokens(b) == true_tokens(text_of(127, seed=1), 1)
    assert served.tokens(a) == true_tokens(text_of(48), 8)
    assert num_cached(served, ask(served, text_of(49), 1)) == 48


def test_a_cancelled_sharer_frees_what_is_its_own_alone() -> None:
    served, ids, blocks = two_sharers()
    served.engine.cancel(ids[1])
    served.step()
    assert served.end(ids[1]).cause is EndCause.CANCELLED
    assert served.num_held_blocks == 3
    served.run()
    assert served.tokens(ids[0]) == true_tokens([*text_of(32), 50], 40)
    assert served.books.block_pool.reference_counts(np.array(blocks, dtype=np.int32)).tolist() == [0, 0, 0]


def test_an_outage_in_a_full_cache_of_sharers_finishes_all_that_ever_ran() -> None:
    outage = Outage(first=4)
    planner = LocalPlanner(replace(RECOMPUTE, watermark=0.0), outage)
    served = engine_on_tokens(limits_of(num_blocks=6), planner=planner)
    prompts = [[*text_of(32), 60 + i] for i in range(3)]
    ids = [served.submit(prompts[0], 30)]
    served.step()
    ids += [served.submit(prompt, 30) for prompt in prompts[1:]]
    served.run()
    assert served.engine.counters.num_safe_plans > 0
    assert [served.tokens(request_id) for request_id in ids] == [true_tokens(prompt, 30) for prompt in prompts]


def test_more_important_work_may_evict_the_last_holder_of_its_own_prefix() -> None:
    """The state counts the prefix as held by the one that the plan evicts for it: the plan holds all the same."""
    policy = Policy(
        ordering=Ordering.PRIORITY, preemption=Preemption.FOR_PRIORITY, eviction=Eviction.RECOMPUTE, watermark=0.0
    )
    served = engine_on_tokens(limits_of(), planner=LocalPlanner(policy))
    background = served.submit(text_of(64), 40)
    served.step_until_tokens(background, 2)
    urgent = served.submit(text_of(120), 4, priority=100)
    served.run()
    assert served.finish(background).usage.num_preemptions >= 1
    assert served.tokens(urgent) == true_tokens(text_of(120), 4)
    assert served.tokens(background) == true_tokens(text_of(64), 40)
    assert served.engine.counters.num_refused_plans == 0


# What must not be reused


class Faulty(TokenRunner):
    """Fails in one pass, or gives logits that are no numbers."""

    fails_in = breaks_in = -1
    num_passes = 0

    def execute(self, batch: RaggedBatch, sampling: SamplingBatch) -> ExecuteResult:
        self.num_passes += 1
        if self.num_passes == self.fails_in:
            raise MemoryError("out of memory")
        result = super().execute(batch, sampling)
        if self.num_passes == self.breaks_in:
            result.next_token_ids[:], result.non_finite[:] = NOT_SAMPLED, True
        return result


@pytest.mark.parametrize("fault", ["fails_in", "breaks_in"])
def test_what_is_in_doubt_is_not_reused(fault: str) -> None:
    cache = TokenCache(num_blocks=8, num_swap_blocks=0, block_size=16)
    device = Faulty(cache)
    setattr(device, fault, 2)
    served = EngineUnderTest(limits=limits_of(), runner=device, kv=cache)
    lost = served.submit(text_of(60), 8)
    served.run()
    assert served.end(lost).cause in (EndCause.FAILED, EndCause.INVALID_LOGITS)
    assert served.books.block_pool.num_kept == 0
    second = ask(served, text_of(60), 8)
    assert num_cached(served, second) == 0
    assert served.tokens(second) == true_tokens(text_of(60), 8)


# Real models, in float32


@pytest.mark.parametrize("overlap", Overlap)
@pytest.mark.parametrize("policy", [SWAP, RECOMPUTE], ids=["swap", "recompute"])
@pytest.mark.parametrize("name", ["tiny-llama", "tiny-gemma3", "tiny-gemma2"])
def test_the_same_tokens_with_and_without_the_cache(name: str, policy: Policy, overlap: Overlap) -> None:
    """Chunks of five tokens, a cache too small for all, and beginnings of many lengths in common."""
    loaded = tiny_model(name)
    limits = limits_of(block_size=4, num_blocks=24, num_swap_blocks=8, max_num_batched_tokens=24)
    prompts = [[*text_of(length), 200 + i] for i, length in enumerate((30, 30, 17, 40, 12, 30, 25, 33))]

    def run(scope: PrefixScope) -> tuple[list[list[int]], EngineUnderTest]:
        planner = LocalPlanner(replace(policy, chunk_size_tokens=5))
        served = engine_on_model(loaded, limits, planner=planner, overlap=overlap, prefix_scope=scope)
        ids = [served.submit(prompt, 12) for prompt in prompts]
        served.run()
        return [served.tokens(request_id) for request_id in ids], served

    without, _ = run(PrefixScope.OFF)
    tokens, served = run(PrefixScope.TENANT)
    assert tokens == without
    counters = served.engine.counters
    assert counters.num_prefix_hit_tokens > 100
    assert counters.num_evicted_swap + counters.num_evicted_recompute > 0
    assert (counters.num_refused_plans, counters.num_safe_plans) == (0, 0)
