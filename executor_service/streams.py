"""From the engine's thread to the streams of clients: who listens to which request, and which names are taken.

Everything but ``deliver`` runs on the event loop. A name is taken from ``open`` to the engine's word that the request
has ended, not to the client's leaving: so a late cancel can never meet the next request of the same name.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from executor_service.engine.request import EndCause, EndedEvent, Event, TokensEvent


class NameTakenError(Exception):
    """A request of this name is in the executor."""


@dataclass(slots=True, kw_only=True)
class Stream:
    """The events of one call's requests, as they come: one request for each answer."""

    request_ids: tuple[int, ...]
    name: str
    tenant: str
    events: asyncio.Queue[Event] = field(default_factory=asyncio.Queue)


class Streams:
    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._by_id: dict[int, Stream] = {}
        self._ids: dict[str, set[int]] = {}  # of those that have not ended
        self._empty = asyncio.Event()
        self._empty.set()

    def open(self, request_ids: tuple[int, ...], name: str, *, tenant: str) -> Stream:
        """Raises NameTakenError."""
        if name in self._ids:
            raise NameTakenError(name)
        stream = Stream(request_ids=request_ids, name=name, tenant=tenant)
        self._ids[name] = set(request_ids)
        self._by_id.update(dict.fromkeys(request_ids, stream))
        self._empty.clear()
        return stream

    def ids_of(self, name: str) -> tuple[int, ...]:
        """The requests of this name that have not ended."""
        return tuple(self._ids.get(name, ()))

    def tenant_of(self, name: str) -> str | None:
        """Whose requests they are; None: nobody's, there are none of this name."""
        return next((self._by_id[request_id].tenant for request_id in self._ids.get(name, ())), None)

    def names(self) -> list[tuple[int, str]]:
        """(id, name) of all requests, ascending."""
        return sorted((request_id, stream.name) for request_id, stream in self._by_id.items())

    def close(self, stream: Stream) -> None:
        """Forget a stream whose requests never reached the engine."""
        for request_id in stream.request_ids:
            self._close(stream, request_id)

    def _close(self, stream: Stream, request_id: int) -> None:
        del self._by_id[request_id]
        self._ids[stream.name].discard(request_id)
        if not self._ids[stream.name]:
            del self._ids[stream.name]
        if not self._by_id:
            self._empty.set()

    def end_all(self, cause: EndCause, detail: str) -> None:
        """Tell every client that its request has ended, when the engine cannot do so itself."""
        self._deliver([EndedEvent(request_id=request_id, cause=cause, detail=detail) for request_id in self._by_id])

    async def wait_until_empty(self) -> None:
        await self._empty.wait()

    def deliver(self, events: list[Event]) -> None:
        """Hand a pass's events over. Called on the engine's thread."""
        self._loop.call_soon_threadsafe(self._deliver, events)

    def _deliver(self, events: list[Event]) -> None:
        for event in events:
            stream = self._by_id.get(event.request_id)
            if stream is None:
                continue
            stream.events.put_nowait(event)
            if not isinstance(event, TokensEvent):
                self._close(stream, event.request_id)
