"""Tokens without their logits: the same as with them; and only where logits are plain products."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from executor_service.kv.cache import KVCache, KVCacheSpec
from executor_service.model.batch import RaggedBatch
from executor_service.model.fuse import fuse
from executor_service.model.greedy_head import GreedyHead
from executor_service.model.loaded import LoadedModel
from executor_service.model.runner import ModelRunner
from executor_service.sampling.sampler import NOT_SAMPLED, SamplingBatch
from support.kernels import compiled_kernels
from support.paging import Sequence, greedy, ragged_batch
from support.tiny_models import causal_model, tiny_model

VOCAB_SIZE = 320  # whole panels


@pytest.fixture
def loaded() -> LoadedModel:
    return fused(causal_model("tiny-gemma3", vocab_size=VOCAB_SIZE, dtype=torch.bfloat16))


def fused(model: Any) -> LoadedModel:
    kernels = compiled_kernels(torch.bfloat16)
    if kernels.products is None:
        pytest.skip("this processor has no AVX2")
    head = fuse(model, kernels)
    assert head is not None
    return replace(tiny_model("tiny-gemma3"), model=model, dtype=torch.bfloat16, kernels=kernels, greedy_head=head)


def run(loaded: LoadedModel, sampling: SamplingBatch) -> tuple[list[int], Any]:
    batch = _batch(len(sampling))
    spec = KVCacheSpec.from_config(loaded.config, block_size=4, dtype=loaded.dtype)
    result = ModelRunner(loaded, KVCache(spec, num_blocks=16, num_swap_blocks=0)).execute(batch, sampling)
    return result.next_token_ids.tolist(), result.logprobs


def _batch(num_requests: int) -> RaggedBatch:
    requests = [
        Sequence(token_ids=[3 + i, 50, 7], block_table=np.array([i], dtype=np.int32)) for i in range(num_requests)
    ]
    return ragged_batch([(request, request.num_lacking) for request in requests])


def test_tokens_are_those_of_all_logits(loaded: LoadedModel) -> None:
    tokens, logprobs = run(loaded, greedy(8))
    assert logprobs is None
    assert tokens == run(replace(loaded, greedy_head=None), greedy(8))[0]


def test_those_that_need_logits_share_a_pass_with_those_that_do_not(loaded: LoadedModel) -> None:
    sampling = greedy(6)
    sampling.temperature[[1, 4]] = 0.7
    sampling.num_logprobs[[2, 4]] = 3
    assert sampling.takes_largest.tolist() == [True, False, False, True, False, True]
    tokens, logprobs = run(loaded, sampling)
    expected_tokens, expected = run(replace(loaded, greedy_head=None), sampling)
    assert tokens == expected_tokens
    assert logprobs.rows.tolist() == expected.rows.tolist() == [2, 4]
    assert logprobs.top_token_ids.tolist() == expected.top_token_ids.tolist()


def test_rows_that_are_no_numbers_are_flagged(loaded: LoadedModel) -> None:
    """The table is the head too, so one of the logits of its last entries is infinite for everybody; but only then."""
    assert NOT_SAMPLED not in run(loaded, greedy(3))[0]
    model = causal_model("tiny-gemma3", vocab_size=VOCAB_SIZE, dtype=torch.bfloat16)
    with torch.no_grad():
        model.get_output_embeddings().weight[-2:, -1] = torch.tensor([float("inf"), float("-inf")])
    assert run(fused(model), greedy(3))[0] == [NOT_SAMPLED] * 3


def test_a_table_that_is_the_head_too_is_looked_up_as_it_was(loaded: LoadedModel) -> None:
    ids = torch.tensor([[0, 31, 32, VOCAB_SIZE - 1, 31]])
    original = causal_model("tiny-gemma3", vocab_size=VOCAB_SIZE, dtype=torch.bfloat16)
    expected = original.get_input_embeddings()(ids)  # with the factor that this model has
    table = loaded.model.get_input_embeddings()
    assert table.num_embeddings == VOCAB_SIZE
    assert torch.equal(table(ids), expected)
    assert torch.equal(table(ids[:, :1]), expected[:, :1])


def test_a_head_of_its_own_leaves_the_table_alone() -> None:
    kernels = compiled_kernels(torch.bfloat16)
    if kernels.products is None:
        pytest.skip("this processor has no AVX2")
    model = causal_model("tiny-llama", vocab_size=VOCAB_SIZE, dtype=torch.bfloat16)
    assert model.get_input_embeddings().weight is not model.get_output_embeddings().weight
    table = model.get_input_embeddings()
    states = torch.randn(3, model.config.hidden_size).bfloat16()
    expected = model.get_output_embeddings()(states)
    head = fuse(model, kernels)
    assert head is not None
    assert model.get_input_embeddings() is table
    assert torch.equal(head.logits(states), model.get_output_embeddings()(states))
    assert torch.allclose(head.logits(states).float(), expected.float(), rtol=2**-7, atol=2**-7)


def test_logits_that_are_changed_after_the_product_are_all_computed() -> None:
    products = compiled_kernels(torch.bfloat16).products
    capped = causal_model("tiny-gemma2", vocab_size=VOCAB_SIZE, dtype=torch.bfloat16)
    assert capped.config.final_logit_softcapping
    assert GreedyHead.take_over(capped, products) is None
    assert "forward" not in vars(capped.base_model), "the trial must leave nothing behind"
    odd_size = causal_model("tiny-llama", vocab_size=300, dtype=torch.bfloat16)
    assert GreedyHead.take_over(odd_size, products) is None
