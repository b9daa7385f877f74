"""One model over several processes: which part of every layer a rank holds, and how it is cut out.

The cut is that of Megatron-LM (Shoeybi et al. 2019): the first linear layers of attention and of the feed-forward are
cut by output features, the last one by input features, so each block needs one sum over the ranks, at its end. Query
heads are dealt out in order; a KV head goes with its queries, and where there are fewer KV heads than ranks, several
ranks hold the same one. The output head is cut by vocabulary, the embedding table is whole everywhere.

Which layers these are follows from the plan that transformers has for the architecture; for two whose layers are packed
there is one here. Only the weights change: modules stay those of transformers, so what is fused or packed later finds
what it knows.

Legend: R ranks, H query heads, K KV heads, D head dimension.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

import torch
from torch import nn

from executor_service.model.errors import UnsupportedModelError
from executor_service.model.parallel_layers import RowParallel, VocabularyParallelHead


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """The part of a model that one of ``size`` processes holds."""

    rank: int
    size: int


WHOLE = Shard(rank=0, size=1)


def num_kv_heads_of_rank(num_kv_heads: int, size: int) -> int:
    return max(1, num_kv_heads // size)


class _Features(Enum):
    """What the features of a layer are, and so where they may be cut."""

    QUERY = "query heads"
    KV = "KV heads"
    FEED_FORWARD = "features of the feed-forward"


@dataclass(frozen=True, slots=True)
class _Cut:
    """A layer cut by its outputs, or by its inputs, which hold these features one after another."""

    parts: tuple[_Features, ...]
    by_inputs: bool = False


_QUERY, _KV, _FEED_FORWARD = _Features
_SEPARATE = {
    "q_proj": _Cut((_QUERY,)),
    "k_proj": _Cut((_KV,)),
    "v_proj": _Cut((_KV,)),
    "o_proj": _Cut((_QUERY,), by_inputs=True),
    "gate_proj": _Cut((_FEED_FORWARD,)),
    "up_proj": _Cut((_FEED_FORWARD,)),
    "down_proj": _Cut((_FEED_FORWARD,), by_inputs=True),
}
_PACKED = {
    "phi3": {
        "self_attn.qkv_proj": _Cut((_QUERY, _KV, _KV)),
        "self_attn.o_proj": _Cut((_QUERY,), by_inputs=True),
        "mlp.gate_up_proj": _Cut((_FEED_FORWARD, _FEED_FORWARD)),
        "mlp.down_proj": _Cut((_FEED_FORWARD,), by_inputs=True),
    },
    "gpt2": {
        "attn.c_attn": _Cut((_QUERY, _QUERY, _QUERY)),
        "attn.c_proj": _Cut((_QUERY,), by_inputs=True),
        "mlp.c_fc": _Cut((_FEED_FORWARD,)),
        "mlp.c_proj": _Cut((_FEED_FORWARD,), by_inputs=True),
    },
}

# The words of transformers for a layer cut by outputs, one cut by inputs, and one that sees each head by itself.
_STYLES = {"colwise": False, "rowwise": True}
_OF_EACH_HEAD = "replicated_with_grad_allreduce"


def check_can_be_cut(name: str, config: Any, size: int) -> None:
    """Whether a model can be cut into so many parts, by its configuration. Raises UnsupportedModelError."""
    if size == 1:
        return
    _plan_of(name, config)
    for features, count in _counts(config).items():
        enough = size % count == 0 if features is _KV and count < size else count % size == 0
        if not enough:
            raise UnsupportedModelError(
                f"{name} has {count} {features.value}, which cannot be shared out among "
                f"{size} processes (--tensor-parallel-size)"
            )


def cut(name: str, model: Any, shard: Shard) -> None:
    """Keep the part of a rank, in place. Until `parallel_layers.join` each block gives its own part of its sum.

    Raises UnsupportedModelError.
    """
    if shard.size == 1:
        return
    config = model.config
    check_can_be_cut(name, config, shard.size)
    plan, counts = _plan_of(name, config), _counts(config)
    num_heads = counts[_QUERY] // shard.size
    rank_config = copy.copy(config.get_text_config(decoder=True))
    rank_config.num_attention_heads = num_heads
    for path, module in list(model.named_modules()):
        how = next((plan[end] for end in plan if path.endswith(f".{end}")), None)
        if how is None:
            continue
        _keep_features(module, how, counts, shard)
        block_path, _, leaf = path.rpartition(".")
        block = model.get_submodule(block_path)
        if how.by_inputs:
            setattr(block, leaf, RowParallel(module))
        if how.parts[0] is _QUERY:
            _tell_heads(block, rank_config, num_heads, num_kv_heads_of_rank(counts[_KV], shard.size), _head_dim(config))
    _check_rest(name, model, plan, _head_dim(config))
    model.set_output_embeddings(VocabularyParallelHead(model.get_output_embeddings(), shard.rank, shard.size))


def _plan_of(name: str, config: Any) -> Mapping[str, _Cut]:
    """The cuts by the ends of the modules' paths."""
    text_config = config.get_text_config(decoder=True)
    if text_config.model_type in _PACKED:
        return _PACKED[text_config.model_type]
    plan = {path.rpartition(".")[2]: style for path, style in (text_config.base_model_tp_plan or {}).items()}
    cut_layers = {leaf: style for leaf, style in plan.items() if style != _OF_EACH_HEAD}
    if cut_layers.keys() != _SEPARATE.keys() or any(
        _STYLES.get(style) is not _SEPARATE[leaf].by_inputs for leaf, style in cut_layers.items()
    ):
        raise UnsupportedModelError(
            f"{name} runs in one process only: how to share out the layers of {text_config.model_type} is not known"
        )
    return _SEPARATE


