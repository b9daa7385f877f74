"""The executor service: the books for those who ask, and the executor's life."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc
from google.protobuf.duration_pb2 import Duration

from executor_service.convert.state import cluster_state, counters_message, pass_message
from executor_service.engine.inbox import EngineClosedError
from executor_service.engine.record import Counters
from executor_service.engine.snapshot import Snapshot
from executor_service.errors import ServiceError, abort
from executor_service.executor import Executor
from executor_service.gate import check_operator
from executor_service.servicer import Serving
from executor_service.watch import WatchHub
from metronome.executor.v1 import executor_pb2 as pb
from metronome.executor.v1.executor_pb2_grpc import ExecutorServiceServicer
from metronome.inference.v1 import error_reason_pb2 as reasons

# Time between two messages of a watch while nothing runs.
PROGRESS_INTERVAL_S = 5.0

# As google.protobuf.Duration has it: 10,000 years.
MAX_DURATION_S = 315_576_000_000

Context = grpc.aio.ServicerContext[Any, Any]


class ExecutorServicer(ExecutorServiceServicer):
    def __init__(self, serving: Serving, hub: WatchHub, *, begin_drain: Callable[[], Awaitable[None]]) -> None:
        self._serving = serving
        self._hub = hub
        self._begin_drain = begin_drain

    async def GetState(self, request: pb.GetStateRequest, context: Context) -> pb.GetStateResponse:
        try:
            check_operator(self._serving.caller(context), "the state of the executor")
            return await self._state(self._serving.ready())
        except ServiceError as error:
            await abort(context, error)
            raise

    async def WatchState(self, request: pb.WatchStateRequest, context: Context) -> AsyncIterator[pb.WatchStateResponse]:
        try:
            check_operator(self._serving.caller(context), "the state of the executor")
            executor = self._serving.ready()
            min_interval_s = _seconds(request.min_interval, "min_interval")
        except ServiceError as error:
            await abort(context, error)
            raise
        with self._hub.watch() as watcher:
            while True:
                passes = [pass_message(record) for record in watcher.fetch()]
                try:
                    state = await self._state(executor)
                except ServiceError as error:
                    await abort(context, error)
                    raise
                if request.omit_requests:
                    state.state.executors[0].ClearField("requests")
                    state.ClearField("request_names")
                yield pb.WatchStateResponse(state=state, passes=passes)
                await asyncio.sleep(min_interval_s)
                await watcher.wait(PROGRESS_INTERVAL_S)

    async def Drain(self, request: pb.DrainRequest, context: Context) -> pb.DrainResponse:
        try:
            check_operator(self._serving.caller(context), "draining the executor")
        except ServiceError as error:
            await abort(context, error)
            raise
        await self._begin_drain()
        await self._serving.streams.wait_until_empty()
        return pb.DrainResponse()

    async def _state(self, executor: Executor) -> pb.GetStateResponse:
        """Between two passes, the engine's thread copies its books; what follows is done here."""

        def copy() -> tuple[Snapshot, Counters, str]:
            engine = executor.engine
            return engine.snapshot(), engine.counters.copy(), engine.planning_failure

        try:
            snapshot, counters, planning_failure = await asyncio.wrap_future(executor.engine.inbox.call(copy))
        except EngineClosedError as error:
            raise ServiceError(reasons.ERROR_REASON_DRAINING, str(error)) from error
        state = cluster_state(snapshot, executor_id=executor.executor_id)
        state.executors[0].draining = self._serving.draining
        return pb.GetStateResponse(
            state=state,
            request_names=[
                pb.RequestName(id=request_id, request_id=name) for request_id, name in self._serving.streams.names()
            ],
            counters=counters_message(counters),
            planning_failure=planning_failure,
        )


def _seconds(duration: Duration, field: str) -> float:
    """Raises ServiceError where it is negative, or no duration at all."""
    if not (0 <= duration.seconds <= MAX_DURATION_S and 0 <= duration.nanos < 1_000_000_000):
        message = f"{field} is {duration.seconds} s and {duration.nanos} ns, it must be a duration of at least 0"
        raise ServiceError(reasons.ERROR_REASON_OUT_OF_RANGE, message, field=field)
    return float(duration.seconds + duration.nanos / 1e9)
