"""Tiny models with random weights, for tests in which only the arithmetic matters.

Each has a vocabulary of 300: a tokenizer over bytes, so any text round-trips, and a few special tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from transformers import (
    AutoModelForCausalLM,
    Gemma2Config,
    Gemma3TextConfig,
    GPT2Config,
    GptOssConfig,
    LlamaConfig,
    MistralConfig,
    Phi3Config,
    PreTrainedConfig,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen3Config,
)

from executor_service.kernels.cpu import CpuKernels
from executor_service.model.attention import ATTN_IMPLEMENTATION, register_paged_attention
from executor_service.model.fuse import fuse
from executor_service.model.loaded import LoadedModel
from executor_service.model.shard import WHOLE, Shard, cut

VOCAB_SIZE = 300
BOS_TOKEN_ID = 256
EOS_TOKEN_ID = 257
MAX_MODEL_LEN = 512
SLIDING_WINDOW = 8

_COMMON: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": MAX_MODEL_LEN,
    "bos_token_id": BOS_TOKEN_ID,
    "eos_token_id": EOS_TOKEN_ID,
    "pad_token_id": 258,
    # Large enough that logits are far apart: greedy tokens must not hang on the order of float32 sums.
    "initializer_range": 0.3,
}


def _llama_config() -> PreTrainedConfig:
    return LlamaConfig(num_hidden_layers=2, **_COMMON)


def _qwen3_config() -> PreTrainedConfig:
    return Qwen3Config(num_hidden_layers=2, **_COMMON)


def _gemma3_config() -> PreTrainedConfig:
    return Gemma3TextConfig(
        num_hidden_layers=4,
        layer_types=["sliding_attention", "full_attention", "sliding_attention", "full_attention"],
        sliding_window=SLIDING_WINDOW,
        query_pre_attn_scalar=8,
        **_COMMON | {"num_key_value_heads": 1},
    )


def _gemma2_config() -> PreTrainedConfig:
    """With capped scores, for which attention takes another path."""
    return Gemma2Config(
        num_hidden_layers=2,
        layer_types=["sliding_attention", "full_attention"],
        sliding_window=SLIDING_WINDOW,
        query_pre_attn_scalar=8,
        attn_logit_softcapping=5.0,
        **_COMMON,
    )


def _mistral_config() -> PreTrainedConfig:
    """With a sliding window in every layer."""
    return MistralConfig(num_hidden_layers=2, sliding_window=SLIDING_WINDOW, **_COMMON)


def _qwen2_config() -> PreTrainedConfig:
    """With biases in the projections of attention."""
    return Qwen2Config(num_hidden_layers=2, **{name: value for name, value in _COMMON.items() if name != "head_dim"})


def _phi3_config() -> PreTrainedConfig:
    """With one projection for queries, keys and values, and one for gate and up."""
    return Phi3Config(num_hidden_layers=2, **{name: value for name, value in _COMMON.items() if name != "head_dim"})


def _gpt2_config() -> PreTrainedConfig:
    """With learned positions, layer normalisation and no rotary embedding."""
    return GPT2Config(
        n_layer=2,
        n_head=4,
        n_embd=32,
        n_positions=MAX_MODEL_LEN,
        **{name: _COMMON[name] for name in ("vocab_size", "bos_token_id", "eos_token_id", "initializer_range")},
    )


def _gpt_oss_config() -> PreTrainedConfig:
    """With attention sinks, and experts."""
    return GptOssConfig(
        num_hidden_layers=2,
        layer_types=["sliding_attention", "full_attention"],
        sliding_window=SLIDING_WINDOW,
        num_local_experts=4,
        num_experts_per_tok=2,
        **_COMMON,
    )


_CONFIGS: dict[str, Callable[[], PreTrainedConfig]] = {
    "tiny-llama": _llama_config,
    "tiny-qwen3": _qwen3_config,
    "tiny-gemma3": _gemma3_config,
    "tiny-gemma2": _gemma2_config,
    "tiny-mistral": _mistral_config,
    "tiny-qwen2": _qwen2_config,
    "tiny-phi3": _phi3_config,
    "tiny-gpt2": _gpt2_config,
    "tiny-gpt-oss": _gpt_oss_config,
}
TINY_MODELS = tuple(_CONFIGS)


def tiny_model(name: str, *, seed: int = 0, kernels: CpuKernels | None = None, shard: Shard = WHOLE) -> LoadedModel:
    """A model of `TINY_MODELS` in float32 on the CPU; the same weights for the same seed. With kernels it is fused."""
    model = causal_model(name, seed=seed)
    num_parameters = model.num_parameters()
    cut(name, model, shard)
    greedy_head = fuse(model, kernels) if kernels is not None else None
    return LoadedModel(
        name=name,
        model=model,
        config=model.config,
        tokenizer=byte_tokenizer(),
        dtype=torch.float32,
        device=torch.device("cpu"),
        num_parameters=num_parameters,
        kernels=kernels,
        greedy_head=greedy_head,
        max_model_len=MAX_MODEL_LEN,
        eos_token_ids=frozenset({EOS_TOKEN_ID}),
        bos_token_id=BOS_TOKEN_ID,
    )


def causal_model(
    name: str,
    *,
    vocab_size: int = VOCAB_SIZE,
    head_dim: int | None = None,
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
) -> Any:
    """The module alone, in evaluation mode, with paged attention."""
    register_paged_attention()
    config = _CONFIGS[name]()
    config.vocab_size = vocab_size
    if head_dim is not None:
        config.head_dim = head_dim
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(  # type: ignore[no-untyped-call]
            config, attn_implementation=ATTN_IMPLEMENTATION, dtype=dtype
        )
    return model.eval()


def byte_tokenizer() -> PreTrainedTokenizerFast:
    """One token a byte, in the byte-level alphabet of GPT-2; ids 0 to 255, then the special tokens."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    alphabet = {symbol: index for index, symbol in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    tokenizer = Tokenizer(models.BPE(vocab=alphabet, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in ("<bos>", "<eos>", "<pad>")])
    return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=tokenizer,
        bos_token="<bos>",
        eos_token="<eos>",
        pad_token="<pad>",
        clean_up_tokenization_spaces=False,
    )
