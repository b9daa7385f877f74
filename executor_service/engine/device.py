"""What the engine needs of the device: the tensors behind the blocks, and the model that runs a pass over them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from executor_service.engine.apply import Copies
from executor_service.engine.books import BlockCopy
from executor_service.model.batch import RaggedBatch
from executor_service.model.runner import ExecuteResult
from executor_service.sampling.sampler import SamplingBatch

BlockIds = NDArray[np.integer[Any]]


class DeviceLostError(Exception):
    """The device runs no more passes and makes no more copies: there is nothing left to drive."""


class Runner(Protocol):
    def execute(self, batch: RaggedBatch, sampling: SamplingBatch) -> ExecuteResult: ...


class KVCopier(Protocol):
    """Copies blocks between device and swap space; a copy is complete, or fenced, when the call returns."""

    def copy_out(self, device_blocks: BlockIds, swap_blocks: BlockIds) -> None: ...

    def copy_in(self, swap_blocks: BlockIds, device_blocks: BlockIds) -> None: ...

    def copy_within(self, source: BlockIds, target: BlockIds) -> None:
        """From device blocks to others, as if all were read before any is written."""


def run_copies(copies: Copies, kv: KVCopier) -> int:
    """Make the copies of a plan, one batch a direction. Returns how many blocks went to swap space or came from it.

    All of ``out`` come first: a block that is copied out may be the target of another copy, or of the pass itself. And
    those on the device before any comes in, to a block that a tail may have been read from.
    """
    num_out = _run(kv.copy_out, copies.out)
    _run(kv.copy_within, copies.within)
    return num_out + _run(kv.copy_in, copies.into)


def _run(copy: Callable[[BlockIds, BlockIds], None], copies: tuple[BlockCopy, ...]) -> int:
    if not any(len(c.source) for c in copies):
        return 0
    source = np.concatenate([c.source for c in copies])
    copy(source, np.concatenate([c.target for c in copies]))
    return len(source)
