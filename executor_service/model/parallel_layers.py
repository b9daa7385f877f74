"""The two layers at which ranks exchange tensors: a sum at the end of a block, and the logits of all vocabulary parts.

Both compute alone until they are joined to a group, so that a model can be cut, fused and checked before ranks meet.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import nn


class RowParallel(nn.Module):
    """A linear layer cut by inputs: the sum over the ranks of what each makes of its inputs.

    The bias is that of rank 0 alone.
    """

    def __init__(self, partial: nn.Module) -> None:
        super().__init__()
        self.partial = partial
        self.group: dist.ProcessGroup | None = None

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.partial(states)
        if self.group is not None:
            dist.all_reduce(result, group=self.group)
        return result


class VocabularyParallelHead(nn.Module):
    """An output head cut by vocabulary. Rank 0 gets the logits [..., V] of all, the others keep their own.

    Parts are of one size: the last ones are filled up with zeros.
    """

    def __init__(self, head: Any, rank: int, size: int) -> None:
        super().__init__()
        self.vocab_size: int = head.weight.shape[0]
        self.rank, self.size = rank, size
        self.group: dist.ProcessGroup | None = None
        part_size = -(-self.vocab_size // size)
        self.partial = nn.Linear(head.weight.shape[1], part_size, bias=head.bias is not None, device="meta")
        self.partial.weight = nn.Parameter(_part(head.weight.detach(), rank, part_size), requires_grad=False)
        if head.bias is not None:
            self.partial.bias = nn.Parameter(_part(head.bias.detach(), rank, part_size), requires_grad=False)

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        part: torch.Tensor = self.partial(states)
        if self.group is None or part.numel() == 0:  # nobody samples: all ranks know
            return part
        parts = [torch.empty_like(part) for _ in range(self.size)] if self.rank == 0 else None
        dist.gather(part.contiguous(), parts, dst=0, group=self.group)
        return part if parts is None else torch.cat(parts, dim=-1)[..., : self.vocab_size]


def join(model: nn.Module, group: dist.ProcessGroup) -> None:
    """From now on the layers exchange tensors with those of the other ranks, which must all run the same passes."""
    for module in model.modules():
        if isinstance(module, RowParallel | VocabularyParallelHead):
            module.group = group


def _part(whole: torch.Tensor, rank: int, size: int) -> torch.Tensor:
    """Rows [rank * size, (rank + 1) * size), a view where there are so many."""
    part = whole[rank * size : (rank + 1) * size]
    missing = part.new_zeros(size - len(part), *part.shape[1:])
    return part if not len(missing) else torch.cat((part, missing))
