"""Several answers to one prompt: its KV is computed once and shared, and no answer is another for it. Case 19.

The harness checks after every step that each block is accounted for, and that no pass wrote what others may read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from executor_service.engine.books import Status
from executor_service.engine.plan import EvictMode, Plan
from executor_service.engine.planning import Overlap
from executor_service.engine.request import EndCause, OutputOptions, Sampling
from executor_service.engine.snapshot import Snapshot, take, take_to_plan
from executor_service.kv.prefix_cache import PrefixScope
from scheduler_service.core.policy import Policy
from support.engine import GREEDY, EngineUnderTest, engine_on_model, engine_on_tokens, limits_of, sequence_of
from support.planners import RECOMPUTE, SWAP, EvictAtLength, LocalPlanner
from support.tiny_models import tiny_model
from support.token_runner import BlockIds, TokenCache, TokenRunner, true_tokens

SEEDED = replace(GREEDY, temperature=1.0)


def prompt_of(length: int, seed: int = 0) -> list[int]:
    tokens: list[int] = np.random.default_rng(seed).integers(0, 200, length).tolist()
    return tokens


def num_prefill_tokens(served: EngineUnderTest) -> int:
    return served.engine.counters.num_prefill_tokens


def assert_right(served: EngineUnderTest, ids: Sequence[int], prompt: Sequence[int], new: int) -> None:
    for request_id in ids:
        assert served.tokens(request_id) == true_tokens(prompt, new)
    assert served.engine.counters.num_refused_plans == 0
    assert served.is_empty


# Computed once


@pytest.mark.parametrize("overlap", Overlap)
@pytest.mark.parametrize("scope", PrefixScope)
@pytest.mark.parametrize("length", [1, 2, 15, 16, 17, 18, 32, 33, 40])
def test_a_prompt_is_computed_once_and_of_each_further_sample_its_last_token(
    length: int, scope: PrefixScope, overlap: Overlap
) -> None:
    served = engine_on_tokens(limits_of(num_blocks=24), prefix_scope=scope, overlap=overlap)
    ids = served.submit_samples(prompt_of(length), 20, 4)
    served.run()
    assert num_prefill_tokens(served) == length + 3
    assert [record.num_prefill_tokens for record in served.heard.passes[:2]] == ([4, 0] if length == 1 else [length, 3])
    assert [served.finish(i).usage.num_cached_tokens for i in ids] == [0, *[length - 1] * 3]
    assert_right(served, ids, prompt_of(length), 20)


@pytest.mark.parametrize("scope", PrefixScope)
def test_a_long_prompt_is_computed_in_chunks_by_one(scope: PrefixScope) -> None:
    served = engine_on_tokens(limits_of(num_blocks=32, max_num_batched_tokens=32), prefix_scope=scope)
    ids = served.submit_samples(prompt_of(100), 5, 3)
    served.run()
    assert [record.num_prefill_tokens for record in served.heard.passes[:5]] == [32, 32, 32, 4, 2]
    assert_right(served, ids, prompt_of(100), 5)


@pytest.mark.parametrize("num_blocks", [10, 32])
@pytest.mark.parametrize("length", [10, 16, 40])
def test_answers_of_one_token_compute_the_prompt_once_too(length: int, num_blocks: int) -> None:
    """The first has ended when the others begin, and its blocks are free: these take them up together."""
    served = engine_on_tokens(limits_of(num_blocks=num_blocks))
    ids = served.submit_samples(prompt_of(length), 1, 8)
    served.run()
    assert num_prefill_tokens(served) == length + 7
    assert len(served.heard.passes) == 2
    assert_right(served, ids, prompt_of(length), 1)


def test_those_that_must_wait_find_the_prompt_when_their_turn_comes() -> None:
    served = engine_on_tokens(limits_of(max_num_seqs=1))
    ids = served.submit_samples(prompt_of(40), 20, 3)
    served.run()
    assert num_prefill_tokens(served) == 40 + 2
    assert_right(served, ids, prompt_of(40), 20)


def test_samples_with_log_probabilities_of_their_prompt_share_it_too() -> None:
    """The first tells them, and bypasses the cache."""
    loaded = tiny_model("tiny-llama")
    served = engine_on_model(loaded, limits_of(num_blocks=16))
    told = OutputOptions(num_prompt_logprobs=0)
    first = sequence_of(1, prompt_of(20), 4, samples_of=1, output=told)
    served.engine.submit(first, sequence_of(2, prompt_of(20), 4, samples_of=1))
    served.run()
    assert num_prefill_tokens(served) == 21
    assert served.tokens(1) == served.tokens(2)


def test_samples_that_may_reuse_nothing_are_computed_each_by_itself() -> None:
    served = engine_on_tokens(limits_of(num_blocks=16))
    served.engine.submit(*(sequence_of(i, prompt_of(20), 4, samples_of=1, reuse_prefix=False) for i in (1, 2)))
    served.run()
    assert num_prefill_tokens(served) == 40
    assert_right(served, [1, 2], prompt_of(20), 4)


def test_calls_of_one_prompt_do_not_find_each_others_where_the_scope_is_off() -> None:
    served = engine_on_tokens(limits_of(num_blocks=16), prefix_scope=PrefixScope.OFF)
    for _ in range(2):
        served.submit_samples(prompt_of(40), 4, 2)
        served.run()
        assert served.books.block_pool.num_kept == 0, "nobody will ask for what the call left behind"
    assert num_prefill_tokens(served) == 2 * (40 + 1)


def test_a_tail_is_forgotten_with_the_last_who_could_ask_for_it() -> None:
    served = engine_on_tokens(limits_of(num_blocks=16))
    served.submit_samples(prompt_of(40), 3, 2)
    served.run()
    assert served.books.block_pool.num_kept == 2, "the full blocks of the prompt"


# Held once


def test_shared_blocks_are_held_once_and_the_scheduler_is_told() -> None:
    """Case 19: two shared full blocks, and each with a tail of its own."""
    served = engine_on_tokens(limits_of(num_blocks=12))
    ids = served.submit_samples(prompt_of(40), 30, 3)
    served.step()
    assert served.num_held_blocks == 3
    held = take_to_plan(served.books, now_us=0, latency=None).columns
    assert held["num_computed_tokens"].tolist() == [40, 39, 39]
    assert held["num_blocks"].tolist() == [3, 3, 3]
    assert held["num_shared_blocks"].tolist() == [0, 2, 2], "of those that wait, without the block to be copied"
    served.step()
    assert served.num_held_blocks == 2 + 3
    tables = served.books.block_tables[served.books.rows_of(ids)]
    assert (tables[:, :2] == tables[0, :2]).all()
    assert len(set(tables[:, 2].tolist())) == 3
    state = take(served.books, now_us=0, latency=None)
    assert state.columns["num_shared_blocks"].tolist() == [2, 2, 2]
    served.run()
    assert_right(served, ids, prompt_of(40), 30)


def test_a_state_to_plan_has_the_first_alone_until_the_prompt_is_there() -> None:
    served = engine_on_tokens(limits_of(num_blocks=32, max_num_batched_tokens=32), overlap=Overlap.OFF)
    shown: list[list[int]] = []

    def look(snapshot: Snapshot, plan: Plan) -> Plan:
        shown.append(snapshot.columns["id"].tolist())
        return plan

    served.planner.alterations.append(look)  # type: ignore[attr-defined]
    ids = served.submit_samples(prompt_of(60), 5, 3)
    served.step()
    assert take(served.books, now_us=0, latency=None).columns["id"].tolist() == ids, "everybody is in the books"
    served.step()
    served.step()
    assert shown == [[1], [1], [1, 2, 3]]
    served.run()
    assert_right(served, ids, prompt_of(60), 5)


# What comes between


@pytest.mark.parametrize("scope", [PrefixScope.TENANT, PrefixScope.OFF])
@pytest.mark.parametrize("mode", EvictMode)
@pytest.mark.parametrize("victim", [1, 2])
@pytest.mark.parametrize("length", [16, 17, 40])
def test_case_19_an_evicted_sample_finishes_like_the_others(
    length: int, victim: int, mode: EvictMode, scope: PrefixScope
) -> None:
    """Half way, with equal priority and time of arrival for all."""
    evict = EvictAtLength(request_id=victim, length=length + 15, mode=mode)
    served = engine_on_tokens(
        limits_of(num_blocks=12, num_swap_blocks=8),
        planner=LocalPlanner(RECOMPUTE, evict),
        prefix_scope=scope,
    )
    ids = served.submit_samples(prompt_of(length), 30, 3)
    served.run()
    assert evict.done
    assert [served.finish(i).usage.num_preemptions for i in ids] == [int(i == victim) for i in ids]
    assert_right(served, ids, prompt_of(length), 30)


@pytest.mark.parametrize("mode", EvictMode)
def test_one_that_is_evicted_in_its_prompt_goes_on_and_the_others_wait_for_it(mode: EvictMode) -> None:
    evicted = False

    def evict_first(snapshot: Snapshot, plan: Plan) -> Plan:
        nonlocal evicted
        if snapshot.iteration != 2 or evicted:
            return plan
        evicted = True
        return Plan(iteration=2, evict=np.array([1]), evict_modes=np.array([mode], dtype=np.int32))

    limits = limits_of(num_blocks=16, num_swap_blocks=8, max_num_batched_tokens=32)
    served = engine_on_tokens(limits, planner=LocalPlanner(RECOMPUTE, evict_first))
    ids = served.submit_samples(prompt_of(60), 5, 3)
    served.step()
    served.step()
    while len(served.books):
        served.step()
    assert num_prefill_tokens(served) == 60 + 2
    assert_right(served, ids, prompt_of(60), 5)


def test_where_the_first_is_cancelled_in_its_prompt_the_next_one_takes_over() -> None:
    served = engine_on_tokens(limits_of(num_blocks=16, max_num_batched_tokens=32))
    served.submit_samples(prompt_of(60), 5, 3)
    served.step()
    served.engine.cancel(1)
    served.run()
    assert served.end(1).cause is EndCause.CANCELLED
    assert num_prefill_tokens(served) == 60 + 1, "its first 32 tokens are found"
    assert_right(served, [2, 3], prompt_of(60), 5)


@pytest.mark.parametrize("cancelled", [1, 2])
def test_a_cancelled_sample_gives_back_what_is_its_own(cancelled: int) -> None:
    served = engine_on_tokens(limits_of(num_blocks=12))
    ids = served.submit_samples(prompt_of(40), 30, 3)
    served.step_until_tokens(3, 2)
    assert served.num_held_blocks == 5
    served.engine.cancel(cancelled)
    served.step()
    assert served.num_held_blocks == 4
    served.run()
    assert_right(served, [i for i in ids if i != cancelled], prompt_of(40), 30)


@pytest.mark.parametrize("policy", [SWAP, RECOMPUTE])
@pytest.mark.parametrize("scope", PrefixScope)
def test_a_cache_too_small_for_all_finishes_all(policy: Policy, scope: PrefixScope) -> None:
    limits = limits_of(num_blocks=6, num_swap_blocks=8)
    served = engine_on_tokens(limits, planner=LocalPlanner(replace(policy, watermark=0.0)), prefix_scope=scope)
    ids = served.submit_samples(prompt_of(40), 30, 5)
    served.run()
    assert served.engine.counters.num_evicted_swap + served.engine.counters.num_evicted_recompute > 0
    assert_right(served, ids, prompt_of(40), 30)


class NoCopies(TokenCache):
    """Cannot copy on the device."""

    num_failures = 0

    def copy_within(self, source: BlockIds, target: BlockIds) -> None:
        self.num_failures += 1
        raise RuntimeError("copy failed")


def test_where_tails_cannot_be_copied_each_computes_its_own() -> None:
    limits = limits_of(num_blocks=16)
    cache = NoCopies(num_blocks=16, num_swap_blocks=0, block_size=16)
    served = EngineUnderTest(limits=limits, runner=TokenRunner(cache), kv=cache)
    ids = served.submit_samples(prompt_of(40), 5, 3)
    for _ in range(30):
        served.step()
    assert 0 < cache.num_failures == len(served.heard.failed_copies) <= 3
    assert_right(served, ids, prompt_of(40), 5)


# The same tokens as alone


@pytest.mark.parametrize("sampling", [GREEDY, SEEDED])
@pytest.mark.parametrize("scope", [PrefixScope.TENANT, PrefixScope.OFF])
@pytest.mark.parametrize("model", ["tiny-llama", "tiny-gemma3"])
def test_samples_are_what_they_are_alone(model: str, scope: PrefixScope, sampling: Sampling) -> None:
    loaded, limits, prompt = tiny_model(model), limits_of(num_blocks=16), prompt_of(21)
    together = engine_on_model(loaded, limits, prefix_scope=scope)
    ids = together.submit_samples(prompt, 12, 3, sampling)
    together.run()
    for place, request_id in enumerate(ids):
        alone = engine_on_model(loaded, limits)
        alone.submit(prompt, 12, sampling=replace(sampling, seed=place))
        alone.run()
        assert together.tokens(request_id) == alone.tokens(1)
    assert num_prefill_tokens(together) == 21 + 2


def test_a_copied_tail_is_not_what_its_source_became() -> None:
    """The second sample enters when the first has written behind the tail, and then writes there itself."""
    served = engine_on_tokens(limits_of(num_blocks=16, max_num_seqs=2))
    other = served.submit(prompt_of(5, seed=9), 8)
    served.step()
    ids = served.submit_samples(prompt_of(20), 30, 2)
    served.step_until_tokens(ids[0], 3)
    assert other in served.books
    assert served.status(ids[1]) is Status.WAITING
    served.run()
    assert num_prefill_tokens(served) == 5 + 20 + 1
    assert_right(served, ids, prompt_of(20), 30)
