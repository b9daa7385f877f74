"""What the requests of the books can reuse of each other: the prefix cache, and the chain of block hashes of each row.

Whole blocks are shared, and of a request that waits never its last token, whose logits are needed: so it goes on at the
start of a block of its own, and a block that others read is never written.

Several answers to one prompt share all of it but the last token, whatever the scope (docs/adr/0019). Its full blocks
are shared like those of others. The tail, in the block after them, is copied by whoever enters: the pass writes that
block at once, behind the tail.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from executor_service.kv.block_pool import BlockPool
from executor_service.kv.prefix_cache import BlockChain, Prefix, PrefixCache, PrefixScope

if TYPE_CHECKING:  # books are kept without torch too
    from executor_service.engine.sequence import Sequence

Rows = NDArray[np.int64]
Blocks = NDArray[np.int32]
Counts = NDArray[np.integer[Any]]


@dataclass(slots=True, kw_only=True, eq=False)
class _Samples:
    """The requests for several answers to one prompt that have not ended."""

    num_shared_tokens: int  # all of the prompt but its last
    num_shared_blocks: int  # of these, the full ones
    tail_digest: bytes  # empty: they end with a full block
    num_requests: int = 0


class Prefixes:
    """Takes part in what `books.py` does with rows and device blocks."""

    def __init__(self, pool: BlockPool, *, scope: PrefixScope, block_size: int, compares_tokens: bool = True) -> None:
        self.scope = scope
        self.cache = PrefixCache(pool, block_size=block_size, compares_tokens=compares_tokens)
        self._block_size = block_size
        self._chains: dict[int, BlockChain] = {}  # by row; none where nobody may find what it computes
        self._bypassing: set[int] = set()  # rows that reuse nothing
        self._samples: dict[int, _Samples] = {}  # by the first of their requests
        self._samples_of: dict[int, int] = {}  # by row, the key of the former

    @property
    def has_texts(self) -> bool:
        """Whether anybody in the books may share what was computed, for it or for others."""
        return bool(self._chains)

    def enter(self, row: int, sequence: Sequence) -> None:
        """A request is in this row from now on."""
        request = sequence.request
        is_sample = request.samples_of > 0
        if self.scope is PrefixScope.OFF and not is_sample:
            return
        root = self.scope.root(request.tenant, alone=request.samples_of)
        chain = self._chains[row] = BlockChain(root, sequence, block_size=self._block_size)
        if not request.may_reuse_prefix:
            self._bypassing.add(row)
        if is_sample:
            self._samples_of[row] = request.samples_of
            if request.samples_of not in self._samples:
                self._samples[request.samples_of] = self._samples_with(chain, sequence.num_prompt_tokens - 1)
            self._samples[request.samples_of].num_requests += 1

    def leave(self, row: int) -> None:
        """After the request's blocks have been released."""
        chain = self._chains.pop(row, None)
        self._bypassing.discard(row)
        key = self._samples_of.pop(row, None)
        if key is None or chain is None:
            return
        samples = self._samples[key]
        samples.num_requests -= 1
        if samples.num_requests == 0:
            del self._samples[key]
            self.cache.forget_texts([samples.tail_digest])
            if self.scope is PrefixScope.OFF:
                self.cache.forget_texts(chain.digests(samples.num_shared_blocks)[: samples.num_shared_blocks])

    def forget_tail(self, row: int) -> None:
        """The samples of a row's prompt compute its tail, until one of them has."""
        samples = self._samples.get(self._samples_of.get(row, 0))
        if samples is not None:
            self.cache.forget_texts([samples.tail_digest])

    def match(self, row: int, num_tokens: int) -> Blocks:
        """The blocks, [num_blocks], of the longest cached prefix of a row's first ``num_tokens`` tokens."""
        if row not in self._chains or row in self._bypassing:
            return np.empty(0, dtype=np.int32)
        return self.cache.match(self._chains[row], num_tokens // self._block_size)

    def match_with_tail(self, row: int, num_tokens: int) -> Prefix:
        """The same for one that waits, with the tail of its prompt where it is one of several samples of that."""
        blocks = self.match(row, num_tokens)
        samples = self._samples_with_tail(row, len(blocks))
        if samples is not None:
            num_shared_tokens = samples.num_shared_tokens
            block = self.cache.match_tail(self._chains[row], samples.tail_digest, num_shared_tokens)
            if block >= 0:
                return Prefix(blocks=blocks, tail_block=block, num_tail_tokens=num_shared_tokens % self._block_size)
        return Prefix(blocks=blocks)

    def find(self, rows: Rows, num_tokens: Counts, soon: Mapping[bytes, int]) -> list[list[int]]:
        """The same blocks for many rows, by digests alone; ``soon``: what a pass will have published.

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

    def tail_lengths(self, rows: Rows, num_blocks: Counts, soon: Mapping[bytes, int]) -> NDArray[np.int32]:
        """[n] tokens that each of ``rows``, which wait, finds of its tail behind so many blocks; 0: no tail."""
        lengths = np.zeros(len(rows), dtype=np.int32)
        if self._samples:
            for i, (row, count) in enumerate(zip(rows.tolist(), num_blocks.tolist(), strict=True)):
                samples = self._samples_with_tail(row, count)
                if samples is not None and (samples.tail_digest in soon or self.cache.finds(samples.tail_digest)):
                    lengths[i] = samples.num_shared_tokens % self._block_size
        return lengths

    def texts(self, row: int, first: int, last: int) -> list[bytes]:
        """The digests of a row's blocks from ``first`` to before ``last``, all full; none where nobody may share it."""
        return self._chains[row].digests(last)[first:last] if row in self._chains else []

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
        for chain, first, blocks in self._filled_by(rows, num_computed, num_tokens, block_tables):
            self.cache.publish(chain, first, blocks)
        for chain, samples, block in self._tails_by(rows, num_computed, num_tokens, block_tables):
            self.cache.publish_tail(chain, samples.tail_digest, samples.num_shared_tokens, block)

    def published_by(
        self, rows: Rows, num_computed: Counts, num_tokens: Counts, block_tables: Blocks
    ) -> dict[bytes, int]:
        """What ``publish`` will make known once such a pass has run: block by digest."""
        published: dict[bytes, int] = {}
        for chain, first, blocks in self._filled_by(rows, num_computed, num_tokens, block_tables):
            published.update(zip(chain.digests(first + len(blocks))[first:], blocks.tolist(), strict=False))
        for _, samples, block in self._tails_by(rows, num_computed, num_tokens, block_tables):
            published[samples.tail_digest] = block
        return published

    def _filled_by(
        self, rows: Rows, num_computed: Counts, num_tokens: Counts, block_tables: Blocks
    ) -> Iterator[tuple[BlockChain, int, Blocks]]:
        """Chain of each row that fills blocks, the first of them as an index in it, and the blocks."""
        if not self._chains:
            return
        firsts, lasts = num_computed // self._block_size, (num_computed + num_tokens) // self._block_size
        fills = np.flatnonzero(lasts > firsts)  # one request in block_size at a time decodes across a block's end
        for row, first, last in zip(rows[fills].tolist(), firsts[fills].tolist(), lasts[fills].tolist(), strict=True):
            end = min(last, self._num_blocks_to_publish(row))
            if first < end:
                yield self._chains[row], first, block_tables[row, first:end]

    def _num_blocks_to_publish(self, row: int) -> int:
        """Where nobody may find anything, samples find their prompt, and no more."""
        if self.scope is not PrefixScope.OFF:
            return _NO_LIMIT
        return self._samples[self._samples_of[row]].num_shared_blocks if row in self._samples_of else 0

    def _tails_by(
        self, rows: Rows, num_computed: Counts, num_tokens: Counts, block_tables: Blocks
    ) -> Iterator[tuple[BlockChain, _Samples, int]]:
        """Chain, samples and block of each tail that is completed."""
        if not self._samples:
            return
        spans = zip(rows.tolist(), num_computed.tolist(), num_tokens.tolist(), strict=True)
        for row, start, count in spans:
            samples = self._samples.get(self._samples_of.get(row, 0))
            if samples is not None and samples.tail_digest and start <= samples.num_shared_tokens <= start + count:
                yield self._chains[row], samples, int(block_tables[row, samples.num_shared_blocks])

    def _samples_with(self, chain: BlockChain, num_shared_tokens: int) -> _Samples:
        has_tail = num_shared_tokens % self._block_size > 0
        return _Samples(
            num_shared_tokens=num_shared_tokens,
            num_shared_blocks=num_shared_tokens // self._block_size,
            tail_digest=chain.tail_digest(num_shared_tokens) if has_tail else b"",
        )

    def _samples_with_tail(self, row: int, num_blocks: int) -> _Samples | None:
        """The samples that a row is one of, if the tail of their prompt follows after so many blocks."""
        if row in self._bypassing:
            return None
        samples = self._samples.get(self._samples_of.get(row, 0))
        if samples is None or not samples.tail_digest or samples.num_shared_blocks != num_blocks:
            return None
        return samples


_NO_LIMIT = 2**31


def _number(digest: bytes) -> int:
    """Its first 64 bits with a sign, and never 0."""
    return int.from_bytes(digest[:8], "little", signed=True) or 1
