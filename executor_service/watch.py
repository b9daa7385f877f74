"""Passes on their way to those who watch the executor."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

from executor_service.engine.record import PassRecord

MAX_PENDING_PASSES = 1024


class Watcher:
    """Gathers passes between two messages; the oldest go first when nobody fetches them."""

    def __init__(self) -> None:
        self._passes: deque[PassRecord] = deque(maxlen=MAX_PENDING_PASSES)
        self._something_new = asyncio.Event()

    def put(self, record: PassRecord) -> None:
        self._passes.append(record)
        self._something_new.set()

    async def wait(self, timeout_s: float) -> None:
        """Rest until there is a pass, or for so long."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._something_new.wait()
        except TimeoutError:
            return

    def fetch(self) -> list[PassRecord]:
        passes = list(self._passes)
        self._passes.clear()
        self._something_new.clear()
        return passes


class WatchHub:
    """All runs on the event loop, but ``publish``."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._watchers: set[Watcher] = set()

    @contextmanager
    def watch(self) -> Iterator[Watcher]:
        watcher = Watcher()
        self._watchers.add(watcher)
        try:
            yield watcher
        finally:
            self._watchers.discard(watcher)

    def publish(self, record: PassRecord) -> None:
        """Called on the engine's thread."""
        if self._watchers:
            self._loop.call_soon_threadsafe(self._publish, record)

    def _publish(self, record: PassRecord) -> None:
        for watcher in self._watchers:
            watcher.put(record)
