"""A model made without memory is the one that torch makes, whatever its constructor does."""

from __future__ import annotations

import torch
from torch import nn

from executor_service.model.lean_outlines import make_lean


class Embedding(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rows = nn.Embedding(8, 4)
        self.positions = torch.arange(0, 8, 2)


class EmbeddingOfPositions(Embedding):
    def __init__(self) -> None:
        super().__init__()
        self.positions = self.positions + torch.ones(4, dtype=torch.long)


def test_first_values_are_left_out_and_positions_have_memory() -> None:
    with torch.device("meta"):
        made = make_lean(Embedding)
    assert (made.rows.weight.device.type, made.rows.weight.shape) == ("meta", (8, 4))
    assert made.positions.tolist() == [0, 2, 4, 6]


def test_what_has_memory_gets_its_first_values() -> None:
    weights = [make_lean(lambda: nn.Embedding(64, 64)).weight for _ in range(2)]
    assert [0.9 < weight.std() < 1.1 for weight in weights] == [True, True]
    assert not torch.equal(*weights)


def test_a_model_that_joins_its_positions_with_tensors_without_memory_is_made_by_torch_alone() -> None:
    with torch.device("meta"):
        made = make_lean(EmbeddingOfPositions)
    assert (made.positions.device.type, made.positions.shape) == ("meta", (4,))


def test_memory_like_that_of_a_tensor_without_is_where_it_was_asked_for() -> None:
    like = make_lean(lambda: torch.empty_like(torch.ones(2, 3, dtype=torch.bfloat16, device="meta"), device="cpu"))
    assert (like.device.type, like.dtype, like.shape) == ("cpu", torch.bfloat16, (2, 3))
