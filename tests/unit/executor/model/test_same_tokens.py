"""Paged, ragged and chunked passes give the tokens of transformers' own `generate`."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from executor_service.kv.cache import KVCache, KVCacheSpec
from executor_service.model.loaded import LoadedModel
from executor_service.model.runner import ModelRunner
from support.generated import generated
from support.kernels import compiled_kernels
from support.paging import Sequence, greedy, ragged_batch, shuffled_block_tables
from support.tiny_models import TINY_MODELS, tiny_model

BLOCK_SIZE = 4
MAX_BLOCKS = 24
PROMPT_LENS = (1, 3, 8, 17, 40, 70)
NUM_NEW_TOKENS = 12


@pytest.fixture(scope="module", params=TINY_MODELS)
def published(request: pytest.FixtureRequest) -> LoadedModel:
    """With the modules of transformers."""
    return tiny_model(request.param)


@pytest.fixture(scope="module", params=["torch", "compiled"])
def loaded(request: pytest.FixtureRequest, published: LoadedModel) -> LoadedModel:
    if request.param == "torch":
        return published
    return tiny_model(published.name, kernels=compiled_kernels(torch.float32))


def prompts() -> list[list[int]]:
    rng = np.random.default_rng(0)
    return [rng.integers(0, 256, size=length).tolist() for length in PROMPT_LENS]


@pytest.fixture(scope="module")
def reference(published: LoadedModel) -> list[list[int]]:
    """What transformers generates from each prompt by itself."""
    return generated(published, prompts(), NUM_NEW_TOKENS)


def paged_tokens(loaded: LoadedModel, token_ids: list[list[int]], *, chunk_size: int) -> list[list[int]]:
    """All sequences together: decodes first, and the others by chunks until all have their output."""
    spec = KVCacheSpec.from_config(loaded.config, block_size=BLOCK_SIZE, dtype=loaded.dtype)
    kv_cache = KVCache(spec, num_blocks=len(token_ids) * MAX_BLOCKS, num_swap_blocks=0)
    runner = ModelRunner(loaded, kv_cache)
    tables = shuffled_block_tables(len(token_ids), MAX_BLOCKS, seed=1)
    sequences = [Sequence(token_ids=list(ids), block_table=table) for ids, table in zip(token_ids, tables, strict=True)]
    while running := [s for s in sequences if len(s.output) < NUM_NEW_TOKENS]:
        chunks = sorted(((s, min(chunk_size, s.num_lacking)) for s in running), key=lambda pair: pair[1])
        batch = ragged_batch(chunks)
        result = runner.execute(batch, greedy(len(batch.logits_rows)))
        assert not result.non_finite.any()
        next_tokens = iter(result.next_token_ids.tolist())
        for sequence, num_tokens in chunks:
            sequence.num_computed_tokens += num_tokens
            if sequence.num_lacking == 0:
                sequence.token_ids.append(token := next(next_tokens))
                sequence.output.append(token)
    return [sequence.output for sequence in sequences]


@pytest.mark.parametrize("chunk_size", [1, 5, 16, 128])
def test_chunked_and_batched_passes_give_the_tokens_of_generate(
    reference: list[list[int]], loaded: LoadedModel, chunk_size: int
) -> None:
    assert paged_tokens(loaded, prompts(), chunk_size=chunk_size) == reference


def test_reference_texts_are_not_all_alike(reference: list[list[int]]) -> None:
    assert len({tuple(tokens) for tokens in reference}) == len(PROMPT_LENS)


def test_a_pass_without_logits_rows_still_fills_the_cache(loaded: LoadedModel) -> None:
    spec = KVCacheSpec.from_config(loaded.config, block_size=BLOCK_SIZE, dtype=loaded.dtype)
    kv_cache = KVCache(spec, num_blocks=MAX_BLOCKS, num_swap_blocks=0)
    table = shuffled_block_tables(1, MAX_BLOCKS, seed=1)[0]
    sequence = Sequence(token_ids=list(range(20)), block_table=table)
    result = ModelRunner(loaded, kv_cache).execute(ragged_batch([(sequence, 7)]), greedy(0))
    assert len(result.next_token_ids) == 0
    with torch.inference_mode():
        keys, _ = kv_cache.gather(0, torch.from_numpy(table[:2].astype(np.int64)))
    assert (keys[:7].abs().sum(dim=(1, 2)) > 0).all()
    assert (keys[7:] == 0).all()
