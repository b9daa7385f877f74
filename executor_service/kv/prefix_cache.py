"""Finds the KV of a text that was computed before: full blocks, by the hash of all tokens up to their end.

    tokens    | t0 ... t15 | t16 ... t31 | t32 ...       a block is full when all its tokens are computed
    digests     d0 = H(root, t0 ... t15)
                             d1 = H(d0, t16 ... t31)     so equal digests mean equal texts from the first token on

A block is published when the pass that filled it has succeeded, and from then on it is never written again: whoever
reuses it goes on in a block of its own. When nobody holds it any more it is free and keeps its content (see
`block_pool.py`) until it is allocated anew, the least recently used first. Of two blocks with one text the first to be
published is found.

The tail of a text, less than a block, can be found too where somebody will ask for it: then the block's holder goes on
to write it behind the tail, and whoever finds it takes a copy. Such a block may come to have two names.

``root`` tells apart who may reuse what whom computed: see `PrefixScope`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from hashlib import blake2b
from itertools import compress, islice
from types import MappingProxyType
from typing import Protocol

import numpy as np
import numpy.typing as npt

from executor_service.kv.block_pool import BlockAccountingError, BlockIds, BlockPool
from executor_service.kv.digest_table import DIGEST_SIZE, DigestTable

_NOTHING: Mapping[bytes, int] = MappingProxyType({})
_NO_BLOCKS: list[int] = []  # never added to


class PrefixScope(Enum):
    """Who finds what was computed for whom."""

    TENANT = "tenant"  # requests of one tenant, each other's
    SHARED = "shared"  # everybody, everybody's
    OFF = "off"  # nobody, anything; but for the answers of one call, their prompt

    def root(self, tenant: str, *, alone: int = 0) -> bytes:
        """What the chains of a tenant's requests begin with. Where the scope is OFF, those of the call ``alone``."""
        of_whom = self.value
        if self is PrefixScope.TENANT:
            of_whom = f"{self.value}:{tenant}"
        elif self is PrefixScope.OFF:
            of_whom = f"{self.value}:{alone}"
        return blake2b(of_whom.encode(), digest_size=DIGEST_SIZE).digest()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Prefix:
    """The KV that a request begins with: full blocks that it shares, and the tail of one that it copies."""

    blocks: BlockIds  # [num_blocks]
    tail_block: int = -1  # to be copied; -1: none
    num_tail_tokens: int = 0  # of that block, the first

    def num_tokens(self, block_size: int) -> int:
        return len(self.blocks) * block_size + self.num_tail_tokens


class Text(Protocol):
    """The tokens of a request: those that are there never change, more may follow."""

    def tokens(self, start: int, stop: int) -> npt.NDArray[np.int32]: ...


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Found:
    """What a cache found for a text: true as long as the blocks have these digests."""

    blocks: list[int]
    block_ids: BlockIds  # the same
    digests: bytes  # theirs, one after the other