def _counts(config: Any) -> dict[_Features, int]:
    text_config = config.get_text_config(decoder=True)
    num_heads: int = text_config.num_attention_heads
    return {
        _QUERY: num_heads,
        _KV: getattr(text_config, "num_key_value_heads", None) or num_heads,
        # GPT-2 says it only where it is not four times the width.
        _FEED_FORWARD: getattr(text_config, "intermediate_size", None)
        or getattr(text_config, "n_inner", None)
        or 4 * text_config.hidden_size,
    }


def _head_dim(config: Any) -> int:
    text_config = config.get_text_config(decoder=True)
    default: int = text_config.hidden_size // text_config.num_attention_heads
    return getattr(text_config, "head_dim", None) or default


def _keep_features(layer: Any, how: _Cut, counts: Mapping[_Features, int], shard: Shard) -> None:
    """Of a linear layer, or of a Conv1D of transformers, whose weight is [inputs, outputs]."""
    is_linear = isinstance(layer, nn.Linear)
    weight, bias = layer.weight.detach(), None if layer.bias is None else layer.bias.detach()
    dimension = 1 if is_linear == how.by_inputs else 0
    kept = _kept(weight.shape[dimension], how, counts, shard)
    layer.weight = nn.Parameter(weight.index_select(dimension, kept), requires_grad=False)
    if is_linear:
        layer.out_features, layer.in_features = layer.weight.shape
    else:
        layer.nx, layer.nf = layer.weight.shape
    if bias is not None and not how.by_inputs:
        layer.bias = nn.Parameter(bias.index_select(0, kept), requires_grad=False)
    elif bias is not None and shard.rank > 0:  # the sum over the ranks has it once
        layer.bias = None if is_linear else nn.Parameter(torch.zeros_like(bias), requires_grad=False)


def _kept(num_features: int, how: _Cut, counts: Mapping[_Features, int], shard: Shard) -> torch.Tensor:
    """Indices of the features that a rank keeps, of all parts."""
    width = num_features // sum(counts[part] for part in how.parts)  # features of a head; 1 in the feed-forward
    kept, start = [], 0
    for part in how.parts:
        count = counts[part]
        first = shard.rank * count // shard.size  # where ranks are more than KV heads, several have the same first
        num_kept = max(1, count // shard.size)
        kept.append(torch.arange(start + first * width, start + (first + num_kept) * width))
        start += count * width
    return torch.cat(kept)


def _tell_heads(attention: Any, rank_config: Any, num_heads: int, num_kv_heads: int, head_dim: int) -> None:
    """Let an attention module know how many heads it has, as far as its code asks."""
    attention.config = rank_config
    told = {"num_heads": num_heads, "num_key_value_heads": num_kv_heads, "split_size": num_heads * head_dim}
    told["num_key_value_groups"] = num_heads // num_kv_heads
    for attribute in told.keys() & vars(attention).keys():
        setattr(attention, attribute, told[attribute])


def _check_rest(name: str, model: Any, plan: Mapping[str, _Cut], head_dim: int) -> None:
    """All else that stands beside a cut layer must concern each head by itself, as a norm of [D] does."""
    ends = tuple(f".{end}" for end in plan)
    blocks = {path.rpartition(".")[0] for path, _ in model.named_modules() if path.endswith(ends)}
    for block in sorted(blocks):
        for child, module in model.get_submodule(block).named_children():
            if f"{block}.{child}".endswith(ends):
                continue
            for parameter, value in module.named_parameters():
                if tuple(value.shape) != (head_dim,):
                    path = f"{block}.{child}.{parameter}"
                    raise UnsupportedModelError(f"{name} runs in one process only: {path} concerns all heads at once")
