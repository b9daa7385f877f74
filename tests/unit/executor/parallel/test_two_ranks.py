"""Two processes with half of a model each give the tokens that transformers generates with the whole of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch

from executor_service.engine.plan import EvictMode
from executor_service.model.loaded import LoadedModel
from support.engine import EngineUnderTest, limits_of
from support.generated import generated
from support.planners import RECOMPUTE, SWAP, EvictAtLength, LocalPlanner
from support.ranks import Part, TwoRanks, two_ranks
from support.tiny_models import tiny_model

# Their layers are cut in all the ways there are: separate or packed, with biases or without, one KV head for both
# ranks or one for each, windows and capped scores, tied output heads or not.
MODELS = tuple(f"tiny-{name}" for name in ("llama", "mistral", "qwen2", "qwen3", "gemma2", "gemma3", "phi3", "gpt2"))
PROMPT_LENS = (1, 5, 16, 17, 40)
NUM_NEW_TOKENS = 12
ROOMY = limits_of(num_blocks=32, num_swap_blocks=8)
CROWDED = limits_of(block_size=4, num_blocks=16, num_swap_blocks=12)
CHUNKS_OF_NINE = replace(RECOMPUTE, chunk_size_tokens=9)


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TwoRanks]:
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with two_ranks(tmp_path_factory.mktemp("ranks")) as ranks:
        yield ranks
    torch.set_num_threads(num_threads)


@pytest.fixture(scope="module", params=MODELS)
def whole(request: pytest.FixtureRequest) -> LoadedModel:
    return tiny_model(request.param)


@pytest.fixture(scope="module")
def reference(whole: LoadedModel) -> list[list[int]]:
    return generated(whole, prompts(), NUM_NEW_TOKENS)


def prompts() -> list[list[int]]:
    rng = np.random.default_rng(0)
    return [rng.integers(0, 256, size=length).tolist() for length in PROMPT_LENS]


def answers(served: EngineUnderTest) -> list[list[int]]:
    ids = [served.submit(prompt, NUM_NEW_TOKENS) for prompt in prompts()]
    served.run()
    return [served.tokens(id) for id in ids]


@pytest.mark.parametrize("is_compiled", [False, True], ids=["torch", "compiled"])
def test_in_chunks_and_again_from_the_prefix_cache(
    ranks: TwoRanks, whole: LoadedModel, reference: list[list[int]], is_compiled: bool
) -> None:
    part = Part(model=whole.name, is_compiled=is_compiled, limits=ROOMY)
    served = ranks.engine(part, planner=LocalPlanner(CHUNKS_OF_NINE))
    assert answers(served) == reference
    assert served.engine.counters.num_prefix_hit_tokens == 0
    assert answers(served) == reference
    assert served.engine.counters.num_prefix_hit_tokens > 0


def test_samples_that_share_a_prompt(ranks: TwoRanks, whole: LoadedModel, reference: list[list[int]]) -> None:
    served = ranks.engine(Part(model=whole.name, is_compiled=False, limits=ROOMY))
    ids = served.submit_samples(prompts()[3], NUM_NEW_TOKENS, 3)
    served.run()
    assert [served.tokens(id) for id in ids] == [reference[3]] * 3
    assert served.finish(ids[1]).usage.num_cached_tokens == PROMPT_LENS[3] - 1  # one block, and a copied one


@pytest.mark.parametrize("mode", EvictMode)
def test_evicted_in_the_middle_of_a_prompt_and_for_want_of_blocks(
    ranks: TwoRanks, whole: LoadedModel, reference: list[list[int]], mode: EvictMode
) -> None:
    evict = EvictAtLength(request_id=4, length=17, mode=mode)
    served = ranks.engine(
        Part(model=whole.name, is_compiled=False, limits=ROOMY), planner=LocalPlanner(CHUNKS_OF_NINE, evict)
    )
    assert answers(served) == reference
    assert evict.done
    policy = SWAP if mode is EvictMode.SWAP else RECOMPUTE
    served = ranks.engine(Part(model=whole.name, is_compiled=False, limits=CROWDED), planner=LocalPlanner(policy))
    assert answers(served) == reference
    counters = served.engine.counters
    evicted = {EvictMode.SWAP: counters.num_evicted_swap, EvictMode.RECOMPUTE: counters.num_evicted_recompute}
    assert evicted[mode] > 0
    assert counters.num_refused_plans == counters.num_safe_plans == 0
    assert not served.heard.failed_copies
