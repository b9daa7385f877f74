"""Penalties for tokens that a request holds already.

With p, f and q the repetition, frequency and presence penalties, and c the times that the output holds a token:

    l = l / p if l > 0 else l * p      for tokens of prompt or output
    l = l - f * c - q                  for tokens of the output

Source: repetition from CTRL (arXiv 1909.05858), the other two as in OpenAI's interface. They follow from the request's
own tokens alone, so neither neighbours nor evictions change them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from executor_service.sampling.entries import flat_index, on_device


@dataclass(frozen=True, slots=True, kw_only=True)
class Penalties:
    """What a request asks for; the values here change nothing."""

    repetition: float = 1.0
    presence: float = 0.0
    frequency: float = 0.0

    @property
    def is_neutral(self) -> bool:
        return self == Penalties()


class TokenCounts:
    """The different tokens of one request, and how often its output holds each. A token costs O(1)."""

    def __init__(self, prompt_token_ids: NDArray[np.int32]) -> None:
        different = np.unique(prompt_token_ids)
        self._num_different = len(different)
        # Both double when they are full.
        self._token_ids = np.zeros(2 * self._num_different + 64, dtype=np.int64)
        self._token_ids[: self._num_different] = different
        self._output_counts = np.zeros(len(self._token_ids), dtype=np.float32)
        self._place_of = {token_id: place for place, token_id in enumerate(different.tolist())}

    def push(self, token_id: int) -> None:
        """Count a token of the output."""
        place = self._place_of.setdefault(token_id, self._num_different)
        if place == self._num_different:
            self._append(token_id)
        self._output_counts[place] += 1

    @property
    def token_ids(self) -> NDArray[np.int64]:
        """[different tokens], a view."""
        return self._token_ids[: self._num_different]

    @property
    def output_counts(self) -> NDArray[np.float32]:
        """[different tokens], a view; 0 for those of the prompt alone."""
        return self._output_counts[: self._num_different]

    def _append(self, token_id: int) -> None:
        if self._num_different == len(self._token_ids):
            self._token_ids = np.concatenate([self._token_ids, np.zeros_like(self._token_ids)])
            self._output_counts = np.concatenate([self._output_counts, np.zeros_like(self._output_counts)])
        self._token_ids[self._num_different] = token_id
        self._num_different += 1


@dataclass(frozen=True, slots=True, kw_only=True)
class PenalisedRow:
    """A row of logits and what it is penalised for."""

    row: int
    penalties: Penalties
    counts: TokenCounts


def penalise(logits: torch.Tensor, rows: Sequence[PenalisedRow]) -> None:
    """Change rows of logits [R, V] float32 in place; a row is named at most once."""
    if not rows:
        return
    token_ids = [row.counts.token_ids for row in rows]
    lengths = [len(ids) for ids in token_ids]
    counts = np.concatenate([row.counts.output_counts for row in rows])

    def of_each_entry(values: list[float]) -> torch.Tensor:
        return on_device(np.repeat(np.array(values, dtype=np.float32), lengths), logits)

    repetition = of_each_entry([row.penalties.repetition for row in rows])
    presence = of_each_entry([row.penalties.presence for row in rows])
    frequency = of_each_entry([row.penalties.frequency for row in rows])
    times = on_device(counts, logits)
    entries = on_device(flat_index([row.row for row in rows], token_ids, logits.shape[1]), logits)  # [N]
    flat = logits.view(-1)
    values = flat[entries]
    values = torch.where(values > 0, values / repetition, values * repetition)
    flat[entries] = values - frequency * times - presence * (times > 0)
