"""The clients of schedulers, for threads and for asyncio."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Self

from metronome.scheduler.v1 import scheduler_pb2, scheduler_pb2_grpc
from metronome_client.aio import ask_async
from metronome_client.channels import DEFAULT_TIMEOUT_S, Tls, connection
from metronome_client.inference import ask
from metronome_client.retry import DEFAULT_RETRY, RetryPolicy

SERVICE = "metronome.scheduler.v1.SchedulerService"


class SchedulerClient:
    """Calls a scheduler, or several in turn, over one channel: they hold nothing, so any answers any call.

    May be shared by threads. `timeout_s`: deadline of a call. Every method raises `MetronomeError`.
    """

    def __init__(
        self,
        addresses: str | Sequence[str],
        *,
        tls: Tls | None = None,
        token: str = "",
        retry: RetryPolicy = DEFAULT_RETRY,
        timeout_s: float = DEFAULT_TIMEOUT_S,
    ) -> None:
        self._connection = connection(addresses, SERVICE, tls=tls, token=token, retry=retry, timeout_s=timeout_s)
        self._channel = self._connection.open()
        self._scheduler = scheduler_pb2_grpc.SchedulerServiceStub(self._channel)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the channel."""
        self._channel.close()

    def plan(self, request: scheduler_pb2.PlanRequest) -> scheduler_pb2.PlanResponse:
        """Ask for the plan of a state. It changes nothing anywhere, so it can be asked for as often as wanted.

        `request_table` writes the table of a state from lists or arrays, `decision` reads a plan.
        """
        return ask(self._scheduler.Plan, request, self._connection.attempts(None))

    def verify(self, request: scheduler_pb2.VerifyRequest) -> tuple[scheduler_pb2.Violation, ...]:
        """Ask which invariants a plan breaks; none: it keeps them all."""
        return tuple(ask(self._scheduler.Verify, request, self._connection.attempts(None)).violations)

    def place(self, request: scheduler_pb2.PlaceRequest) -> tuple[scheduler_pb2.Assignment, ...]:
        """Ask onto which executors to put requests that none has yet."""
        return tuple(ask(self._scheduler.Place, request, self._connection.attempts(None)).assignments)

    def list_profiles(self) -> tuple[scheduler_pb2.Profile, ...]:
        """List the named policies of the scheduler."""
        request = scheduler_pb2.ListProfilesRequest()
        return tuple(ask(self._scheduler.ListProfiles, request, self._connection.attempts(None)).profiles)


class AsyncSchedulerClient:
    """The same for asyncio: made in a running event loop, and used in that one alone."""

    def __init__(
        self,
        addresses: str | Sequence[str],
        *,
        tls: Tls | None = None,
        token: str = "",
        retry: RetryPolicy = DEFAULT_RETRY,
        timeout_s: float = DEFAULT_TIMEOUT_S,
    ) -> None:
        self._connection = connection(addresses, SERVICE, tls=tls, token=token, retry=retry, timeout_s=timeout_s)
        self._channel = self._connection.open_async()
        self._scheduler: scheduler_pb2_grpc.SchedulerServiceAsyncStub
        self._scheduler = scheduler_pb2_grpc.SchedulerServiceStub(self._channel)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the channel."""
        await self._channel.close(grace=None)

    async def plan(self, request: scheduler_pb2.PlanRequest) -> scheduler_pb2.PlanResponse:
        """Ask for the plan of a state."""
        return await ask_async(self._scheduler.Plan, request, self._connection.attempts(None))

    async def verify(self, request: scheduler_pb2.VerifyRequest) -> tuple[scheduler_pb2.Violation, ...]:
        """Ask which invariants a plan breaks; none: it keeps them all."""
        answer = await ask_async(self._scheduler.Verify, request, self._connection.attempts(None))
        return tuple(answer.violations)

    async def place(self, request: scheduler_pb2.PlaceRequest) -> tuple[scheduler_pb2.Assignment, ...]:
        """Ask onto which executors to put requests that none has yet."""
        answer = await ask_async(self._scheduler.Place, request, self._connection.attempts(None))
        return tuple(answer.assignments)

    async def list_profiles(self) -> tuple[scheduler_pb2.Profile, ...]:
        """List the named policies of the scheduler."""
        request = scheduler_pb2.ListProfilesRequest()
        return tuple((await ask_async(self._scheduler.ListProfiles, request, self._connection.attempts(None))).profiles)
