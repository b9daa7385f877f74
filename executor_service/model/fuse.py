"""Puts faster modules in the place of those of transformers, on the CPU: same results, fewer and larger operations.

- Linear layers in bfloat16 multiply by weights that are packed beforehand, for our own kernel where the processor has
  AVX2, else for oneDNN, which packs them in every call otherwise.
- The output head is packed too, where it lies, and keeps no logits that nobody asks for (`greedy_head.py`).
- Attention has one product for queries, keys and values, and one kernel up to the cache (`fused_attention.py`). Where
  that does not fit, rotary embedding alone is a kernel.
- RMS normalisation and the gate of a feed-forward are one kernel each, not up to ten operations.
- A decoder layer all of whose parts are ours is one call (`fused_layer.py`).

A module is replaced only if the new one agrees with it on random input: class names say little about what a model of
next year computes. What is not known, or does not agree, stays as it is.
"""

from __future__ import annotations

import inspect
import itertools
import types
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from executor_service.kernels.cpu import CpuKernels, Gate
from executor_service.kernels.products import Products
from executor_service.model.agreement import agree, epsilon_of, is_rms_norm, sample
from executor_service.model.fused_attention import fused_attention
from executor_service.model.fused_layer import FusedLayer, agrees, fused_layer
from executor_service.model.fused_parts import FusedGatedFeedForward, FusedNorm, PackedLinear, PanelLinear
from executor_service.model.greedy_head import GreedyHead

_ROTARY_NAME = "apply_rotary_pos_emb"

_GATES: dict[str, Gate] = {"SiLUActivation": Gate.SILU, "SiLU": Gate.SILU, "GELUTanh": Gate.GELU_TANH}


def fuse(model: nn.Module, kernels: CpuKernels, *, packs_weights: bool = True) -> GreedyHead | None:
    """Replace what can be replaced, in place. The model is on the CPU, in evaluation mode and of the kernels' dtype.

    ``packs_weights``: linear layers too; else they are left for quantisation, the output head among them.

    Returns the head for tokens that are the largest logits, if the model's is one.
    """
    with torch.inference_mode():
        greedy_head = GreedyHead.take_over(model, kernels.products) if packs_weights else None
        _replace(model, lambda module: _attention_maker(module, kernels))
        _replace(model, lambda module: _gated_feed_forward_maker(module, kernels))
        _replace(model, lambda module: _norm_maker(module, kernels))
        if packs_weights:
            _replace(model, lambda module: _linear_maker(module, kernels))
        _fuse_rotary(model, kernels)
        _replace(model, lambda module: _layer_maker(module, kernels))
        _end_with_rows(model)
    return greedy_head


def multiplies_all(model: nn.Module) -> bool:
    """Whether `fuse` multiplies by all weights of a model with our own products, if the processor has them.

    The model may be on no device: only shapes are looked at.
    """
    tables = {id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)}
    packed = {
        id(module.weight)
        for module in model.modules()
        if type(module) is nn.Linear and Products.has_shape(module.weight)
    }
    return all(id(one) in tables | packed for one in model.parameters() if one.dim() > 1)


# Makes the module that stands for another one.
_Maker = Callable[[Any], nn.Module]


def _replace(model: nn.Module, find_maker: Callable[[nn.Module], _Maker | None]) -> None:
    """Modules of one class compute alike, so the first of each decides for all."""
    makers: dict[type, _Maker | None] = {}
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if type(child) not in makers:
                makers[type(child)] = find_maker(child)
            maker = makers[type(child)]
            if maker is not None:
                setattr(parent, name, maker(child))


def _attention_maker(module: nn.Module, kernels: CpuKernels) -> _Maker | None:
    if fused_attention(module, kernels) is None:
        return None
    return lambda attention: fused_attention(attention, kernels) or attention


def _linear_maker(module: nn.Module, kernels: CpuKernels) -> _Maker | None:
    if type(module) is not nn.Linear or module.weight.dtype is not torch.bfloat16:
        return None
    to_onednn = PackedLinear if torch.ops.mkldnn._is_mkldnn_bf16_supported() else None
    products = kernels.products
    if products is None:
        return to_onednn

    def make(linear: nn.Linear) -> nn.Module:
        if products.can_pack(linear.weight):
            return PanelLinear.of(linear, products)
        return linear if to_onednn is None else to_onednn(linear)

    return make


