"""What the requests of the books can reuse of each other: the prefix cache, and the chain of block hashes of each row.

Only whole blocks are reused, and of a request that waits never its last token, whose logits are needed: so it goes on
at the start of a block of its own, and a block that others read is never written.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from executor_service.engine.sequence import Sequence
from executor_service.kv.block_pool import BlockPool
from executor_service.kv.prefix_cache import BlockChain, PrefixCache, PrefixScope

Rows = NDArray[np.int64]
Blocks = NDArray[np.int32]
Counts = NDArray[np.integer[Any]]


class Prefixes:
    """Takes part in what `books.py` does with rows and device blocks."""

    def __init__(self, pool: BlockPool, *, scope: PrefixScope, block_size: int) -> None:
        self.scope = scope
        self.cache = PrefixCache(pool, block_size=block_size)
        self._block_size = block_size
        self._chains: dict[int, BlockChain] = {}  # by row; none where the scope is OFF
        self._bypassing: set[int] = set()  # rows that reuse nothing

    def enter(self, row: int, sequence: Sequence) -> None:
        """A request is in this row from now on."""
        if self.scope is not PrefixScope.OFF:
            root = self.scope.root(sequence.request.tenant)
            self._chains[row] = BlockChain(root, sequence, block_size=self._block_size)
            if not sequence.request.may_reuse_prefix:
                self._bypassing.add(row)

    def leave(self, row: int) -> None:
        self._chains.pop(row, None)
        self._bypassing.discard(row)

    def match(self, row: int, num_tokens: int) -> Blocks:
        """The blocks, [num_blocks], of the longest cached prefix of a row's first ``num_tokens`` tokens."""
        if row not in self._chains or row in self._bypassing:
            return np.empty(0, dtype=np.int32)
        return self.cache.match(self._chains[row], num_tokens // self._block_size)

    def find(self, rows: Rows, num_tokens: Counts, soon: Mapping[bytes, int]) -> list[list[int]]:
        """The same for many rows, by digests alone; ``soon``: what a pass will have published, of ``published_by``.

        Where a row begins as the one before it does, which is so in a queue of one system prompt, its blocks are not
        looked up again, and equal answers are one list.
        """
        found: list[list[int]] = []
        before: list[int] = []
        end = b""  # the digest of the last block of ``before``
        for row, limit in zip(rows.tolist(), (num_tokens // self._block_size).tolist(), strict=True):
            if row not in self._chains or row in self._bypassing:
                found.append([])
                continue
            chain, num_before = self._chains[row], len(before)
            alike = 0 < num_before <= limit and chain.digests(limit)[num_before - 1] == end
            blocks = self.cache.find(chain, limit, soon, before if alike else [])
            if blocks and blocks is not before:
                before, end = blocks, chain.digests(limit)[len(blocks) - 1]
            found.append(blocks)
        return found

    def hashes(self, rows: Rows, blocks: Counts) -> list[int]:
        """A number for the text of each row up to the end of one of its blocks, counted from 0; equal for equal texts
        that may be shared, 64 bits. 0: it may not.
        """
        chains, bypassing = self._chains, self._bypassing
        return [
            0 if row not in chains or row in bypassing else _number(chains[row].digests(block + 1)[block])
            for row, block in zip(rows.tolist(), blocks.tolist(), strict=True)
        ]

    def publish(self, rows: Rows, num_computed: Counts, num_tokens: Counts, block_tables: Blocks) -> None:
        """A pass has computed ``num_tokens`` of each row beyond ``num_computed``: what that filled can be found.

        ``block_tables``: [capacity, max_blocks], by row.
        """
        for chain, index, block in self._filled_by(rows, num_computed, num_tokens, block_tables):
            self.cache.publish(chain, index, block)

    def published_by(
        self, rows: Rows, num_computed: Counts, num_tokens: Counts, block_tables: Blocks
    ) -> dict[bytes, int]:
        """What ``publish`` will make known once such a pass has run: block by digest."""
        filled = self._filled_by(rows, num_computed, num_tokens, block_tables)
        return {chain.digests(index + 1)[index]: block for chain, index, block in filled}

    def _filled_by(
        self, rows: Rows, num_computed: Counts, num_tokens: Counts, block_tables: Blocks
    ) -> Iterator[tuple[BlockChain, int, int]]:
        """Chain, index in it, and block of each block that is filled."""
        if self.scope is PrefixScope.OFF:
            return
        first, last = num_computed // self._block_size, (num_computed + num_tokens) // self._block_size
        for i in np.flatnonzero(last > first):  # one request in block_size at a time decodes across a block's end
            row = int(rows[i])
            for index in range(first[i], last[i]):
                yield self._chains[row], index, int(block_tables[row, index])


def _number(digest: bytes) -> int:
    """Its first 64 bits with a sign, and never 0."""
    return int.from_bytes(digest[:8], "little", signed=True) or 1
