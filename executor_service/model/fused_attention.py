"""Attention with one product for queries, keys and values, and one kernel from there to the cache.

A module is replaced only if its code names nothing but what FusedAttention does, and if that gives on random input the
queries, keys, values and output that the module gives. A trial also tells what the module asks of its attention.
"""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from executor_service.kernels.cpu import CpuKernels, HeadNorms
from executor_service.model.agreement import agree, epsilon_of, is_rms_norm, sample
from executor_service.model.attention import AttentionOptions, PagedContext

# All that the forward of a module may name: projections, norms of heads, rotation, attention. A cache is never given.
_KNOWN_NAMES = frozenset(
    {
        "q_proj", "k_proj", "v_proj", "o_proj", "q_norm", "k_norm", "apply_rotary_pos_emb",
        "ALL_ATTENTION_FUNCTIONS", "get_interface", "_attn_implementation", "eager_attention_forward",
        "attention_dropout", "training", "scaling", "sliding_window", "attn_logit_softcapping",
        "config", "getattr", "head_dim", "layer_idx", "update",
        "shape", "view", "reshape", "transpose", "contiguous",
    }
)  # fmt: skip
_TRIAL_TOKENS = 3


class FusedAttention(nn.Module):
    """Stands for a module of attention, for hidden states [1, T, hidden]."""

    def __init__(
        self, module: Any, options: AttentionOptions, head_norms: HeadNorms | None, kernels: CpuKernels
    ) -> None:
        super().__init__()
        projections = (module.q_proj, module.k_proj, module.v_proj)
        self.qkv_proj = _joined(projections)
        self.o_proj = module.o_proj
        self.layer: int = module.layer_idx
        self.options = options
        self.head_norms = head_norms
        self.head_dim: int = module.head_dim
        self.num_heads = module.q_proj.out_features // module.head_dim
        self.num_kv_heads = module.k_proj.out_features // module.head_dim
        self._kernels = kernels

    def forward(
        self,
        hidden_states: torch.Tensor,
        position_embeddings: tuple[torch.Tensor, torch.Tensor],
        attention_mask: torch.Tensor | None = None,
        *,
        paged_context: PagedContext,
        **kwargs: Any,
    ) -> tuple[torch.Tensor, None]:
        key_slots, value_slots = paged_context.kv_cache.layer_slots(self.layer)
        slot_mapping = paged_context.batch.slot_mapping
        queries = self.place(hidden_states, position_embeddings, key_slots, value_slots, slot_mapping)
        attended = paged_context.attend(self.layer, queries, self.options)
        return self.o_proj(attended.view(1, len(attended), -1)), None

    def place(
        self,
        hidden_states: torch.Tensor,
        position_embeddings: tuple[torch.Tensor, torch.Tensor],
        key_slots: torch.Tensor,
        value_slots: torch.Tensor,
        slot_mapping: torch.Tensor,
    ) -> torch.Tensor:
        """Queries [T, H, D]; keys and values are stored."""
        cosine, sine = (angles[0].contiguous() for angles in position_embeddings)
        states = self.qkv_proj(hidden_states)[0]
        return self._kernels.place_heads(states, key_slots, value_slots, slot_mapping, cosine, sine, self.head_norms)


def fused_attention(module: Any, kernels: CpuKernels) -> nn.Module | None:
    """What stands for a module, or None if nothing does."""
    if not _may_be_fused(module):
        return None
    trial = _Trial(module, kernels)
    if trial.options is None or trial.options.sinks is not None:
        return None
    for head_norms in _possible_norms(module):
        fused = FusedAttention(module, trial.options, head_norms, kernels)
        if trial.agrees(fused):
            return fused
    return None


def _may_be_fused(module: Any) -> bool:
    forward = inspect.unwrap(type(module).forward)
    if not _KNOWN_NAMES.issuperset(forward.__code__.co_names):
        return False
    projections = [getattr(module, name, None) for name in ("q_proj", "k_proj", "v_proj")]
    if not all(type(projection) is nn.Linear for projection in projections) or not hasattr(module, "o_proj"):
        return False
    return len({projection.bias is None for projection in projections if projection is not None}) == 1


def _joined(projections: tuple[nn.Linear, ...]) -> nn.Linear:
    weight = torch.cat([projection.weight for projection in projections])
    biases: list[torch.Tensor] = [projection.bias for projection in projections if projection.bias is not None]
    joined = nn.Linear(weight.shape[1], weight.shape[0], bias=False, device="meta")
    joined.weight = nn.Parameter(weight, requires_grad=False)
    if biases:
        joined.bias = nn.Parameter(torch.cat(biases), requires_grad=False)
    return joined


def _possible_norms(module: Any) -> Iterator[HeadNorms | None]:
    """Norms of heads add 1 to their weights or not, and round before they multiply by them or after."""
    query_norm: Any = getattr(module, "q_norm", None)
    key_norm: Any = getattr(module, "k_norm", None)
    if query_norm is None and key_norm is None:
        yield None
        return
    if not all(is_rms_norm(norm) and norm.weight.shape == (module.head_dim,) for norm in (query_norm, key_norm)):
        return
    for offset, rounds_first in itertools.product((0.0, 1.0), (False, True)):
        yield HeadNorms(
            query_weight=query_norm.weight.float() + offset,
            key_weight=key_norm.weight.float() + offset,
            epsilon=epsilon_of(query_norm),
            rounds_first=rounds_first,
        )


class _Trial:
    """Runs a module of attention on random input, with a context that notes what it asks for."""

    def __init__(self, module: Any, kernels: CpuKernels) -> None:
        dtype = kernels.dtype
        self._states = sample(1, _TRIAL_TOKENS, module.q_proj.in_features, dtype=dtype)
        angles = sample(1, _TRIAL_TOKENS, module.head_dim // 2, dtype=dtype).repeat(1, 1, 2)
        self._position_embeddings = (angles.cos(), angles.sin())
        self._attended = sample(
            _TRIAL_TOKENS, module.q_proj.out_features // module.head_dim, module.head_dim, dtype=dtype
        )
        self.options: AttentionOptions | None = None
        try:
            self._output = module(
                hidden_states=self._states,
                position_embeddings=self._position_embeddings,
                attention_mask=None,
                paged_context=self,
            )[0]
        except Exception:  # it wants something else than it is given, so it does something else
            self.options = None

    def write_and_attend(
        self,
        layer: int,
        queries: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        options: AttentionOptions,
    ) -> torch.Tensor:
        """What `PagedContext` does for a module."""
        self._heads = torch.cat((queries, keys, values), dim=1)
        self._num_kv_heads = keys.shape[1]
        self.options = options
        return self._attended

    def agrees(self, fused: FusedAttention) -> bool:
        def ours() -> torch.Tensor:
            num_slots, _, head_dim = self._heads.shape
            slots = self._states.new_zeros(2, num_slots, self._num_kv_heads, head_dim)
            reversed_slots = torch.arange(num_slots - 1, -1, -1)
            queries = fused.place(self._states, self._position_embeddings, slots[0], slots[1], reversed_slots)
            return torch.cat((queries, slots[0].flip(0), slots[1].flip(0)), dim=1)

        def output() -> torch.Tensor:
            result: torch.Tensor = fused.o_proj(self._attended.view(1, _TRIAL_TOKENS, -1))
            return result

        return agree(ours, lambda: self._heads) and agree(output, lambda: self._output)
