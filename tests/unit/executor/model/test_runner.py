"""The runner: one request's fault stays its own."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from executor_service.kv.cache import KVCache, KVCacheSpec
from executor_service.model.loaded import LoadedModel
from executor_service.model.runner import ModelRunner
from executor_service.sampling.sampler import NOT_SAMPLED
from support.kernels import compiled_kernels
from support.paging import Sequence, greedy, ragged_batch
from support.tiny_models import tiny_model

POISON = 299


@pytest.fixture(params=["torch", "compiled"])
def poisoned(request: pytest.FixtureRequest) -> LoadedModel:
    """A model in which one token of the vocabulary turns its text into NaN."""
    kernels = compiled_kernels(torch.float32) if request.param == "compiled" else None
    loaded = tiny_model("tiny-llama", kernels=kernels)
    with torch.no_grad():
        loaded.model.model.embed_tokens.weight[POISON] = float("nan")
    return loaded


def runner_for(loaded: LoadedModel) -> ModelRunner:
    spec = KVCacheSpec.from_config(loaded.config, block_size=4, dtype=loaded.dtype)
    return ModelRunner(loaded, KVCache(spec, num_blocks=16, num_swap_blocks=0))


def run(runner: ModelRunner, sequences: list[Sequence]) -> tuple[list[int], list[bool]]:
    """All that each sequence lacks, in one pass."""
    chunks = [(sequence, sequence.num_lacking) for sequence in sequences]
    result = runner.execute(ragged_batch(chunks), greedy(len(chunks)))
    for (sequence, num_tokens), token in zip(chunks, result.next_token_ids.tolist(), strict=True):
        sequence.num_computed_tokens += num_tokens
        sequence.token_ids.append(token)
    return result.next_token_ids.tolist(), result.non_finite.tolist()


def sequence(token_ids: list[int], blocks: list[int]) -> Sequence:
    return Sequence(token_ids=token_ids, block_table=np.array(blocks, dtype=np.int32))


def test_a_request_that_is_not_finite_is_flagged_and_its_neighbour_is_untouched(poisoned: LoadedModel) -> None:
    alone = runner_for(poisoned)
    healthy = sequence([1, 2, 3], [5, 6])
    expected = [run(alone, [healthy])[0][0] for _ in range(4)]

    together = runner_for(poisoned)
    healthy, faulty = sequence([1, 2, 3], [5, 6, 6]), sequence([7, POISON, 9, 9, 9, 9], [0, 1, 2])
    for token in expected:
        tokens, non_finite = run(together, [healthy, faulty])
        assert tokens == [token, NOT_SAMPLED]
        assert non_finite == [False, True]
        faulty.token_ids[-1] = 9


def test_blocks_of_a_faulty_request_can_be_given_to_another(poisoned: LoadedModel) -> None:
    texts = []
    for blocks_were_poisoned in (False, True):
        runner = runner_for(poisoned)
        if blocks_were_poisoned:
            run(runner, [sequence([POISON] * 8, [5, 6])])
        next_holder = sequence([1, 2, 3], [5, 6])
        texts.append([run(runner, [next_holder]) for _ in range(4)])
    assert texts[0] == texts[1]
