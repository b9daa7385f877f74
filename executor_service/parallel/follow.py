"""What a rank above 0 does once all have met: what rank 0 does, in the same order, over its own part."""

from __future__ import annotations

from collections.abc import Callable

from executor_service.kv.cache import KVCache
from executor_service.model.batch import RaggedBatch
from executor_service.model.runner import ModelRunner
from executor_service.parallel.messages import CopyBlocks, Direction


def follow(receive: Callable[[], object], runner: ModelRunner, cache: KVCache) -> object:
    """Run passes and make copies as they come. Returns the first message that is neither."""
    copies = {Direction.OUT: cache.copy_out, Direction.INTO: cache.copy_in, Direction.WITHIN: cache.copy_within}
    while True:
        message = receive()
        if isinstance(message, RaggedBatch):
            runner.forward(message)
        elif isinstance(message, CopyBlocks):
            copies[message.direction](message.source, message.target)
        else:
            return message
