"""What a request may ask to be done to its logits before a token is chosen.

In this order, in float32: the bias is added; tokens that the request holds already are penalised; tokens that may not
be chosen, now or ever, are ruled out. (vLLM's order.) A row that asks for nothing is neither copied nor touched.

`Adjuster` is the side of one request, on the host: it lives with the request and hears each of its tokens. `adjust` is
the side of the batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from executor_service.sampling.entries import LogitBias, TokenIds, add_bias, forbid
from executor_service.sampling.masks import AllowedTokens, Words, mask, num_words_of
from executor_service.sampling.penalties import PenalisedRow, Penalties, TokenCounts, penalise


class ConstraintKind(StrEnum):
    """What a constraint is written in, named as the contract's field."""

    JSON_SCHEMA = "json_schema"
    REGEX = "regex"
    GRAMMAR = "grammar"


class Matcher(Protocol):
    """Where an answer stands in the form that it must have."""

    @property
    def is_complete(self) -> bool:
        """Whether nothing but an end token may follow."""

    @property
    def failure(self) -> str:
        """Why the form allows nothing any more, one sentence; empty: it does, or its author would know."""

    def narrow(self, words: Words) -> None:
        """Take what may not come next out of a mask."""

    def push(self, token_id: int) -> None:
        """Go on by a token that the mask allowed."""


class Constraint(Protocol):
    """A form that answers must have. Never changes, so one may serve any number of answers."""

    @property
    def kind(self) -> ConstraintKind: ...

    @property
    def text(self) -> str: ...

    def start(self) -> Matcher: ...


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Adjustments:
    """What a request asks for; by default nothing."""

    bias: LogitBias | None = None
    penalties: Penalties = field(default_factory=Penalties)
    allowed: AllowedTokens | None = None  # None: all
    banned_token_ids: TokenIds | None = None
    constraint: Constraint | None = None

    @property
    def is_neutral(self) -> bool:
        asked = (self.bias, self.allowed, self.banned_token_ids, self.constraint)
        return self.penalties.is_neutral and all(part is None for part in asked)


class Adjuster:
    """The adjustments of one request, and what they depend on: its tokens so far."""

    def __init__(
        self,
        asked: Adjustments,
        *,
        prompt_token_ids: NDArray[np.int32],
        end_token_ids: TokenIds,
        min_output_tokens: int,
    ) -> None:
        """``end_token_ids`` are forbidden until the output has ``min_output_tokens``."""
        self.bias = asked.bias
        self.penalties = asked.penalties
        self.allowed = asked.allowed
        self.matcher = asked.constraint.start() if asked.constraint else None
        self.counts = None if asked.penalties.is_neutral else TokenCounts(_counted(asked.penalties, prompt_token_ids))
        self._banned = _EMPTY if asked.banned_token_ids is None else asked.banned_token_ids
        self._banned_at_first = np.concatenate([self._banned, end_token_ids])
        self._num_more_tokens_needed = min_output_tokens

    @property
    def forbidden_token_ids(self) -> TokenIds:
        return self._banned_at_first if self._num_more_tokens_needed > 0 else self._banned

    @property
    def has_mask(self) -> bool:
        return self.allowed is not None or self.matcher is not None

    @property
    def is_fixed(self) -> bool:
        """Whether it does the same to the logits of every token from now on, whichever these are."""
        return self.counts is None and self.matcher is None and self._num_more_tokens_needed <= 0

    @property
    def is_complete(self) -> bool:
        """Whether the answer has the form that it must have, and nothing can be added to it."""
        return self.matcher is not None and self.matcher.is_complete

    @property
    def failure(self) -> str:
        """Why the constraint allows nothing any more, one sentence; empty: its author would know."""
        return "" if self.matcher is None else self.matcher.failure

    def push(self, token_id: int) -> None:
        """Hear of a new token of the output."""
        self._num_more_tokens_needed -= 1
        if self.counts is not None:
            self.counts.push(token_id)
        if self.matcher is not None:
            self.matcher.push(token_id)

    def write_mask(self, words: Words) -> None:
        """Write which tokens the allowed ones and the constraint leave."""
        words[:] = -1 if self.allowed is None else self.allowed.words(len(words))
        if self.matcher is not None:
            self.matcher.narrow(words)


def adjust(logits: torch.Tensor, adjusters: Sequence[Adjuster]) -> None:
    """Change logits [R, V] float32 in place, each row by its own adjuster. Those with a mask come first.

    Masks are written here, on the host, one after another: on a GPU the pass is still running then, and on a CPU they
    take 10 to 300 µs each, which threads would take from the pass. Source of the idea: llguidance.
    """
    biases = {row: adjuster.bias for row, adjuster in enumerate(adjusters) if adjuster.bias is not None}
    add_bias(logits, list(biases), list(biases.values()))
    penalise(
        logits,
        [
            PenalisedRow(row=row, penalties=adjuster.penalties, counts=adjuster.counts)
            for row, adjuster in enumerate(adjusters)
            if adjuster.counts is not None
        ],
    )
    forbidden = {row: ids for row, adjuster in enumerate(adjusters) if len(ids := adjuster.forbidden_token_ids)}
    forbid(logits, list(forbidden), list(forbidden.values()))
    num_masked = sum(adjuster.has_mask for adjuster in adjusters)
    if num_masked:
        words = np.empty((num_masked, num_words_of(logits.shape[1])), dtype=np.int32)
        for row in range(num_masked):
            adjusters[row].write_mask(words[row])
        mask(logits[:num_masked], words)


def _counted(penalties: Penalties, prompt_token_ids: NDArray[np.int32]) -> NDArray[np.int32]:
    """The prompt counts for repetition alone; where nobody asks for that, it need not be looked at."""
    return prompt_token_ids if penalties.repetition != 1 else prompt_token_ids[:0]


_EMPTY: TokenIds = np.empty(0, dtype=np.int64)
