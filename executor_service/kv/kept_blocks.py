"""Free blocks that have content still, in the order in which they lose it.

    queue   | 7 . 3 5 . . 9 | free |      block 5 stands at place 3; a dot is who left: its block has another place now
              first       end

Whoever is added stands last, whoever is used again leaves from anywhere, and the first ones lose their content. Each is
a few operations on arrays, however many blocks there are, and 12 bytes a block. Places are never moved up; where the
queue is at its end those who are in it still are written to its beginning anew, at most once in as many additions as
there are blocks.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Blocks = npt.NDArray[np.int32]

# How many places are looked at in one go for those who are in the queue still.
_WINDOW = 256


class KeptBlocks:
    """Some of the blocks 0 .. ``num_blocks`` - 1, each at most once."""

    def __init__(self, num_blocks: int) -> None:
        self._queue: Blocks = np.zeros(2 * num_blocks, dtype=np.int32)
        self._place = np.zeros(num_blocks, dtype=np.int32)  # [num_blocks] in the queue, counted from 1; 0: not there
        self._first = 0
        self._end = 0
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def append(self, blocks: Blocks) -> None:
        """Put ``blocks``, distinct and none of them kept, last, in this order."""
        if self._end + len(blocks) > len(self._queue):
            self._start_anew()
        start, self._end = self._end, self._end + len(blocks)
        self._queue[start : self._end] = blocks
        self._place[blocks] = np.arange(start + 1, self._end + 1, dtype=np.int32)
        self._count += len(blocks)

    def remove(self, blocks: Blocks) -> None:
        """Take ``blocks``, distinct and all of them kept, out."""
        self._place[blocks] = 0
        self._count -= len(blocks)

    def take_first(self, count: int) -> Blocks:
        """Take out the first ``count``, at most as many as there are. Returns them in their order."""
        assert count <= len(self), f"{count} of {len(self)} kept blocks"
        taken: list[Blocks] = []
        while count > 0:
            window_end = min(self._first + max(count, _WINDOW), self._end)
            places = self._places_within(self._first, window_end)[:count]
            count -= len(places)
            self._first = window_end if count > 0 else int(places[-1]) + 1
            taken.append(self._queue[places])
        blocks = np.concatenate([self._queue[:0], *taken])
        self.remove(blocks)
        return blocks

    def in_order(self) -> Blocks:
        """All of them, the first to lose its content first."""
        return self._queue[self._places_within(self._first, self._end)]

    def _places_within(self, start: int, end: int) -> npt.NDArray[np.int64]:
        """The places from ``start`` to before ``end`` whose blocks have not left."""
        return start + np.flatnonzero(self._place[self._queue[start:end]] == np.arange(start + 1, end + 1))

    def _start_anew(self) -> None:
        blocks = self.in_order()
        self._first, self._end, self._count = 0, 0, 0
        self.append(blocks)
