"""Who waits in swap space: which swap blocks hold the KV of which evicted request.

A request is here from the eviction that swapped it out to its resume, cancel or recompute, and holds its swap
blocks alone: what was shared on the device is copied for each holder. Only the integers live here; the copies are
the cache's, which must have finished or fenced a copy before it calls ``release``.

A swap space of 0 blocks is valid: swap is disabled, and every request is evicted by recompute.
"""

from __future__ import annotations

from dataclasses import dataclass

from executor_service.kv.block_pool import BlockAccountingError, BlockIds, BlockPool


class SwapSpaceFullError(Exception):
    """The request needs more swap blocks than are free. Nothing has changed; evict it by recompute instead."""

    def __init__(self, *, needed: int, free: int) -> None:
        super().__init__(f"needs {needed} swap blocks, {free} free")
        self.needed = needed
        self.free = free


class AlreadySwappedError(BlockAccountingError):
    """A request that is in swap space was to be swapped out again."""

    def __init__(self, request_id: int) -> None:
        super().__init__(f"request {request_id} is already in swap space")
        self.request_id = request_id


class NotSwappedError(BlockAccountingError):
    """A request was looked for in swap space and is not there."""

    def __init__(self, request_id: int) -> None:
        super().__init__(f"request {request_id} is not in swap space")
        self.request_id = request_id


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SwappedRequest:
    """What one request has in swap space. ``blocks`` is [num_blocks], in the order of its block table, read-only."""

    blocks: BlockIds
    num_tokens: int


class SwapSpace:
    """The books of ``num_blocks`` (>= 0) swap blocks, all free at first."""

    def __init__(self, num_blocks: int) -> None:
        self._pool = BlockPool(num_blocks)
        self._swapped: dict[int, SwappedRequest] = {}

    @property
    def num_blocks(self) -> int:
        return self._pool.num_blocks

    @property
    def num_free(self) -> int:
        return self._pool.num_free

    def __len__(self) -> int:
        """How many requests are in swap space."""
        return len(self._swapped)

    def __contains__(self, request_id: int) -> bool:
        return request_id in self._swapped

    def swap_out(self, request_id: int, *, num_blocks: int, num_tokens: int) -> BlockIds:
        """Reserve ``num_blocks`` swap blocks for the first ``num_tokens`` computed tokens of a request.

        Returns the swap block for each block of its block table, [num_blocks].
        Raises SwapSpaceFullError or AlreadySwappedError.
        """
        if num_tokens < 0:
            raise ValueError(f"num_tokens must be at least 0, got {num_tokens}")
        if request_id in self._swapped:
            raise AlreadySwappedError(request_id)
        if num_blocks > self._pool.num_free:
            raise SwapSpaceFullError(needed=num_blocks, free=self._pool.num_free)
        blocks = self._pool.allocate(num_blocks)
        blocks.flags.writeable = False
        self._swapped[request_id] = SwappedRequest(blocks=blocks, num_tokens=num_tokens)
        return blocks

    def holding(self, request_id: int) -> SwappedRequest:
        """What the request has in swap space. Raises NotSwappedError."""
        try:
            return self._swapped[request_id]
        except KeyError:
            raise NotSwappedError(request_id) from None

    def release(self, request_id: int) -> int:
        """Give up the request's swap blocks. Returns how many became free. Raises NotSwappedError."""
        num_freed = self._pool.release(self.holding(request_id).blocks)
        del self._swapped[request_id]
        return num_freed

    def check_integrity(self) -> None:
        """Raises BlockAccountingError unless every swap block is free or held by exactly one request."""
        self._pool.check_integrity(swapped.blocks for swapped in self._swapped.values())
        num_held = sum(len(swapped.blocks) for swapped in self._swapped.values())
        if num_held + self.num_free != self.num_blocks:
            raise BlockAccountingError(f"{num_held} held + {self.num_free} free is not {self.num_blocks} swap blocks")
