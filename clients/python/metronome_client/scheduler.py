"""The clients of schedulers, for threads and for asyncio."""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator, AsyncIterable, Generator, Iterable

import grpc

from metronome.scheduler.v1 import scheduler_pb2, scheduler_pb2_grpc
from metronome_client.aio import ServersEnd, ask_async, parsed
from metronome_client.client import AsyncClient, Client
from metronome_client.errors import raising_metronome_errors
from metronome_client.inference import ask

SERVICE = "metronome.scheduler.v1.SchedulerService"


class SchedulerClient(Client):
    """Calls a scheduler, or several in turn, over one channel: they hold nothing, so any answers any call.

    May be shared by threads. `timeout_s`: deadline of a call. Every method raises `MetronomeError`.
    """

    _service = SERVICE

    def _make_stubs(self, channel: grpc.Channel) -> None:
        self._scheduler = scheduler_pb2_grpc.SchedulerServiceStub(channel)

    def plan(self, request: scheduler_pb2.PlanRequest) -> scheduler_pb2.PlanResponse:
        """Ask for the plan of a state. It changes nothing anywhere, so it can be asked for as often as wanted.

        `request_table` writes the table of a state from lists or arrays, `decision` reads a plan.
        """
        return ask(self._scheduler.Plan, request, self._connection.attempts(None))

    def plan_stream(
        self, requests: Iterable[scheduler_pb2.PlanRequest], *, timeout_s: float = math.inf
    ) -> Generator[scheduler_pb2.PlanResponse, None, None]:
        """Ask for plan after plan on one stream: each request is answered in order, as `plan` would.

        `requests` is read in a thread of gRPC's, ahead of the answers. Leaving or closing the iterator ends the stream.
        One that breaks is not begun again by itself: requests hold all, so go on with the next on a new one.
        """
        with raising_metronome_errors():
            call = self._scheduler.PlanStream(iter(requests), timeout=self._connection.attempts(timeout_s).timeout_s)
            try:
                yield from call
            finally:
                call.cancel()  # type: ignore[no-untyped-call]  # grpc's stubs leave it bare

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


class AsyncSchedulerClient(AsyncClient):
    """The same for asyncio: made in a running event loop, and used in that one alone."""

    _service = SERVICE

    def _make_stubs(self, channel: grpc.aio.Channel) -> None:
        self._scheduler: scheduler_pb2_grpc.SchedulerServiceAsyncStub
        self._scheduler = scheduler_pb2_grpc.SchedulerServiceStub(channel)

    async def plan(self, request: scheduler_pb2.PlanRequest) -> scheduler_pb2.PlanResponse:
        """Ask for the plan of a state."""
        return await ask_async(self._scheduler.Plan, request, self._connection.attempts(None))

    async def plan_stream(
        self,
        requests: Iterable[scheduler_pb2.PlanRequest] | AsyncIterable[scheduler_pb2.PlanRequest],
        *,
        timeout_s: float = math.inf,
    ) -> AsyncGenerator[scheduler_pb2.PlanResponse, None]:
        """Ask for plan after plan on one stream; `requests` is read ahead of the answers."""
        with raising_metronome_errors():
            source = aiter(requests) if isinstance(requests, AsyncIterable) else iter(requests)
            call = self._scheduler.PlanStream(source, timeout=self._connection.attempts(timeout_s).timeout_s)
            end = ServersEnd(call)
            try:
                async for message in call:
                    yield parsed(message)
            except grpc.RpcError as error:
                await end.raise_for(error)
            finally:
                call.cancel()

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
