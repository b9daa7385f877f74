"""Spans of calls, for a program that traces with OpenTelemetry; without it, or where it traces nothing, none.

A span goes to the tracer provider that the program has set and is a child of its current span; the server's is a child
of it: the context travels in the call's metadata as W3C has it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from metronome_client.errors import MetronomeError

try:
    from opentelemetry import propagate, trace
except ImportError:
    is_available = False
else:
    is_available = True

Metadata = tuple[tuple[str, str], ...]


@contextmanager
def traced(method: str) -> Iterator[Metadata]:
    """Trace what happens in the block as one call of `method`; yields the metadata that it is to bring."""
    if not is_available:
        yield ()
        return
    span = trace.get_tracer("metronome.client").start_span(
        method, kind=trace.SpanKind.CLIENT, attributes={"rpc.system": "grpc"}
    )
    carrier: dict[str, str] = {}
    propagate.inject(carrier, context=trace.set_span_in_context(span))
    try:
        yield tuple(carrier.items())
    except MetronomeError as error:
        span.set_attribute("error.type", error.reason or error.code.name)
        span.set_status(trace.StatusCode.ERROR, error.message)
        raise
    finally:
        span.end()
