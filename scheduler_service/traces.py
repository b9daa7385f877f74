"""What a scheduler tells of its calls as traces: a span each, a child of the caller's.

The class here tells nobody; that of `otel_traces.py` does, where OpenTelemetry is installed and asked for.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

Metadata = Sequence[tuple[str, str | bytes]]


class CallTrace(Protocol):
    def refused(self, reason: str) -> None: ...


class Traces:
    """Traces that nobody asked for."""

    @contextmanager
    def call(self, method: str, metadata: Metadata) -> Iterator[CallTrace]:
        yield _NO_TRACE

    def close(self) -> None:
        """Send what is still to be sent."""


class _NoTrace:
    def refused(self, reason: str) -> None: ...


_NO_TRACE = _NoTrace()
