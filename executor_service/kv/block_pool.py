"""Who holds which KV block: a reference-counted pool over the block ids 0 .. num_blocks - 1.

Rules:

* A block is free (reference count 0, on the free stack exactly once) or in use (reference count >= 1).
* Every operation is all or nothing: it raises before anything has changed, or it changes everything.
* Allocation is deterministic. The last blocks freed are the first reused, since their memory is the warmest;
  among blocks freed together the lowest id comes first.

``_take_free`` and ``_put_free`` are the only code that knows the order in which free blocks are reused.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

BlockIds = npt.NDArray[np.int32]


class OutOfBlocksError(Exception):
    """More blocks were asked for than are free. Nothing has changed; try again when blocks have been released."""

    def __init__(self, *, needed: int, free: int) -> None:
        super().__init__(f"needs {needed} blocks, {free} free")
        self.needed = needed
        self.free = free


class BlockAccountingError(Exception):
    """The books are wrong: a block released or shared that nobody holds, or counts that do not add up."""


class BlockPool:
    """A pool of ``num_blocks`` (>= 0) blocks, all free at first. Integers only: it never sees a tensor."""

    def __init__(self, num_blocks: int) -> None:
        if num_blocks < 0:
            raise ValueError(f"num_blocks must be at least 0, got {num_blocks}")
        self._ref_counts = np.zeros(num_blocks, dtype=np.int32)  # [num_blocks]
        # [num_blocks]; the free blocks are [:num_free], the next one to be allocated is the last of them.
        self._free_stack = np.arange(num_blocks, dtype=np.int32)[::-1].copy()
        self._num_free = num_blocks

    @property
    def num_blocks(self) -> int:
        return len(self._ref_counts)

    @property
    def num_free(self) -> int:
        return self._num_free

    def allocate(self, count: int) -> BlockIds:
        """Take ``count`` (>= 0) free blocks, each with one reference. Returns their ids, [count].

        Raises OutOfBlocksError if fewer are free.
        """
        if count < 0:
            raise ValueError(f"count must be at least 0, got {count}")
        if count > self._num_free:
            raise OutOfBlocksError(needed=count, free=self._num_free)
        blocks = self._take_free(count)
        self._ref_counts[blocks] = 1
        return blocks

    def share(self, blocks: BlockIds) -> None:
        """Add one reference for each mention in ``blocks``. Raises BlockAccountingError if one of them is free."""
        unique, mentions = self._count_mentions(blocks)
        unheld = unique[self._ref_counts[unique] == 0]
        if len(unheld):
            raise BlockAccountingError(f"cannot share free blocks {unheld.tolist()}")
        self._ref_counts[unique] += mentions

    def release(self, blocks: BlockIds) -> int:
        """Drop one reference for each mention in ``blocks``. Returns how many blocks became free.

        Raises BlockAccountingError if a block has fewer references than mentions.
        """
        unique, mentions = self._count_mentions(blocks)
        remaining = self._ref_counts[unique] - mentions
        overdrawn = unique[remaining < 0]
        if len(overdrawn):
            raise BlockAccountingError(f"released more often than held: blocks {overdrawn.tolist()}")
        self._ref_counts[unique] = remaining
        freed = unique[remaining == 0]
        self._put_free(freed)
        return len(freed)

    def reference_counts(self, blocks: BlockIds) -> npt.NDArray[np.int32]:
        """How many references each of ``blocks`` has, in the same shape; above 1 means that others hold it too."""
        self._check_ids(blocks)
        return self._ref_counts[blocks]

    def check_integrity(self, holders: Iterable[BlockIds]) -> None:
        """Compare the books with the truth: the blocks of every holder, an array each, a mention a reference.

        Costs O(num_blocks + blocks held). Raises BlockAccountingError at the first contradiction.
        """
        held = np.zeros(self.num_blocks, dtype=np.int64)
        for blocks in holders:
            unique, mentions = self._count_mentions(blocks)
            held[unique] += mentions
        wrong = np.flatnonzero(held != self._ref_counts)
        if len(wrong):
            block = int(wrong[0])
            raise BlockAccountingError(
                f"block {block} has {held[block]} holders and reference count {self._ref_counts[block]}"
                f" ({len(wrong)} blocks differ)"
            )
        free = self._free_stack[: self._num_free]
        if len(np.unique(free)) != len(free):
            raise BlockAccountingError("a block is on the free stack twice")
        num_in_use = int(np.count_nonzero(self._ref_counts))
        if np.any(self._ref_counts[free]) or len(free) + num_in_use != self.num_blocks:
            raise BlockAccountingError(f"{len(free)} free + {num_in_use} in use is not {self.num_blocks} blocks")

    def _take_free(self, count: int) -> BlockIds:
        start = self._num_free - count
        blocks = self._free_stack[start : self._num_free][::-1].copy()
        self._num_free = start
        return blocks

    def _put_free(self, blocks: BlockIds) -> None:
        """``blocks`` ascending, without duplicates; pushed in reverse so that the lowest is reused first."""
        end = self._num_free + len(blocks)
        self._free_stack[self._num_free : end] = blocks[::-1]
        self._num_free = end

    def _count_mentions(self, blocks: BlockIds) -> tuple[BlockIds, npt.NDArray[np.int32]]:
        """The distinct ids of ``blocks``, ascending, and how often each is mentioned."""
        self._check_ids(blocks)
        unique, mentions = np.unique(blocks, return_counts=True)
        return unique, mentions.astype(np.int32)

    def _check_ids(self, blocks: BlockIds) -> None:
        # A negative id would silently index from the end.
        if len(blocks) and (int(blocks.min()) < 0 or int(blocks.max()) >= self.num_blocks):
            raise BlockAccountingError(f"block ids must be in [0, {self.num_blocks}), got {blocks.tolist()}")