def _layer_maker(module: Any, kernels: CpuKernels) -> _Maker | None:
    return (lambda layer: fused_layer(layer, kernels) or layer) if agrees(module, kernels) else None


def _end_with_rows(model: Any) -> None:
    """Nobody looks at states behind the last layer but at those of the rows whose logits are asked for."""
    for layer in [module for module in model.modules() if isinstance(module, FusedLayer)]:
        if layer.layer_index == model.config.get_text_config(decoder=True).num_hidden_layers - 1:
            layer.end_with_rows()


def _norm_maker(module: Any, kernels: CpuKernels) -> _Maker | None:
    """Weights are factors, or what is added to 1; they multiply before or after the result is rounded."""
    if not is_rms_norm(module):
        return None
    states = sample(1, 3, 2, module.weight.shape[0], dtype=kernels.dtype)
    for offset, rounds_first in itertools.product((0.0, 1.0), (False, True)):

        def make(norm: Any, offset: float = offset, rounds_first: bool = rounds_first) -> nn.Module:
            weight = norm.weight.float() + offset
            return FusedNorm(weight, epsilon_of(norm), rounds_first=rounds_first, kernels=kernels)

        if agree(lambda: make(module)(states), lambda: module(states)):  # called at once
            return make
    return None


def _gated_feed_forward_maker(module: Any, kernels: CpuKernels) -> _Maker | None:
    projections: list[Any] = [getattr(module, name, None) for name in ("gate_proj", "up_proj", "down_proj")]
    gate = _GATES.get(type(getattr(module, "act_fn", None)).__name__)
    if gate is None or not all(type(projection) is nn.Linear for projection in projections):
        return None
    if any(projection.bias is not None for projection in projections):
        return None

    def make(feed_forward: Any) -> nn.Module:
        return FusedGatedFeedForward(feed_forward, gate, kernels)

    states = sample(2, module.gate_proj.in_features, dtype=kernels.dtype)
    return make if agree(lambda: make(module)(states), lambda: module(states)) else None


def _fuse_rotary(model: nn.Module, kernels: CpuKernels) -> None:
    """Attention modules call `apply_rotary_pos_emb`, a function of their file; here they find the kernel instead."""
    for module in model.modules():
        forward = inspect.unwrap(type(module).forward)
        original = forward.__globals__.get(_ROTARY_NAME)
        if original is None or _ROTARY_NAME not in forward.__code__.co_names:
            continue
        fused = FusedRotary(original, kernels)
        if fused.agrees():
            # A copy of the method with a name space of its own: other models of this process keep theirs.
            namespace = forward.__globals__ | {_ROTARY_NAME: fused}
            copy = types.FunctionType(
                forward.__code__, namespace, forward.__name__, forward.__defaults__, forward.__closure__
            )
            copy.__kwdefaults__ = forward.__kwdefaults__
            module.forward = types.MethodType(copy, module)


class FusedRotary:
    """Stands for `apply_rotary_pos_emb`: rotates queries and keys [1, heads, T, D] in place where they are whole."""

    def __init__(self, original: Callable[..., tuple[torch.Tensor, torch.Tensor]], kernels: CpuKernels) -> None:
        self._original = original
        self._kernels = kernels

    def __call__(
        self, q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        queries, keys = q[0].transpose(0, 1), k[0].transpose(0, 1)  # [T, heads, D]
        is_served = queries.is_contiguous() and keys.is_contiguous() and q.shape[-1] == cos.shape[-1] and not kwargs
        if not is_served or len(q) > 1 or cos.dtype is not self._kernels.dtype:
            return self._original(q, k, cos, sin, **kwargs)
        cosine, sine = cos[0].contiguous(), sin[0].contiguous()
        self._kernels.rotate(queries, cosine, sine)
        self._kernels.rotate(keys, cosine, sine)
        return q, k

    def agrees(self) -> bool:
        dtype = self._kernels.dtype
        query, key = (sample(1, 3, heads, 8, dtype=dtype).transpose(1, 2) for heads in (2, 1))
        angles = sample(1, 3, 4, dtype=dtype).repeat(1, 1, 2)  # both halves turn by the same angles
        return agree(
            lambda: torch.cat(self(query.clone(), key.clone(), angles.cos(), angles.sin()), dim=1),
            lambda: torch.cat(self._original(query, key, angles.cos(), angles.sin()), dim=1),
        )
