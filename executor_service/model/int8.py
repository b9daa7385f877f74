"""Weights of linear layers in 8 bits: w ≈ q · s, with whole numbers q and one factor s for each output channel.

Symmetric, by the largest weight of a channel, computed when the model is loaded; no data is needed. Activations stay
what they are. A product with few rows is torch's own of a float by an int8 matrix, which reads half the bytes of
bfloat16. Its time grows with the rows, so with more of them blocks of the weights are widened to the type of the model
and multiplied by as always: whole numbers up to 127 are exact in bfloat16 and float16 too. (docs/adr/0016)

Where the table of embeddings is the weight of the output head, both keep one copy of it in 8 bits.

Legend: N outputs, K inputs, T rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from executor_service.model.errors import UnsupportedModelError

# A head of 262,144 by 640 took, on two cores with AMX, 18 ms by int8 with 1 or 4 rows and 70 with 16; widened 33 to 38,
# and with 64 rows 62; in bfloat16 13, with 64 rows 32. Smaller layers are alike.
MAX_ROWS_BY_INT8 = 8
INPUTS_BY_INT8 = 32  # inputs that it takes at once
# Weights that are widened at once on a CPU, to the same place each time. 1 MiB took 1.2 times as long, 16 as long.
BLOCK_BYTES = 4 * 2**20
# Channels whose factors are worked out at once: in float32 a large table would not fit beside itself.
CHANNELS_AT_ONCE = 4096
_LARGEST = 127


class Workspace:
    """Where the weights of a model are widened, one block at a time. For one thread, on a CPU."""

    def __init__(self) -> None:
        self._memory = torch.empty(BLOCK_BYTES, dtype=torch.uint8)

    def num_channels(self, num_inputs: int, dtype: torch.dtype) -> int:
        """Channels that fit, at least one."""
        return max(1, BLOCK_BYTES // (num_inputs * dtype.itemsize))

    def widen(self, values: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """values [n, K] int8. Returns them as another type, in the workspace if they fit there."""
        if values.numel() * dtype.itemsize > BLOCK_BYTES:
            return values.to(dtype)
        return self._memory.view(dtype)[: values.numel()].view(values.shape).copy_(values)


class Int8Weight(nn.Module):
    """A matrix [N, K]. A module, so that those who share it share it on every device."""

    values: torch.Tensor  # [N, K] int8
    scales: torch.Tensor  # [N] of the model's dtype

    def __init__(self, weight: torch.Tensor, workspace: Workspace) -> None:
        super().__init__()
        self._workspace = workspace
        values = torch.empty(weight.shape, dtype=torch.int8)
        scales = torch.empty(len(weight), dtype=weight.dtype)
        for start in range(0, len(weight), CHANNELS_AT_ONCE):
            rows = slice(start, start + CHANNELS_AT_ONCE)
            exact = weight[rows].float()
            # Rounded as it will be used: the whole numbers follow from it. A channel of zeros has any factor but 0.
            rounded = (exact.abs().amax(dim=1) / _LARGEST).to(weight.dtype)
            scales[rows] = torch.where(rounded == 0, 1, rounded)
            quotients = exact / scales[rows].float().unsqueeze(1)
            values[rows] = quotients.round_().clamp_(-_LARGEST, _LARGEST).to(torch.int8)
        self.register_buffer("values", values)
        self.register_buffer("scales", scales)

    def multiply(self, states: torch.Tensor) -> torch.Tensor:
        """states [T, K] of the scales' dtype. Returns [T, N]."""
        on_cpu = states.device.type == "cpu"
        # That operator reads beyond the ends of rows that are no multiple of its step.
        if on_cpu and 0 < len(states) <= MAX_ROWS_BY_INT8 and states.shape[1] % INPUTS_BY_INT8 == 0:
            product: torch.Tensor = torch.ops.aten._weight_int8pack_mm(states.contiguous(), self.values, self.scales)
            return product
        if not on_cpu:
            return (states @ self.values.to(states.dtype).t()).mul_(self.scales)
        result = states.new_empty(len(states), len(self.values))
        num_channels = self._workspace.num_channels(self.values.shape[1], states.dtype)
        for start in range(0, len(self.values), num_channels):
            channels = slice(start, start + num_channels)
            widened = self._workspace.widen(self.values[channels], states.dtype)
            result[:, channels] = states @ widened.t()
        return result.mul_(self.scales)

    def rows(self, indexes: torch.Tensor) -> torch.Tensor:
        """indexes [T]. Returns rows [T, K] of the matrix."""
        return self.values[indexes].to(self.scales.dtype) * self.scales[indexes].unsqueeze(1)


