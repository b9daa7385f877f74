"""The modules that stand for linear layers, normalisations and gated feed-forwards of transformers, on the CPU."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from executor_service.kernels.cpu import CpuKernels, Gate
from executor_service.kernels.products import PackedWeight, Products


class PackedLinear(nn.Module):
    """A linear layer whose weight oneDNN has packed. `weight` is gone: it would double the memory.

    The two operators are those that torch's own compiler emits for linear layers on the CPU.
    """

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self._packed = torch.ops.mkldnn._reorder_linear_weight(linear.weight.detach(), 1)
        self._bias = None if linear.bias is None else linear.bias.detach()

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        product: torch.Tensor = torch.ops.mkldnn._linear_pointwise(states, self._packed, self._bias, "none", [], "")
        return product


class PanelLinear(nn.Module):
    """A linear layer whose weight is packed for our own products. `weight` is gone, as in PackedLinear."""

    def __init__(self, packed: PackedWeight, bias: torch.Tensor | None, products: Products) -> None:
        """bias [O], or None."""
        super().__init__()
        self._products = products
        self.packed = packed
        self.bias = None if bias is None else bias.detach().float()

    @classmethod
    def of(cls, linear: nn.Linear, products: Products) -> PanelLinear:
        return cls(products.pack(linear.weight.detach()), linear.bias, products)

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        return self._products.linear(states, self.packed, self.bias)


class PanelEmbedding(nn.Module):
    """An embedding whose table is packed, since it is the output head too. What the original does with rows that it has
    looked up it does still: it is given a table of these rows alone.
    """

    def __init__(self, embedding: nn.Embedding, packed: PackedWeight, products: Products) -> None:
        super().__init__()
        self.num_embeddings = embedding.num_embeddings
        embedding.weight = nn.Parameter(embedding.weight.detach()[:0], requires_grad=False)
        embedding.padding_idx = None  # of gradients alone
        self._embedding = embedding
        self._packed = packed
        self._products = products

    def forward(self, token_ids: torch.Tensor) -> torch.Tensor:
        rows = self._products.rows(self._packed, token_ids.flatten())
        self._embedding.weight = nn.Parameter(rows, requires_grad=False)
        states: torch.Tensor = self._embedding(torch.arange(len(rows)).view_as(token_ids))
        return states


class FusedNorm(nn.Module):
    def __init__(self, weight: torch.Tensor, epsilon: float, *, rounds_first: bool, kernels: CpuKernels) -> None:
        super().__init__()
        self.weight = weight.float()  # [D], what multiplies the normalised states
        self.epsilon = epsilon
        self.rounds_first = rounds_first
        self._kernels = kernels

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        # The kernel takes rows as they lie in memory; heads before tokens are the one other order that models produce.
        if not (states.is_contiguous() or (states.dim() > 2 and states.transpose(-3, -2).is_contiguous())):
            states = states.contiguous()
        return self._kernels.normalise(states, self.weight, self.epsilon, rounds_first=self.rounds_first)


class FusedGatedFeedForward(nn.Module):
    """down(activation(gate(x)) * up(x)), with one product for gate and up."""

    def __init__(self, module: Any, gate: Gate, kernels: CpuKernels) -> None:
        super().__init__()
        weight = torch.cat((module.gate_proj.weight, module.up_proj.weight))
        self.gate_up_proj = nn.Linear(weight.shape[1], weight.shape[0], bias=False, device="meta")
        self.gate_up_proj.weight = nn.Parameter(weight, requires_grad=False)
        self.down_proj = module.down_proj
        self.activation = gate
        self._kernels = kernels

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.down_proj(self._kernels.gate(self.gate_up_proj(states), self.activation))
        return result
