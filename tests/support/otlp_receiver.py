"""A collector of traces: takes what OTLP exporters send over gRPC, and keeps it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field

import grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc
from opentelemetry.proto.trace.v1 import trace_pb2


@dataclass(frozen=True, slots=True, kw_only=True)
class Received:
    """A span, and the service that it comes from."""

    service: str
    span: trace_pb2.Span

    @property
    def attributes(self) -> dict[str, object]:
        return {pair.key: getattr(pair.value, pair.value.WhichOneof("value")) for pair in self.span.attributes}


@dataclass(slots=True)
class Receiver(trace_service_pb2_grpc.TraceServiceServicer):
    address: str = ""
    _spans: list[Received] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def Export(
        self, request: trace_service_pb2.ExportTraceServiceRequest, context: grpc.ServicerContext
    ) -> trace_service_pb2.ExportTraceServiceResponse:
        with self._lock:
            for resource in request.resource_spans:
                names = {pair.key: pair.value.string_value for pair in resource.resource.attributes}
                for scope in resource.scope_spans:
                    self._spans += [Received(service=names["service.name"], span=span) for span in scope.spans]
        return trace_service_pb2.ExportTraceServiceResponse()

    def spans(self, name: str, service: str = "") -> list[Received]:
        """Those of this name, of one service or of any."""
        with self._lock:
            return [one for one in self._spans if one.span.name == name and service in ("", one.service)]


@contextmanager
def receiving() -> Iterator[Receiver]:
    receiver = Receiver()
    server = grpc.server(ThreadPoolExecutor(max_workers=4))
    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(receiver, server)
    receiver.address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    try:
        yield receiver
    finally:
        server.stop(None).wait()
