"""What all clients have: settings, channels, and their end."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from types import TracebackType
from typing import ClassVar, Self

import grpc

from metronome_client.channels import DEFAULT_TIMEOUT_S, Tls, connection
from metronome_client.retry import DEFAULT_RETRY, RetryPolicy


class Client(ABC):
    """A client for threads. A subclass names the service, and makes its stubs of the channel."""

    _service: ClassVar[str]

    def __init__(
        self,
        addresses: str | Sequence[str],
        *,
        tls: Tls | None = None,
        token: str = "",
        retry: RetryPolicy = DEFAULT_RETRY,
        timeout_s: float = DEFAULT_TIMEOUT_S,
    ) -> None:
        self._connection = connection(addresses, self._service, tls=tls, token=token, retry=retry, timeout_s=timeout_s)
        self._channel = self._connection.open()
        self._alone = dict.fromkeys(self._connection.addresses, self._channel)
        if len(self._alone) > 1:
            self._alone = {address: one.open() for address, one in self._connection.alone().items()}
        self._make_stubs(self._channel)

    @abstractmethod
    def _make_stubs(self, channel: grpc.Channel) -> None: ...

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the channels; what streams on them is cancelled."""
        for channel in {self._channel, *self._alone.values()}:
            channel.close()


class AsyncClient(ABC):
    """The same for asyncio: made in a running event loop, and used in that one alone."""

    _service: ClassVar[str]

    def __init__(
        self,
        addresses: str | Sequence[str],
        *,
        tls: Tls | None = None,
        token: str = "",
        retry: RetryPolicy = DEFAULT_RETRY,
        timeout_s: float = DEFAULT_TIMEOUT_S,
    ) -> None:
        self._connection = connection(addresses, self._service, tls=tls, token=token, retry=retry, timeout_s=timeout_s)
        self._channel = self._connection.open_async()
        self._alone = dict.fromkeys(self._connection.addresses, self._channel)
        if len(self._alone) > 1:
            self._alone = {address: one.open_async() for address, one in self._connection.alone().items()}
        self._make_stubs(self._channel)

    @abstractmethod
    def _make_stubs(self, channel: grpc.aio.Channel) -> None: ...

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the channels; what streams on them is cancelled."""
        for channel in {self._channel, *self._alone.values()}:
            await channel.close(grace=None)
