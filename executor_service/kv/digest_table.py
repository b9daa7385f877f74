"""Which block has which digest, both ways, in arrays: 48 to 64 bytes a block, and no object of Python for any.

    slots    | . 4 . . 2 7 . |      where a digest is looked for: from the slot of its hash on, until one is empty
    digests  | d0 d1 d2 ...  |      of each block; who stands in a slot is meant where it has the digest looked for

A block that loses its digest stays in its slot and is passed by, so that many lose theirs in one operation. Slots are
at least four times as many as blocks; when half are taken those that have a digest are written to empty ones anew.

The search stands in each method that searches: a call for each digest would take as long as its search.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from executor_service.kv.block_pool import BlockIds

DIGEST_SIZE = 32  # bytes: nobody can make two texts of one digest


class DigestTable:
    """At most one digest for each of the blocks 0 .. ``num_blocks`` - 1, and at most one block for a digest."""

    def __init__(self, num_blocks: int) -> None:
        self._digests = np.zeros(num_blocks, dtype=f"V{DIGEST_SIZE}")  # [num_blocks]; all zeros: none
        # Block + 1; 0: empty. Read by its `data`, which gives single numbers faster.
        self._slots = np.zeros(1 << (4 * num_blocks).bit_length(), dtype=np.int32)
        self._num_taken = 0  # slots
        self._count = 0

    def __len__(self) -> int:
        """How many blocks have a digest."""
        return self._count

    def block_of(self, digest: bytes) -> int:
        """The block that has it; -1: none."""
        slots, digest_of = self._slots.data, self._digests.item
        last = len(slots) - 1
        slot = hash(digest) & last
        while (entry := slots[slot]) and digest_of(entry - 1) != digest:
            slot = (slot + 1) & last
        return entry - 1

    def blocks_of_first(self, digests: Iterable[bytes]) -> list[int]:
        """The blocks of ``digests`` up to the first that no block has."""
        slots, digest_of = self._slots.data, self._digests.item
        last = len(slots) - 1
        blocks: list[int] = []
        for digest in digests:
            slot = hash(digest) & last
            while (entry := slots[slot]) and digest_of(entry - 1) != digest:
                slot = (slot + 1) & last
            if not entry:
                break
            blocks.append(entry - 1)
        return blocks

    def add(self, digests: Iterable[bytes], blocks: Iterable[int]) -> list[bool]:
        """Each of ``blocks``, which have none, has its digest from now on, but where another has it.

        Returns for each whether it has.
        """
        if self._num_taken >= len(self._slots) // 2:
            self._start_anew()
        slots, all_digests, digest_of = self._slots.data, self._digests, self._digests.item
        last = len(slots) - 1
        is_new = []
        for digest, block in zip(digests, blocks, strict=True):
            slot = hash(digest) & last
            while (entry := slots[slot]) and digest_of(entry - 1) != digest:
                slot = (slot + 1) & last
            if not entry:
                slots[slot], all_digests[block] = block + 1, digest
            is_new.append(not entry)
        num_new = sum(is_new)
        self._count += num_new
        self._num_taken += num_new
        return is_new

    def remove(self, blocks: BlockIds) -> None:
        """``blocks``, distinct, all of which have one, have none any more."""
        self._digests[blocks] = b""
        self._count -= len(blocks)

    def digests_of(self, blocks: BlockIds) -> bytes:
        """One after the other; zeros for who has none."""
        return self._digests[blocks].tobytes()

    def blocks(self) -> BlockIds:
        """Those that have a digest, ascending."""
        words = self._digests.view(np.uint64).reshape(len(self._digests), -1)
        return np.flatnonzero(words.any(axis=1)).astype(np.int32)

    def is_consistent(self) -> bool:
        """Whether each block is found by its digest."""
        blocks = self.blocks().tolist()
        return len(blocks) == self._count and all(self.block_of(self._digests.item(block)) == block for block in blocks)

    def _start_anew(self) -> None:
        blocks = self.blocks()
        digests = [self._digests.item(block) for block in blocks.tolist()]
        self.remove(blocks)
        self._slots[:] = 0
        self._num_taken = 0
        self.add(digests, blocks.tolist())
