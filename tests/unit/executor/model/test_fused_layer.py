"""Layers as one kernel: they give what the fused parts give one by one, and what is put together otherwise stays."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from executor_service.kernels.cpu import CpuKernels
from executor_service.kv.cache import KVCache, KVCacheSpec
from executor_service.model.attention import PagedContext
from executor_service.model.batch import RaggedBatch
from executor_service.model.device_batch import DeviceBatch
from executor_service.model.fuse import fuse
from executor_service.model.fused_layer import FusedLayer, fused_layer
from support.kernels import compiled_kernels
from support.paging import random_batch
from support.tiny_models import causal_model

BLOCK_SIZE = 4
HEAD_DIM = 32
FUSED = ("tiny-llama", "tiny-mistral", "tiny-qwen2", "tiny-qwen3", "tiny-gemma2", "tiny-gemma3")


@pytest.fixture
def kernels() -> CpuKernels:
    kernels = compiled_kernels(torch.bfloat16)
    if not kernels.serves_chunks(HEAD_DIM):
        pytest.skip("this processor has no AVX2")
    return kernels


def fused_model(name: str, kernels: CpuKernels) -> Any:
    model = causal_model(name, dtype=torch.bfloat16, head_dim=HEAD_DIM)
    fuse(model, kernels)
    return model


def run(model: Any, batch: RaggedBatch, kernels: CpuKernels) -> tuple[torch.Tensor, torch.Tensor]:
    """Hidden states, and all keys and values."""
    spec = KVCacheSpec.from_config(model.config, block_size=BLOCK_SIZE, dtype=torch.bfloat16)
    cache = KVCache(spec, num_blocks=int(batch.block_tables.max()) + 1, num_swap_blocks=0)
    generator = torch.Generator().manual_seed(1)
    for layer in range(spec.num_layers):  # what came before the chunks
        for slots in cache.layer_slots(layer):
            slots.copy_(torch.randn(slots.shape, generator=generator))
    device_batch = DeviceBatch(batch, spec=spec, device=torch.device("cpu"))
    with torch.inference_mode():
        states = model.base_model(
            input_ids=device_batch.input_ids,
            position_ids=device_batch.position_ids,
            use_cache=False,
            paged_context=PagedContext(kv_cache=cache, batch=device_batch, kernels=kernels),
        ).last_hidden_state
    return states, torch.cat(
        [slots.flatten() for layer in range(spec.num_layers) for slots in cache.layer_slots(layer)]
    )


def without_layers(model: Any) -> Any:
    """The same model with its fused parts, one by one."""
    layers = model.base_model.layers
    for index, layer in enumerate(layers):
        assert isinstance(layer, FusedLayer)
        layers[index] = layer.layer
    return model


def none_the_last(model: Any, kernels: CpuKernels) -> Any:
    """The same model, whose layers do not know which of them is the last."""
    layers = model.base_model.layers
    for index, layer in enumerate(layers):
        layers[index] = fused_layer(layer.layer, kernels)
    return model


@pytest.mark.parametrize("name", FUSED)
@pytest.mark.parametrize(("num_decodes", "num_chunks"), [(5, 0), (0, 3), (4, 3)])
def test_a_layer_gives_what_its_parts_give(name: str, num_decodes: int, num_chunks: int, kernels: CpuKernels) -> None:
    model = fused_model(name, kernels)
    batch = random_batch(2, block_size=BLOCK_SIZE, num_decodes=num_decodes, num_chunks=num_chunks)
    of_rows, stored_with_rows = run(model, batch, kernels)
    states, stored = run(none_the_last(model, kernels), batch, kernels)
    expected_states, expected_stored = run(without_layers(model), batch, kernels)
    assert torch.equal(states, expected_states)
    assert torch.equal(stored, expected_stored)
    # The last one goes on with rows, all of them here, as decodes, whose weights are not rounded to bfloat16.
    assert torch.equal(stored_with_rows, expected_stored)
    assert torch.equal(of_rows[:, :num_decodes], expected_states[:, :num_decodes])
    difference = (of_rows.float() - expected_states.float()).norm(dim=-1) / expected_states.float().norm(dim=-1)
    assert difference.max() < 2**-6


@pytest.mark.parametrize("name", ["tiny-llama", "tiny-gemma3"])
@pytest.mark.parametrize("rows", [[], [4], [0, 1, 2, 3, 9], [3, 30, 31]])
def test_states_that_are_asked_for_do_not_depend_on_which_others_are(
    name: str, rows: list[int], kernels: CpuKernels
) -> None:
    model = fused_model(name, kernels)
    batch = random_batch(2, block_size=BLOCK_SIZE, num_decodes=4, num_chunks=3)
    states, stored = run(model, batch, kernels)
    some_states, some_stored = run(model, replace(batch, logits_rows=np.array(rows, dtype=np.int64)), kernels)
    assert torch.equal(some_states[0, rows], states[0, rows])
    assert torch.equal(some_stored, stored)


@pytest.mark.parametrize("name", ["tiny-phi3", "tiny-gpt2", "tiny-gpt-oss"])
def test_layers_that_are_not_known_stay(name: str, kernels: CpuKernels) -> None:
    model = causal_model(name, dtype=torch.bfloat16)
    fuse(model, kernels)
    assert not any(isinstance(module, FusedLayer) for module in model.modules())


def test_a_layer_that_is_put_together_otherwise_stays(kernels: CpuKernels, monkeypatch: pytest.MonkeyPatch) -> None:
    """All parts have the known names; but attention and feed-forward are added to the same states."""
    model = causal_model("tiny-llama", dtype=torch.bfloat16, head_dim=HEAD_DIM)

    def in_parallel(layer: Any, hidden_states: torch.Tensor, **kwargs: Any) -> torch.Tensor:
        attended, _ = layer.self_attn(hidden_states=layer.input_layernorm(hidden_states), **kwargs)
        added: torch.Tensor = hidden_states + attended + layer.mlp(layer.post_attention_layernorm(hidden_states))
        return added

    monkeypatch.setattr(type(model.model.layers[0]), "forward", in_parallel)
    fuse(model, kernels)
    assert not any(isinstance(layer, FusedLayer) for layer in model.model.layers)


def test_what_a_model_asks_of_its_layers_is_answered(kernels: CpuKernels) -> None:
    layer = fused_model("tiny-llama", kernels).model.layers[0]
    assert layer.hidden_size == 32
    assert isinstance(layer.self_attn, nn.Module)
    with pytest.raises(AttributeError, match="no_such_thing"):
        _ = layer.no_such_thing
