"""Single logits of several rows, changed in one go: addressed in the flattened [R * V], gathered on the host."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from executor_service.model.transfer import to_device

TokenIds = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LogitBias:
    """What a request adds to the logits of some tokens, each named once."""

    token_ids: TokenIds  # [N]
    values: NDArray[np.float32]  # [N] finite


def add_bias(logits: torch.Tensor, rows: Sequence[int], biases: Sequence[LogitBias]) -> None:
    """Add a bias to each of some rows of logits [R, V] float32, in place; a row is named at most once."""
    if rows:
        index = flat_index(rows, [bias.token_ids for bias in biases], logits.shape[1])
        flat, entries = logits.view(-1), on_device(index, logits)
        flat[entries] += on_device(np.concatenate([bias.values for bias in biases]), logits)


def forbid(logits: torch.Tensor, rows: Sequence[int], token_ids: Sequence[TokenIds]) -> None:
    """Rule some tokens of some rows out, in place."""
    if rows:
        entries = on_device(flat_index(rows, token_ids, logits.shape[1]), logits)
        logits.view(-1)[entries] = float("-inf")


def flat_index(rows: Sequence[int], token_ids: Sequence[TokenIds], vocab_size: int) -> NDArray[np.int64]:
    """Where the tokens of each row lie in [R * V]."""
    starts = np.repeat(np.array(rows, dtype=np.int64) * vocab_size, [len(ids) for ids in token_ids])
    index: NDArray[np.int64] = starts + np.concatenate(token_ids)
    return index


def on_device(values: NDArray[Any], logits: torch.Tensor) -> torch.Tensor:
    return to_device(torch.from_numpy(values), logits.device)
