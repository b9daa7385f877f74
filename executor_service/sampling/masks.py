"""Masks over the whole vocabulary: one bit a token, set where it may be chosen, 32 tokens in a word, low bit first.

That is how llguidance writes them. Masks of one row are joined word by word on the host; logits are masked eight tokens
at a time, by a table of what each byte allows, which on a CPU takes a tenth of the time of a mask of booleans.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import torch
from numpy.typing import NDArray

from executor_service.model.transfer import to_device

Words = NDArray[np.int32]  # [ceil(V / 32)]
BITS_A_WORD = 32


class AllowedTokens:
    """A fixed set of tokens, the only ones that may be chosen; packed when it is first asked for."""

    def __init__(self, token_ids: NDArray[np.int64]) -> None:
        """At least one id."""
        self.token_ids = token_ids
        self._words: Words | None = None

    def words(self, num_words: int) -> Words:
        if self._words is None or len(self._words) != num_words:
            allowed = np.zeros(num_words * BITS_A_WORD, dtype=np.uint8)
            allowed[self.token_ids] = 1
            self._words = np.packbits(allowed, bitorder="little").view(np.int32)
        return self._words


def num_words_of(vocab_size: int) -> int:
    return -(-vocab_size // BITS_A_WORD)


def mask(logits: torch.Tensor, words: Words) -> None:
    """Rule out what the words [R, ceil(V / 32)] do not allow, in logits [R, V] float32, in place."""
    packed = to_device(torch.from_numpy(words.view(np.uint8).ravel()), logits.device).to(torch.int32)
    highest = _highest_logits(logits.device).index_select(0, packed)  # [R * 4 * words, 8]
    torch.minimum(logits, highest.view(len(logits), -1)[:, : logits.shape[1]], out=logits)


@cache
def _highest_logits(device: torch.device) -> torch.Tensor:
    """[256, 8] for each byte, the most that the logit of each of its eight tokens may be: infinity, or -infinity."""
    bits = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little")
    return to_device(torch.from_numpy(np.where(bits, np.float32("inf"), np.float32("-inf"))), device)