class BlockChain:
    """The digests of the full blocks of one text, each worked out once, when it is first asked for.

    ``found``: what the one cache that it is asked for in found last.
    """

    __slots__ = ("_block_size", "_digests", "_text", "found", "root")

    def __init__(self, root: bytes, text: Text, *, block_size: int) -> None:
        self.root = root
        self.found: _Found | None = None
        self._text = text
        self._block_size = block_size
        self._digests: list[bytes] = []

    def digests(self, count: int) -> list[bytes]:
        """Those of at least the first ``count`` blocks, which must be full. Not to be changed."""
        digests = self._digests
        if len(digests) < count:
            parent = digests[-1] if digests else self.root
            for token_ids in self.tokens(len(digests), count - len(digests)).reshape(-1, self._block_size):
                parent = child_digest(parent, token_ids)
                digests.append(parent)
        return digests

    def tail_digest(self, num_tokens: int) -> bytes:
        """That of the text up to its first ``num_tokens`` tokens, which end within a block."""
        num_blocks = num_tokens // self._block_size
        parent = self.digests(num_blocks)[num_blocks - 1] if num_blocks else self.root
        return child_digest(parent, self.tail(num_tokens))

    def tail(self, num_tokens: int) -> npt.NDArray[np.int32]:
        """The last of the first ``num_tokens`` tokens, those beyond the full blocks."""
        return self._text.tokens(num_tokens // self._block_size * self._block_size, num_tokens)

    def tokens(self, block: int, num_blocks: int = 1) -> npt.NDArray[np.int32]:
        """[num_blocks * block_size] tokens from the start of a block on."""
        start = block * self._block_size
        return self._text.tokens(start, start + num_blocks * self._block_size)


def child_digest(parent: bytes, token_ids: npt.NDArray[np.int32]) -> bytes:
    """The digest of a block whose text follows a text of digest ``parent``."""
    return blake2b(parent + token_ids.astype("<i4", copy=False).tobytes(), digest_size=DIGEST_SIZE).digest()


class PrefixCache:
    """What the blocks of a pool hold. Blocks are allocated here, so that it knows whose content is lost."""

    def __init__(self, pool: BlockPool, *, block_size: int, compares_tokens: bool = True) -> None:
        """``compares_tokens`` False: a text is believed to be the same by its digest alone."""
        self._pool = pool
        self._block_size = block_size
        self._compares_tokens = compares_tokens
        self._full = DigestTable(pool.num_blocks)  # of full blocks
        self._tail_block_of: dict[bytes, int] = {}
        self._tail_digest_of: dict[int, bytes] = {}
        num_compared = block_size if compares_tokens else 0
        self._token_ids = np.zeros((pool.num_blocks, num_compared), dtype=np.int32)  # of the published blocks
        self._num_tokens = np.zeros(pool.num_blocks, dtype=np.int32)  # of those, how many can be found

    def __len__(self) -> int:
        """How many blocks can be found."""
        return int(np.count_nonzero(self._num_tokens))

    def num_found_tokens(self, blocks: BlockIds) -> npt.NDArray[np.int32]:
        """How many of the first tokens of each of ``blocks`` others may come to read; whoever writes, writes behind."""
        return self._num_tokens[blocks]

    def allocate(self, count: int) -> BlockIds:
        """Take ``count`` free blocks; those with content lose it. Raises OutOfBlocksError."""
        blocks = self._pool.allocate(count)
        if self._full or self._tail_digest_of:
            self._drop(blocks)
        return blocks

    def find(
        self,
        chain: BlockChain,
        limit: int,
        also: Mapping[bytes, int] = _NOTHING,
        beginning: list[int] = _NO_BLOCKS,
    ) -> list[int]:
        """The blocks of the longest known prefix, at most ``limit`` (full) blocks long, by digest alone.

        ``also``: blocks that will have been published by then. ``beginning``: what is found already, at most ``limit``
        blocks; it is returned itself where there is nothing to add.
        """
        digests = chain.digests(limit)
        blocks = beginning if beginning or chain.found is None else self._find_again(chain.found, limit)
        more = self._full.blocks_of_first(islice(digests, len(blocks), limit))
        if more:
            blocks = blocks + more
            if not beginning:  # else it is not known whether that is there yet
                block_ids = np.array(blocks, dtype=np.int32)
                chain.found = _Found(blocks=blocks, block_ids=block_ids, digests=self._full.digests_of(block_ids))
        if also and len(blocks) < limit and digests[len(blocks)] in also:
            blocks = blocks.copy()
            for digest in islice(digests, len(blocks), limit):
                block = self._full.block_of(digest)
                block = block if block >= 0 else also.get(digest, -1)
                if block < 0:
                    break
                blocks.append(block)
        return blocks

    def _find_again(self, found: _Found, limit: int) -> list[int]:
        """The first blocks of what was found, if all of it is there still: who waits is looked up before each pass."""
        if self._full.digests_of(found.block_ids) != found.digests:
            return _NO_BLOCKS
        return found.blocks if len(found.blocks) <= limit else found.blocks[:limit]

    def match(self, chain: BlockChain, limit: int) -> BlockIds:
        """The blocks to reuse, [num_blocks]: what ``find`` finds, as far as the tokens are the same too."""
        blocks = np.array(self.find(chain, limit), dtype=np.int32)
        if not self._compares_tokens:
            return blocks
        theirs = self._token_ids[blocks]
        differs = (chain.tokens(0, len(blocks)).reshape(theirs.shape) != theirs).any(axis=1)
        return blocks[: int(differs.argmax())] if differs.any() else blocks

    def finds(self, digest: bytes) -> bool:
        """Whether a block or a tail is known, by digest alone."""
        return digest in self._tail_block_of or self._full.block_of(digest) >= 0

    def match_tail(self, chain: BlockChain, digest: bytes, num_tokens: int) -> int:
        """The block of a tail, ``digest`` that of the chain's first ``num_tokens`` tokens; -1 where it is not known."""
        block = self._tail_block_of.get(digest, -1)
        if block < 0 or not self._compares_tokens:
            return block
        tail = chain.tail(num_tokens)
        return block if np.array_equal(self._token_ids[block, : len(tail)], tail) else -1

    def publish_tail(self, chain: BlockChain, digest: bytes, num_tokens: int, block: int) -> None:
        """``block``, in use, begins with the KV of the tail of the chain's first ``num_tokens`` tokens.

        One that can be found already stays so.
        """
        if digest in self._tail_block_of or block in self._tail_digest_of:
            return
        tail = chain.tail(num_tokens)
        self._pool.keep(np.array([block], dtype=np.int32))
        self._tail_block_of[digest] = block
        self._tail_digest_of[block] = digest
        if self._compares_tokens:
            self._token_ids[block, : len(tail)] = tail
        self._num_tokens[block] = max(int(self._num_tokens[block]), len(tail))

    def publish(self, chain: BlockChain, first: int, blocks: BlockIds) -> None:
        """``blocks``, in use, hold the KV of the chain's blocks from ``first`` on.

        A text that can be found already stays so.
        """
        end = first + len(blocks)
        is_new = self._num_tokens[blocks] < self._block_size
        digests = compress(chain.digests(end)[first:end], is_new.tolist())
        is_new[is_new] = self._full.add(digests, blocks[is_new].tolist())
        new = blocks[is_new]
        if not len(new):
            return
        self._pool.keep(new)
        if self._compares_tokens:
            self._token_ids[new] = chain.tokens(first, len(blocks)).reshape(len(blocks), -1)[is_new]
        self._num_tokens[new] = self._block_size

    def forget_texts(self, digests: Iterable[bytes]) -> None:
        """Never find these by these names again: nobody will ask for them. Other names of a block stay."""
        for digest in digests:
            block = self._tail_block_of.get(digest, -1)
            if block >= 0 and self._num_tokens[block] == self._block_size:
                del self._tail_block_of[digest], self._tail_digest_of[block]
                continue
            # Nothing but a tail, or a full block; the tail in a full one is of no use without it.
            block = block if block >= 0 else self._full.block_of(digest)
            if block >= 0:
                self.forget(np.array([block], dtype=np.int32))

    def forget(self, blocks: BlockIds) -> None:
        """Never find these again: their content is in doubt."""
        self._drop(blocks)
        self._pool.discard(blocks)

    def check_integrity(self) -> None:
        """Raises BlockAccountingError unless the pool keeps each block that can be found, and no other."""
        full, tails = self._full.blocks().tolist(), self._tail_digest_of
        tail_block_of = {digest: block for block, digest in tails.items()}
        if not self._full.is_consistent() or tail_block_of != self._tail_block_of or len(tail_block_of) != len(tails):
            raise BlockAccountingError("a digest and its block do not name each other")
        if full != np.flatnonzero(self._num_tokens == self._block_size).tolist():
            raise BlockAccountingError("the blocks that can be found whole are not those with a digest")
        found = np.flatnonzero(self._num_tokens).tolist()
        if not sorted({*full, *tails}) == found == self._pool.with_content().tolist():
            raise BlockAccountingError("the blocks that can be found are not those with content")

    def _drop(self, blocks: BlockIds) -> None:
        num_tokens = self._num_tokens[blocks]
        if not num_tokens.any():
            return
        self._full.remove(blocks[num_tokens == self._block_size])
        self._num_tokens[blocks] = 0
        if self._tail_digest_of:
            for block in blocks.tolist():
                digest = self._tail_digest_of.pop(block, None)
                if digest is not None:
                    del self._tail_block_of[digest]
