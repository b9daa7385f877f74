"""What an executor tells of its work as traces: of each call, of each plan that it asks for, of each pass.

The classes here tell nobody; those of `otel_traces.py` do, where OpenTelemetry is installed and asked for.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

from executor_service.convert.generate import Call
from executor_service.engine.record import PassRecord
from executor_service.engine.request import EndedEvent, FinishedEvent
from executor_service.errors import ServiceError

Metadata = Sequence[tuple[str, str | bytes]]


class CallTrace(Protocol):
    """One call of Generate."""

    def accepted(self, call: Call) -> None: ...

    def heard(self, event: FinishedEvent | EndedEvent) -> None: ...

    def refused(self, error: ServiceError) -> None: ...


class PlanTrace(Protocol):
    """One plan that was asked for. ``metadata`` goes with the call."""

    @property
    def metadata(self) -> Sequence[tuple[str, str]]: ...

    def answered(self) -> None: ...

    def failed(self, detail: str) -> None: ...

    def given_up(self) -> None: ...


class Traces:
    """Traces that nobody asked for."""

    @contextmanager
    def call(self, metadata: Metadata) -> Iterator[CallTrace]:
        yield _NoCallTrace()

    def plan(self, *, executor_id: str, iteration: int, num_requests: int) -> PlanTrace:
        return _NO_PLAN_TRACE

    def pass_done(self, executor_id: str, record: PassRecord) -> None:
        """Called on the engine's thread."""

    def close(self) -> None:
        """Send what is still to be sent."""


class _NoCallTrace:
    def accepted(self, call: Call) -> None: ...

    def heard(self, event: FinishedEvent | EndedEvent) -> None: ...

    def refused(self, error: ServiceError) -> None: ...


class _NoPlanTrace:
    metadata: Sequence[tuple[str, str]] = ()

    def answered(self) -> None: ...

    def failed(self, detail: str) -> None: ...

    def given_up(self) -> None: ...


_NO_PLAN_TRACE = _NoPlanTrace()
