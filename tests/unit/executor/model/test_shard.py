"""Which models can be cut into how many parts, and what each part holds."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import FalconConfig, GPT2Config, LlamaConfig, Olmo2Config, PreTrainedConfig

from executor_service.model.errors import UnsupportedModelError
from executor_service.model.parallel_layers import VocabularyParallelHead
from executor_service.model.shard import Shard, check_can_be_cut, cut
from support.tiny_models import tiny_model


def llama(**sizes: Any) -> LlamaConfig:
    defaults = {"hidden_size": 96, "intermediate_size": 240, "num_attention_heads": 12, "num_key_value_heads": 4}
    return LlamaConfig(**defaults | sizes)


@pytest.mark.parametrize(
    ("config", "size"),
    [
        (llama(), 1),
        (llama(), 2),
        (llama(), 4),
        (llama(num_key_value_heads=1), 4),
        (llama(num_key_value_heads=2), 4),
        (llama(num_key_value_heads=3), 6),
        (GPT2Config(n_embd=96, n_head=12), 4),
        (FalconConfig(), 1),
    ],
)
def test_what_can_be_cut(config: PreTrainedConfig, size: int) -> None:
    check_can_be_cut("model", config, size)


@pytest.mark.parametrize(
    ("config", "size", "said"),
    [
        (llama(), 5, "12 query heads, which cannot be shared out among 5 processes"),
        (llama(), 3, "4 KV heads, which cannot be shared out among 3 processes"),
        (llama(), 6, "4 KV heads, which cannot be shared out among 6 processes"),
        (llama(num_key_value_heads=3), 4, "3 KV heads, which cannot be shared out among 4 processes"),
        (llama(intermediate_size=129), 2, "129 features of the feed-forward, which cannot be shared out among 2"),
        (GPT2Config(n_embd=96, n_head=12), 5, "12 query heads"),
        (FalconConfig(), 2, "how to share out the layers of falcon is not known"),
        (Olmo2Config(), 2, "how to share out the layers of olmo2 is not known"),  # norms over all heads at once
    ],
)
def test_what_cannot_be_cut_is_refused_by_its_configuration(config: PreTrainedConfig, size: int, said: str) -> None:
    with pytest.raises(UnsupportedModelError, match=f"model .*{said}"):
        check_can_be_cut("model", config, size)


@pytest.mark.parametrize("size", [2, 4])
def test_each_rank_holds_the_keys_of_its_queries(size: int) -> None:
    """Four query heads over two KV heads, of dimension 8: with four ranks, two have the same KV head."""
    whole = tiny_model("tiny-llama").model.model.layers[0].self_attn
    for rank in range(size):
        part = tiny_model("tiny-llama", shard=Shard(rank=rank, size=size)).model.model.layers[0].self_attn
        queries = slice(rank * 32 // size, (rank + 1) * 32 // size)
        kv_head = rank * 2 // size
        assert torch.equal(part.q_proj.weight, whole.q_proj.weight[queries])
        assert torch.equal(part.k_proj.weight, whole.k_proj.weight[8 * kv_head : 8 * (kv_head + 1)])
        assert torch.equal(part.v_proj.weight, whole.v_proj.weight[8 * kv_head : 8 * (kv_head + 1)])
        assert torch.equal(part.o_proj.partial.weight, whole.o_proj.weight[:, queries])
        assert part.num_key_value_groups == 4 // size


def test_a_bias_that_is_summed_is_counted_once() -> None:
    parts = [tiny_model("tiny-gpt2", shard=Shard(rank=rank, size=2)).model.transformer.h[0] for rank in range(2)]
    whole = tiny_model("tiny-gpt2").model.transformer.h[0]
    torch.nn.init.normal_(whole.attn.c_proj.bias)
    assert torch.equal(parts[0].attn.c_proj.partial.bias + parts[1].attn.c_proj.partial.bias, torch.zeros(32))
    assert parts[0].mlp.c_proj.partial.bias is not parts[1].mlp.c_proj.partial.bias
    states = torch.randn(1, 3, 128)
    halves = states.split(64, dim=-1)
    torch.nn.init.normal_(parts[0].mlp.c_proj.partial.bias)
    whole.mlp.c_proj.bias.data.copy_(parts[0].mlp.c_proj.partial.bias)
    summed = sum(part.mlp.c_proj(half) for part, half in zip(parts, halves, strict=True))
    assert torch.allclose(summed, whole.mlp.c_proj(states), atol=1e-5)


def test_a_vocabulary_that_does_not_divide_is_filled_up() -> None:
    head = torch.nn.Linear(4, 7, bias=True)
    parts = [VocabularyParallelHead(head, rank, 3) for rank in range(3)]
    states = torch.randn(2, 4)
    joined = torch.cat([part(states) for part in parts], dim=-1)
    assert joined.shape == (2, 9)
    assert torch.allclose(joined[:, :7], head(states), atol=1e-6)
    assert not joined[:, 7:].any()


def test_a_model_with_something_beside_its_layers_that_concerns_all_heads_is_refused() -> None:
    loaded = tiny_model("tiny-llama")
    attention = loaded.model.model.layers[1].self_attn
    attention.q_norm = torch.nn.LayerNorm(32)
    with pytest.raises(UnsupportedModelError, match=r"layers\.1\.self_attn\.q_norm\.\w+ concerns all heads at once"):
        cut("model", loaded.model, Shard(rank=0, size=2))
