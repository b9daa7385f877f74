"""A collector of traces that throws away what it gets."""

from __future__ import annotations

import argparse
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc


class Sink(trace_service_pb2_grpc.TraceServiceServicer):
    def Export(  # noqa: N802  # the name that the contract gives it
        self, request: trace_service_pb2.ExportTraceServiceRequest, context: grpc.ServicerContext
    ) -> trace_service_pb2.ExportTraceServiceResponse:
        return trace_service_pb2.ExportTraceServiceResponse()


def main() -> None:
    """Listen on a free port of loopback, and write the address into the file."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--address-file", type=Path, required=True)
    address_file = parser.parse_args().address_file
    server = grpc.server(ThreadPoolExecutor(max_workers=2))
    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(Sink(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    partial = address_file.with_suffix(".partial")
    partial.write_text(f"127.0.0.1:{port}", encoding="utf-8")
    partial.rename(address_file)
    server.wait_for_termination()


if __name__ == "__main__":
    sys.exit(main())
