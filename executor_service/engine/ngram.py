"""Guesses how a text goes on: as it went on the last time that it stood at words like its newest ones.

    ... the quick brown fox jumps ... the quick brown        the longest end that occurred before, of at most max_ngram
                        └ drafts ┘    └──────┬──────┘        tokens, and the tokens that followed it there
                                           n-gram

Texts repeat themselves where a model quotes, rewrites, lists or writes code. No second model is needed, and a look-up
reads the text once: 10 µs for 1,000 tokens. Source: Saxena, "Prompt lookup decoding", 2023; vLLM's n-gram proposer.
Of equally long occurrences the latest counts; where the text ends before there are enough drafts, it goes on repeating
what lies between that occurrence and its end, as copies in LZ77 do (Ziv and Lempel, 1977).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, kw_only=True)
class NgramLookup:
    """How far to guess ahead and from how much; 1 <= min_ngram <= max_ngram, in tokens."""

    max_num_drafts: int = 0  # 0: nothing is guessed
    min_ngram: int = 2
    max_ngram: int = 4

    def propose(self, tokens: NDArray[np.int32], num_drafts: int) -> NDArray[np.int32]:
        """tokens [n >= 1]. Returns ``num_drafts`` tokens that may follow, or none."""
        ends = np.flatnonzero(tokens[:-1] == tokens[-1]) + 1  # after earlier occurrences of the last token, ascending
        length = 1
        while length < self.max_ngram:
            longer = ends[ends > length]
            if not len(longer):
                break
            longer = longer[tokens[longer - length - 1] == tokens[-length - 1]]
            if not len(longer):
                break
            ends, length = longer, length + 1
        if not len(ends) or length < self.min_ngram:
            return tokens[:0]
        start = int(ends[-1])
        drafts: NDArray[np.int32] = tokens[start + np.arange(num_drafts) % (len(tokens) - start)]
        return drafts


NO_LOOKUP = NgramLookup()
