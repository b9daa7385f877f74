"""The client of a scheduler."""

from __future__ import annotations

from types import TracebackType
from typing import Self

import grpc

from metronome.scheduler.v1 import scheduler_pb2, scheduler_pb2_grpc
from metronome_client.channels import CHANNEL_OPTIONS, DEFAULT_TIMEOUT_S
from metronome_client.errors import raising_metronome_errors


class SchedulerClient:
    """Calls one scheduler over one channel. May be shared by threads. Every method raises `MetronomeError`."""

    def __init__(self, address: str) -> None:
        self._channel = grpc.insecure_channel(address, options=CHANNEL_OPTIONS)
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
        """Ask for the plan of a state. It changes nothing anywhere, so it can be asked for as often as wanted."""
        with raising_metronome_errors():
            return self._scheduler.Plan(request, timeout=DEFAULT_TIMEOUT_S)

    def verify(self, request: scheduler_pb2.VerifyRequest) -> tuple[scheduler_pb2.Violation, ...]:
        """Ask which invariants a plan breaks; none: it keeps them all."""
        with raising_metronome_errors():
            response = self._scheduler.Verify(request, timeout=DEFAULT_TIMEOUT_S)
        return tuple(response.violations)

    def list_profiles(self) -> tuple[scheduler_pb2.Profile, ...]:
        """List the named policies of the scheduler."""
        with raising_metronome_errors():
            response = self._scheduler.ListProfiles(scheduler_pb2.ListProfilesRequest(), timeout=DEFAULT_TIMEOUT_S)
        return tuple(response.profiles)
