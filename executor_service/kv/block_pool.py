"""Who holds which KV block: a reference-counted pool over the block ids 0 .. num_blocks - 1.

    in use ──release──▶ empty   nothing in it is of use: on the free stack
       │                  ▲
       └────release──▶  kept    its content may be asked for again: in the order of last use
            (``keep``)          both are free; ``allocate`` takes either, ``share`` brings a kept one back into use

Rules:

* A block is free (reference count 0; on the free stack or among the kept, exactly once) or in use (count >= 1).
* Every operation is all or nothing: it raises before anything has changed, or it changes everything.
* Allocation is deterministic. Empty blocks go first, the last freed first, since their memory is the warmest, and among
  blocks freed together the lowest id first. Then kept ones lose their content, the least recently used first; among
  blocks freed together the last mentioned first, so that a text is lost from its end.

``_take_free`` and ``_put_free`` are the only code that knows the order in which free blocks are reused.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from executor_service.kv.kept_blocks import KeptBlocks

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
        # [num_blocks]; the empty blocks are [:num_empty], the next one to be allocated is the last of them.
        self._free_stack = np.arange(num_blocks, dtype=np.int32)[::-1].copy()
        self._num_empty = num_blocks
        self._has_content = np.zeros(num_blocks, dtype=np.bool_)  # [num_blocks] worth keeping, in use or free
        self._kept = KeptBlocks(num_blocks)  # the free ones with content, least recently used first

    @property
    def num_blocks(self) -> int:
        return len(self._ref_counts)

    @property
    def num_free(self) -> int:
        """Blocks that can be allocated: the empty and the kept."""
        return self._num_empty + len(self._kept)

    @property
    def num_kept(self) -> int:
        """Free blocks that have content still."""
        return len(self._kept)

    def allocate(self, count: int) -> BlockIds:
        """Take ``count`` (>= 0) free blocks, each with one reference. Returns their ids, [count].

        Kept ones among them are kept no longer. Raises OutOfBlocksError if fewer are free.
        """
        if count < 0:
            raise ValueError(f"count must be at least 0, got {count}")
        if count > self.num_free:
            raise OutOfBlocksError(needed=count, free=self.num_free)
        blocks = self._take_free(count)
        self._ref_counts[blocks] = 1
        return blocks

    def with_content(self) -> BlockIds:
        """The blocks with content worth keeping, in use or free; ascending."""
        return np.flatnonzero(self._has_content).astype(np.int32)

    def share(self, blocks: BlockIds) -> None:
        """Add one reference for each mention in ``blocks``; kept blocks come back into use with their content.

        Raises BlockAccountingError if one of them is empty.
        """
        unique, mentions = self._count_mentions(blocks)
        unheld = unique[self._ref_counts[unique] == 0]
        empty = unheld[~self._has_content[unheld]]
        if len(empty):
            raise BlockAccountingError(f"cannot share empty blocks {empty.tolist()}")
        self._kept.remove(unheld)
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
        self._put_free(freed, blocks)
        return len(freed)

    def keep(self, blocks: BlockIds) -> None:
        """From now on ``blocks``, all in use, have content worth keeping when they become free.

        Raises BlockAccountingError if one of them is free.
        """
        self._check_ids(blocks)
        unheld = blocks[self._ref_counts[blocks] == 0]
        if len(unheld):
            raise BlockAccountingError(f"cannot keep free blocks {unheld.tolist()}")
        self._has_content[blocks] = True

    def discard(self, blocks: BlockIds) -> None:
        """The content of ``blocks`` is of no use any more; kept ones become empty, those in use will."""
        unique, _ = self._count_mentions(blocks)
        emptied = unique[self._has_content[unique] & (self._ref_counts[unique] == 0)]
        self._has_content[unique] = False
        self._kept.remove(emptied)
        self._push_empty(emptied)

    def reference_counts(self, blocks: BlockIds) -> npt.NDArray[np.int32]:
        """How many references each of ``blocks`` has, in the same shape; above 1 means that others hold it too."""
        self._check_ids(blocks)
        return self._ref_counts[blocks]

    def reference_counts_without(self, released: BlockIds) -> npt.NDArray[np.int32]:
        """[num_blocks] what the counts of all blocks would be once ``released`` was. Nothing changes.

        Raises BlockAccountingError as ``release`` would.
        """
        self._check_ids(released)
        counts = self._ref_counts.copy()
        np.subtract.at(counts, released, 1)
        if len(released) and int(counts[released].min()) < 0:
            raise BlockAccountingError(f"released more often than held: blocks {released.tolist()}")
        return counts

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
        empty = self._free_stack[: self._num_empty]
        kept = self._kept.in_order()
        if len(kept) != len(self._kept):
            raise BlockAccountingError(f"{len(kept)} blocks are kept, {len(self._kept)} are counted")
        free = np.concatenate([empty, kept])
        if len(np.unique(free)) != len(free):
            raise BlockAccountingError("a block is free twice")
        if np.any(self._has_content[empty]) or not np.all(self._has_content[kept]):
            raise BlockAccountingError("an empty block has content, or a kept one has none")
        num_in_use = int(np.count_nonzero(self._ref_counts))
        if np.any(self._ref_counts[free]) or len(free) + num_in_use != self.num_blocks:
            raise BlockAccountingError(
                f"{len(empty)} empty + {len(kept)} kept + {num_in_use} in use is not {self.num_blocks} blocks"
            )

    def _take_free(self, count: int) -> BlockIds:
        start = max(0, self._num_empty - count)
        blocks = self._free_stack[start : self._num_empty][::-1].copy()
        self._num_empty = start
        if len(blocks) < count:
            blocks = np.concatenate([blocks, self._kept.take_first(count - len(blocks))])
            self._has_content[blocks] = False
        return blocks

    def _put_free(self, freed: BlockIds, mentioned: BlockIds) -> None:
        """``freed`` ascending, without duplicates; ``mentioned``: all that were released, in the order of a text."""
        has_content = self._has_content[freed]
        self._push_empty(freed[~has_content])
        if has_content.any():
            last_first = mentioned[::-1]
            if len(freed) < len(mentioned):  # some are mentioned twice, or held by others still
                _, first_mentions = np.unique(last_first, return_index=True)
                last_first = last_first[np.sort(first_mentions)]
            self._kept.append(last_first[self._has_content[last_first] & (self._ref_counts[last_first] == 0)])

    def _push_empty(self, blocks: BlockIds) -> None:
        """``blocks`` ascending, without duplicates; pushed in reverse so that the lowest is reused first."""
        end = self._num_empty + len(blocks)
        self._free_stack[self._num_empty : end] = blocks[::-1]
        self._num_empty = end

    def _count_mentions(self, blocks: BlockIds) -> tuple[BlockIds, npt.NDArray[np.int32]]:
        """The distinct ids of ``blocks``, ascending, and how often each is mentioned."""
        self._check_ids(blocks)
        ascending = np.sort(blocks)
        if (ascending[1:] > ascending[:-1]).all():  # as of one holder, who has each once
            return ascending, np.ones(len(blocks), dtype=np.int32)
        unique, mentions = np.unique(ascending, return_counts=True)
        return unique, mentions.astype(np.int32)

    def _check_ids(self, blocks: BlockIds) -> None:
        # A negative id would silently index from the end; without its sign it is past the end.
        if len(blocks) and int(blocks.view(np.uint32).max()) >= self.num_blocks:
            raise BlockAccountingError(f"block ids must be in [0, {self.num_blocks}), got {blocks.tolist()}")
