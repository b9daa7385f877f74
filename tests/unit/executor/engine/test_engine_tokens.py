"""Eviction, chunking, planning ahead and neighbours never change an answer: tokens equal those of `generate`."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from executor_service.engine.plan import EvictMode, PlanSource
from executor_service.engine.planning import Overlap
from executor_service.engine.request import FinishReason, Sampling
from executor_service.model.loaded import LoadedModel
from scheduler_service.core.policy import Policy
from support.engine import engine_on_model, engine_on_tokens, limits_of
from support.generated import generated
from support.planners import RECOMPUTE, SWAP, EvictAtLength, LocalPlanner
from support.tiny_models import TINY_MODELS, tiny_model
from support.token_runner import true_tokens

PROMPT_LENS = (1, 5, 16, 17, 40)
NUM_NEW_TOKENS = 12
ROOMY = limits_of(num_blocks=32, num_swap_blocks=8)
CROWDED = limits_of(block_size=4, num_blocks=16, num_swap_blocks=12)


def prompts() -> list[list[int]]:
    rng = np.random.default_rng(0)
    return [rng.integers(0, 256, size=length).tolist() for length in PROMPT_LENS]


@pytest.fixture(scope="module", params=["tiny-llama", "tiny-qwen3", "tiny-gemma3"])
def loaded(request: pytest.FixtureRequest) -> LoadedModel:
    return tiny_model(request.param)


@pytest.fixture(scope="module")
def reference(loaded: LoadedModel) -> list[list[int]]:
    return generated(loaded, prompts(), NUM_NEW_TOKENS)


@pytest.mark.parametrize("overlap", Overlap)
@pytest.mark.parametrize("chunk_size", [1, 3, 16])
def test_chunks_and_planning_ahead_do_not_change_tokens(
    loaded: LoadedModel, reference: list[list[int]], chunk_size: int, overlap: Overlap
) -> None:
    planner = LocalPlanner(Policy(chunk_size_tokens=chunk_size))
    served = engine_on_model(loaded, ROOMY, planner=planner, overlap=overlap)
    ids = [served.submit(prompt, NUM_NEW_TOKENS) for prompt in prompts()]
    served.run()
    assert [served.tokens(id) for id in ids] == reference


@pytest.mark.parametrize("policy", [SWAP, RECOMPUTE], ids=["swap", "recompute"])
def test_evictions_for_want_of_blocks_do_not_change_tokens(
    loaded: LoadedModel, reference: list[list[int]], policy: Policy
) -> None:
    served = engine_on_model(loaded, CROWDED, planner=LocalPlanner(policy))
    ids = [served.submit(prompt, NUM_NEW_TOKENS) for prompt in prompts()]
    served.run()
    assert [served.tokens(id) for id in ids] == reference
    counters = served.engine.counters
    assert counters.num_evicted_swap + counters.num_evicted_recompute > 0
    assert counters.num_refused_plans == counters.num_safe_plans == 0


@pytest.mark.parametrize("policy", [SWAP, RECOMPUTE], ids=["swap", "recompute"])
@pytest.mark.parametrize("name", TINY_MODELS)
def test_of_every_architecture_in_chunks_evicted_and_from_the_prefix_cache(name: str, policy: Policy) -> None:
    """Two ranks: `parallel/test_two_ranks.py`."""
    loaded = tiny_model(name)
    expected = generated(loaded, prompts(), NUM_NEW_TOKENS)
    planner = LocalPlanner(replace(policy, chunk_size_tokens=5))
    served = engine_on_model(loaded, CROWDED, planner=planner)
    for _ in range(2):
        ids = [served.submit(prompt, NUM_NEW_TOKENS) for prompt in prompts()]
        served.run()
        assert [served.tokens(id) for id in ids] == expected
    counters = served.engine.counters
    assert counters.num_evicted_swap + counters.num_evicted_recompute > 0
    assert any(served.finish(id).usage.num_cached_tokens > 0 for id in ids)


@pytest.mark.parametrize("mode", EvictMode)
@pytest.mark.parametrize("length", [17, 18, 23, 28])
def test_an_eviction_beside_others_does_not_change_tokens(
    loaded: LoadedModel, reference: list[list[int]], mode: EvictMode, length: int
) -> None:
    """Request 4 has 17 prompt tokens; at length 17 its prompt is half computed."""
    evict = EvictAtLength(request_id=4, length=length, mode=mode)
    planner = LocalPlanner(replace(RECOMPUTE, chunk_size_tokens=9), evict)
    served = engine_on_model(loaded, ROOMY, planner=planner)
    ids = [served.submit(prompt, NUM_NEW_TOKENS) for prompt in prompts()]
    served.run()
    assert evict.done
    assert [served.tokens(id) for id in ids] == reference
    assert served.finish(4).usage.num_preemptions == 1


@pytest.mark.parametrize("overlap", Overlap)
@pytest.mark.parametrize("mode", EvictMode)
def test_an_eviction_at_any_length_does_not_change_tokens(mode: EvictMode, overlap: Overlap) -> None:
    """Alone, so that the plan which evicts runs nothing at all."""
    prompt = list(range(10))
    for length in range(10, 50):
        planner = LocalPlanner(
            Policy(chunk_size_tokens=7), evict := EvictAtLength(request_id=1, length=length, mode=mode)
        )
        served = engine_on_tokens(limits_of(num_swap_blocks=8), planner=planner, overlap=overlap)
        served.submit(prompt, 40)
        for _ in range(3):
            served.step()
        while len(served.books):
            served.step()
        assert evict.done
        assert served.tokens(1) == true_tokens(prompt, 40), length
        assert served.is_empty


@pytest.mark.parametrize("mode", EvictMode)
def test_a_plan_is_asked_for_anew_when_all_whom_it_would_run_have_ended(mode: EvictMode) -> None:
    """The plan made ahead runs request 1 and evicts request 2; then request 1 ends by a token that nobody foresaw."""
    prompts_of = {1: [1, 2, 3], 2: [4, 5, 6]}
    end_token = true_tokens(prompts_of[1], 4)[-1]
    evict = EvictAtLength(request_id=2, length=7, mode=mode)
    served = engine_on_tokens(limits_of(num_swap_blocks=2), planner=LocalPlanner(RECOMPUTE, evict))
    served.submit(prompts_of[1], 20, stop_token_ids=[end_token])
    served.submit(prompts_of[2], 20)
    for _ in range(4):
        served.step()
    assert served.finish(1).finish_reason is FinishReason.STOP
    served.step()
    assert evict.done
    assert served.heard.passes[-1].plan_source is PlanSource.DIRECT
    assert served.finish(1).usage.num_output_tokens == 4
    served.run()
    assert served.tokens(2) == true_tokens(prompts_of[2], 20)
    assert served.finish(2).usage.num_preemptions == 0


def test_those_who_wait_follow_at_once_when_all_who_ran_have_ended() -> None:
    prompt = [1, 2, 3]
    end_token = true_tokens(prompt, 4)[-1]
    served = engine_on_tokens(limits_of(max_num_seqs=1))
    for _ in range(5):
        served.submit(prompt, 20, stop_token_ids=[end_token])
    served.run()  # fails at a step that runs nothing
    assert len(served.heard.passes) == 5 * 4


@pytest.mark.parametrize("mode", EvictMode)
def test_a_seed_decides_whatever_happens(mode: EvictMode) -> None:
    """Case 39: alone, beside one without a seed of its own, beside one with, and evicted half way."""
    loaded = tiny_model("tiny-llama")
    prompt = list(range(12))

    def sampled(seed: int) -> Sampling:
        return Sampling(temperature=0.8, top_k=0, top_p=1.0, seed=seed)

    def tokens(*neighbours: int, planner: LocalPlanner | None = None) -> list[int]:
        served = engine_on_model(loaded, ROOMY, planner=planner)
        served.submit(prompt, 16, sampling=sampled(42))
        for seed in neighbours:
            served.submit(prompt[::-1], 16, sampling=sampled(seed))
        served.run()
        return served.tokens(1)

    evict = EvictAtLength(request_id=1, length=20, mode=mode)
    alone = tokens()
    assert tokens(7) == tokens(123456789) == tokens(8, planner=LocalPlanner(RECOMPUTE, evict)) == alone
    assert evict.done
    served = engine_on_model(loaded, ROOMY)
    served.submit(prompt, 16, sampling=sampled(43))
    served.run()
    assert served.tokens(1) != alone
