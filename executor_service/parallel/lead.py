"""Rank 0: runs what one process would run, and has the others do the same on their parts.

``tell`` sends a message to all of them: `Workers.send`.
"""

from __future__ import annotations

from collections.abc import Callable

from executor_service.engine.device import BlockIds, DeviceLostError
from executor_service.kv.cache import KVCache
from executor_service.model.batch import RaggedBatch
from executor_service.model.runner import ExecuteResult, ModelRunner
from executor_service.parallel.messages import CopyBlocks, Direction
from executor_service.sampling.sampler import SamplingBatch


class LeadRunner:
    """A `ModelRunner` whose passes run on all ranks. Only this one samples."""

    def __init__(self, runner: ModelRunner, tell: Callable[[object], None]) -> None:
        self._runner = runner
        self._tell = tell

    def execute(self, batch: RaggedBatch, sampling: SamplingBatch) -> ExecuteResult:
        """As that of `ModelRunner`; but a forward pass that fails leaves the ranks in different places, so nothing can
        be run after it: DeviceLostError."""
        self._tell(batch)
        try:
            logits = self._runner.forward(batch)
        except Exception as error:
            raise DeviceLostError("a pass failed half way, and the ranks have lost one another") from error
        return self._runner.sample(logits, sampling)


class LeadCache:
    """Copies blocks on all ranks."""

    def __init__(self, cache: KVCache, tell: Callable[[object], None]) -> None:
        self._cache = cache
        self._tell = tell

    def copy_out(self, device_blocks: BlockIds, swap_blocks: BlockIds) -> None:
        self._tell(CopyBlocks(direction=Direction.OUT, source=device_blocks, target=swap_blocks))
        self._cache.copy_out(device_blocks, swap_blocks)

    def copy_in(self, swap_blocks: BlockIds, device_blocks: BlockIds) -> None:
        self._tell(CopyBlocks(direction=Direction.INTO, source=swap_blocks, target=device_blocks))
        self._cache.copy_in(swap_blocks, device_blocks)

    def copy_within(self, source: BlockIds, target: BlockIds) -> None:
        self._tell(CopyBlocks(direction=Direction.WITHIN, source=source, target=target))
        self._cache.copy_within(source, target)
