"""Traces by OpenTelemetry: a span for each call, a child of the caller's where the call brings a W3C context."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from opentelemetry.context import Context
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.trace import Span, SpanKind, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from scheduler_service.traces import CallTrace, Metadata, Traces

_SERVICE = "metronome.scheduler.v1.SchedulerService"
_PROPAGATOR = TraceContextTextMapPropagator()


class OtelTraces(Traces):
    def __init__(self, provider: TracerProvider) -> None:
        self._provider = provider
        self._tracer = provider.get_tracer("metronome.scheduler")

    @contextmanager
    def call(self, method: str, metadata: Metadata) -> Iterator[CallTrace]:
        carrier = {key: value for key, value in metadata if isinstance(value, str)}
        span = self._tracer.start_span(
            f"{_SERVICE}/{method}",
            context=_PROPAGATOR.extract(carrier, context=Context()),
            kind=SpanKind.SERVER,
            attributes={"rpc.system": "grpc"},
        )
        try:
            yield _OtelCall(span)
        finally:
            span.end()

    def close(self) -> None:
        self._provider.shutdown()


class _OtelCall:
    def __init__(self, span: Span) -> None:
        self._span = span

    def refused(self, reason: str) -> None:
        self._span.set_attribute("error.type", reason)
        self._span.set_status(StatusCode.ERROR, reason)
