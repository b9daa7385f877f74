"""Decoder layers as one kernel each, where all parts are fused already and are put together in one of two known ways:
states + attention(norm(states)), then the same with the feed-forward; what is added may be normalised once more.

A layer is replaced only if the new one agrees with it on random input, cache included.

Of the last layer a prompt's tokens leave their keys and values and no more: logits are asked for its end alone. So what
follows is computed for those rows, each as a decode.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn

from executor_service.kernels.cpu import CpuKernels, Gate
from executor_service.kernels.layer import LayerKernel, LayerWeights, LinearWeights
from executor_service.kv.cache import KVCache, KVCacheSpec
from executor_service.model.agreement import agree, sample
from executor_service.model.attention import PagedContext
from executor_service.model.batch import RaggedBatch
from executor_service.model.device_batch import DeviceBatch
from executor_service.model.fused_attention import FusedAttention
from executor_service.model.fused_parts import FusedGatedFeedForward, FusedNorm, PanelLinear

_TRIAL_TOKENS = 3


class FusedLayer(nn.Module):
    """Stands for a decoder layer. What a model asks of its layers beside running them, the original answers."""

    def __init__(self, layer: Any, kernel: LayerKernel) -> None:
        super().__init__()
        self.layer = layer
        self.layer_index: int = layer.self_attn.layer
        self._kernel = kernel

    def end_with_rows(self) -> None:
        """It is the model's last one: other states than those of the batch's `logits_rows` mean nothing."""
        self._kernel.end_with_rows()

    def forward(
        self,
        hidden_states: torch.Tensor,
        *,
        position_embeddings: tuple[torch.Tensor, torch.Tensor],
        paged_context: PagedContext,
        **kwargs: Any,
    ) -> torch.Tensor:
        """hidden_states [1, T, hidden]. Returns the same."""
        cosine, sine = (angles[0].contiguous() for angles in position_embeddings)
        states = hidden_states.clone(memory_format=torch.contiguous_format)
        slots = paged_context.kv_cache.layer_slots(self.layer_index)
        self._kernel.run(paged_context.batch.layer_pass, states, *slots, cosine, sine)
        return states

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("layer"), name)


def fused_layer(layer: Any, kernels: CpuKernels) -> FusedLayer | None:
    """What stands for a layer, or None if nothing does."""
    weights = _weights_of(layer, kernels)
    if weights is None:
        return None
    return FusedLayer(layer, kernels.layer(weights))


def agrees(layer: Any, kernels: CpuKernels) -> bool:
    """Whether a layer and what would stand for it compute the same."""
    fused = fused_layer(layer, kernels)
    if fused is None:
        return False
    attention = layer.self_attn
    spec = KVCacheSpec(
        num_layers=attention.layer + 1,
        num_kv_heads=attention.num_kv_heads,
        head_dim=attention.head_dim,
        block_size=_TRIAL_TOKENS,
        dtype=kernels.dtype,
    )
    states = sample(1, _TRIAL_TOKENS, attention.qkv_proj.packed.num_inputs, dtype=kernels.dtype)
    angles = sample(1, _TRIAL_TOKENS, attention.head_dim // 2, dtype=kernels.dtype).repeat(1, 1, 2)

    def run(module: Any) -> torch.Tensor:
        cache = KVCache(spec, num_blocks=1, num_swap_blocks=0)
        context = PagedContext(
            kv_cache=cache,
            batch=DeviceBatch(_trial_batch(), spec=spec, device=torch.device("cpu")),
            kernels=kernels,
        )
        output = module(
            states,
            attention_mask=None,
            position_ids=None,
            position_embeddings=(angles.cos(), angles.sin()),
            paged_context=context,
        )
        keys, values = cache.layer_slots(attention.layer)
        return torch.cat([part.flatten() for part in (output, keys, values)])

    return agree(lambda: run(fused), lambda: run(layer))


def _trial_batch() -> RaggedBatch:
    """The beginning of a prompt."""
    positions = np.arange(_TRIAL_TOKENS)
    return RaggedBatch(
        token_ids=positions,
        positions=positions,
        query_lens=np.array([_TRIAL_TOKENS], dtype=np.int32),
        context_lens=np.array([_TRIAL_TOKENS], dtype=np.int32),
        block_tables=np.zeros((1, 1), dtype=np.int32),
        num_decodes=0,
        logits_rows=positions[-1:],
    )


def _weights_of(layer: Any, kernels: CpuKernels) -> LayerWeights | None:
    """None where a part is missing, or is not one of ours."""
    attention, feed_forward = getattr(layer, "self_attn", None), getattr(layer, "mlp", None)
    if not isinstance(attention, FusedAttention) or not isinstance(feed_forward, FusedGatedFeedForward):
        return None
    norms = _norms_of(layer)
    linears: list[Any] = [attention.qkv_proj, attention.o_proj, feed_forward.gate_up_proj, feed_forward.down_proj]
    if norms is None or not all(isinstance(linear, PanelLinear) for linear in linears):
        return None
    if not kernels.serves_chunks(attention.head_dim):
        return None
    first, heads, options = norms["input_norm"], attention.head_norms, attention.options
    assert first is not None
    settings = {(norm.epsilon, norm.rounds_first) for norm in norms.values() if norm is not None}
    if len(settings) > 1:
        return None
    qkv, attention_output, gate_up, down = (LinearWeights(packed=linear.packed, bias=linear.bias) for linear in linears)
    return LayerWeights(
        qkv=qkv,
        attention_output=attention_output,
        gate_up=gate_up,
        down=down,
        **{name: None if norm is None else norm.weight for name, norm in norms.items()},  # type: ignore[arg-type]
        query_norm=None if heads is None else heads.query_weight,
        key_norm=None if heads is None else heads.key_weight,
        num_heads=attention.num_heads,
        num_kv_heads=attention.num_kv_heads,
        head_dim=attention.head_dim,
        window=options.window,
        norm_epsilon=first.epsilon,
        head_norm_epsilon=0.0 if heads is None else heads.epsilon,
        scaling=options.scaling,
        softcap=options.softcap,
        norms_round_first=first.rounds_first,
        head_norms_round_first=heads is not None and heads.rounds_first,
        gate_is_gelu=feed_forward.activation is Gate.GELU_TANH,
    )


def _norms_of(layer: Any) -> dict[str, FusedNorm | None] | None:
    """By the names that a layer's norms have in Llama and those after it, and in Gemma, where four are."""
    names = {"input_norm": "input_layernorm", "feed_forward_norm": "post_attention_layernorm"}
    if hasattr(layer, "pre_feedforward_layernorm"):
        names |= {
            "attention_norm": "post_attention_layernorm",
            "feed_forward_norm": "pre_feedforward_layernorm",
            "feed_forward_output_norm": "post_feedforward_layernorm",
        }
    norms = {name: getattr(layer, attribute, None) for name, attribute in names.items()}
    if not all(isinstance(norm, FusedNorm) for norm in norms.values()):
        return None
    return {"attention_norm": None, "feed_forward_output_norm": None, **norms}
