"""The end of the service in order: who comes is sent elsewhere, and streams that are open have a while to end."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager


class Drain:
    """Runs on the event loop. A unary call is answered in one go, so it is streams alone that have to be waited for."""

    def __init__(self) -> None:
        self.has_begun = False
        self.is_over = False
        self._streams: set[asyncio.Task[object]] = set()
        self._empty = asyncio.Event()
        self._empty.set()

    @contextmanager
    def stream(self) -> Iterator[None]:
        """Lasts as long as the current task answers a stream, which is cancelled when the drain is over."""
        task = asyncio.current_task()
        assert task is not None
        self._streams.add(task)
        self._empty.clear()
        try:
            yield
        finally:
            self._streams.discard(task)
            if not self._streams:
                self._empty.set()

    async def run(self, grace_s: float) -> None:
        """Wait for open streams to end, at most so long, and end the rest."""
        self.has_begun = True
        try:
            async with asyncio.timeout(grace_s):
                await self._empty.wait()
        except TimeoutError:
            self.is_over = True
            for task in self._streams:
                task.cancel()
            await self._empty.wait()
