"""A device without a model: its KV cache holds the tokens themselves, and the next token is a hash of the context.

So a token is right only if every token before it was stored in the right slot, copied to swap space and back, and read
in order; and a pass takes microseconds. It stands where `ModelRunner` and `KVCache` stand.

`repeating_token` is the same for texts that repeat themselves for a while and then depart from it, so that some drafts
prove right and others do not.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from executor_service.model.batch import RaggedBatch
from executor_service.model.runner import ExecuteResult
from executor_service.sampling.sampler import SamplingBatch

VOCAB_SIZE = 200
NOTHING = -1

BlockIds = NDArray[np.integer[Any]]


def next_token(context: NDArray[np.int64]) -> int:
    return zlib.crc32(np.ascontiguousarray(context, dtype=np.int64).tobytes()) % VOCAB_SIZE


def repeating_token(context: NDArray[np.int64]) -> int:
    """One of four times what `next_token` says, else the token three places before."""
    hashed = next_token(context)
    return hashed if hashed % 4 == 0 or len(context) < 3 else int(context[-3])


Speech = Callable[[NDArray[np.int64]], int]


def true_tokens(prompt: Sequence[int], num_new_tokens: int, speech: Speech = next_token) -> list[int]:
    """What an answer must be, whatever happens to the request on the way."""
    tokens = list(prompt)
    for _ in range(num_new_tokens):
        tokens.append(speech(np.array(tokens, dtype=np.int64)))
    return tokens[len(prompt) :]


class TokenCache:
    """Device and swap blocks of tokens. Freed blocks keep what they held, as real memory does."""

    def __init__(self, *, num_blocks: int, num_swap_blocks: int, block_size: int) -> None:
        self.block_size = block_size
        self.device = np.full((num_blocks, block_size), NOTHING, dtype=np.int64)
        self.swap = np.full((num_swap_blocks, block_size), NOTHING, dtype=np.int64)

    def copy_out(self, device_blocks: BlockIds, swap_blocks: BlockIds) -> None:
        self.swap[swap_blocks] = self.device[device_blocks]

    def copy_in(self, swap_blocks: BlockIds, device_blocks: BlockIds) -> None:
        self.device[device_blocks] = self.swap[swap_blocks]

    def copy_within(self, source: BlockIds, target: BlockIds) -> None:
        self.device[target] = self.device[source]


class TokenRunner:
    def __init__(self, cache: TokenCache, speech: Speech = next_token) -> None:
        self._cache = cache
        self._speech = speech

    def execute(self, batch: RaggedBatch, sampling: SamplingBatch) -> ExecuteResult:
        cache = self._cache
        cache.device.reshape(-1)[batch.slot_mapping(cache.block_size)] = batch.token_ids
        requests = np.searchsorted(batch.query_starts()[1:], batch.logits_rows, side="right")
        tokens = [self._speech(self._context(batch, request)) for request in requests[: len(sampling)].tolist()]
        return ExecuteResult(
            next_token_ids=np.array(tokens, dtype=np.int64), non_finite=np.zeros(len(tokens), dtype=np.bool_)
        )

    def _context(self, batch: RaggedBatch, request: int) -> NDArray[np.int64]:
        context_len = int(batch.context_lens[request])
        blocks = batch.block_tables[request, : -(-context_len // self._cache.block_size)]
        return self._cache.device[blocks].reshape(-1)[:context_len]
