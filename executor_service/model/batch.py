"""The ragged batch: the tokens of all requests of one pass, packed in one dimension without padding.

    decodes, one token each        prefill chunks
    | a | b | c | ... |  d d d d d d | e e e | ...      token_ids, positions: [T]
      1   1   1            6           3                query_lens: [R]

Decodes come first. Request r stores context_lens[r] tokens after the pass, its chunk included, so its chunk covers the
positions [context_lens[r] - query_lens[r], context_lens[r]). Position p of request r lives in block
block_tables[r, p // block_size] at offset p % block_size.

A request that verifies drafts is there once for each token that it runs, as so many decodes over one block table, each
with one more token of context. The keys and values of a whole pass are stored before any are read, so each of them sees
those before it.

Legend: T tokens, R requests, S rows whose logits are needed: one for each new token, then those of prompts whose
log-probabilities are asked for.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, kw_only=True)
class RaggedBatch:
    """What the engine asks of one pass; NumPy only."""

    token_ids: NDArray[np.int64]  # [T]
    positions: NDArray[np.int64]  # [T]
    query_lens: NDArray[np.int32]  # [R] tokens of each request in this pass, >= 1
    context_lens: NDArray[np.int32]  # [R] tokens stored after this pass
    block_tables: NDArray[np.int32]  # [R, max_blocks]; entries beyond a request's context are any valid ids
    num_decodes: int  # the first requests, all of query_len 1
    logits_rows: NDArray[np.int64]  # [S] indices into T

    def __post_init__(self) -> None:
        assert len(self.token_ids) == len(self.positions) == self.query_lens.sum(), "token columns of unequal length"
        assert len(self.query_lens) == len(self.context_lens) == len(self.block_tables), "request columns differ"
        assert np.all(self.query_lens[: self.num_decodes] == 1), "a decode runs one token"
        assert np.all(self.query_lens <= self.context_lens), "a chunk is part of its context"

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)

    @property
    def num_requests(self) -> int:
        return len(self.query_lens)

    def query_starts(self) -> NDArray[np.int64]:
        """[R + 1] first token of each request in T, and T."""
        starts = np.zeros(self.num_requests + 1, dtype=np.int64)
        np.cumsum(self.query_lens, out=starts[1:])
        return starts

    def slot_mapping(self, block_size: int) -> NDArray[np.int64]:
        """[T] slot of each token in the KV pool: block * block_size + offset."""
        requests = np.repeat(np.arange(self.num_requests), self.query_lens)
        blocks = self.block_tables[requests, self.positions // block_size].astype(np.int64)
        return blocks * block_size + self.positions % block_size

    def entered_blocks(self, block_size: int) -> NDArray[np.int64]:
        """The blocks whose first slot is written in this pass."""
        slots = self.slot_mapping(block_size)
        first_slots: NDArray[np.int64] = slots[slots % block_size == 0]
        return first_slots // block_size