class Int8Linear(nn.Module):
    bias: torch.Tensor | None  # [N]

    def __init__(self, weight: Int8Weight, bias: torch.Tensor | None) -> None:
        super().__init__()
        self.weight = weight
        self.register_buffer("bias", None if bias is None else bias.detach())

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        product = self.weight.multiply(states.reshape(-1, states.shape[-1]))
        if self.bias is not None:
            product += self.bias
        return product.view(*states.shape[:-1], -1)


class Int8Embedding(nn.Module):
    """A table of embeddings: the module of the model, over a table of just the rows that are looked up.

    So whatever that module does besides, such as scaling, is done.
    """

    def __init__(self, embedding: nn.Embedding, weight: Int8Weight) -> None:
        super().__init__()
        self.num_embeddings = embedding.num_embeddings
        self.weight = weight
        embedding.weight = nn.Parameter(weight.scales.new_empty(0), requires_grad=False)
        embedding.padding_idx = None  # it matters in training alone, and would have to be a row of the small table
        self._original = embedding

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        table = {"weight": self.weight.rows(input_ids.flatten())}  # [T, K]
        places = torch.arange(input_ids.numel(), device=input_ids.device).view(input_ids.shape)
        embeddings: torch.Tensor = torch.func.functional_call(self._original, table, (places,))
        return embeddings


def quantize(name: str, model: Any) -> None:
    """Replace the linear layers and the table of embeddings, in place.

    Raises UnsupportedModelError where most of the weights are in other modules: half a promise would be none.
    """
    linears = list(_linears(model))
    embedding = model.get_input_embeddings()
    covered = {id(linear.module.weight) for linear in linears} | {id(embedding.weight)}
    matrices = {id(parameter): parameter.numel() for parameter in model.parameters() if parameter.dim() > 1}
    num_covered = sum(count for key, count in matrices.items() if key in covered)
    if 2 * num_covered < sum(matrices.values()):
        raise UnsupportedModelError(f"{name} has most of its weights outside linear layers, which alone int8 covers")
    workspace = Workspace()
    made: dict[int, Int8Weight] = {}  # by the parameter that it stands for
    with torch.inference_mode():
        while linears:
            linear = linears.pop()  # whose weight is let go with it
            key, bias = id(linear.module.weight), linear.module.bias
            if key not in made:
                made[key] = Int8Weight(linear.weight, workspace)
            setattr(linear.parent, linear.attribute, Int8Linear(made[key], bias))
        table = made.get(id(embedding.weight)) or Int8Weight(embedding.weight.detach(), workspace)
        model.set_input_embeddings(Int8Embedding(embedding, table))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Linear:
    """A linear layer and where it hangs."""

    parent: nn.Module
    attribute: str
    module: Any
    weight: torch.Tensor  # [N, K]


def _linears(model: nn.Module) -> Iterator[_Linear]:
    from transformers.pytorch_utils import Conv1D  # a linear layer that keeps its weight as [K, N]

    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if type(child) is nn.Linear:
                yield _Linear(parent=parent, attribute=name, module=child, weight=child.weight.detach())
            elif type(child) is Conv1D:
                yield _Linear(parent=parent, attribute=name, module=child, weight=child.weight.detach().t())
