"""A call that fails by a fault of ours is told so and logged; one whose client has left is nobody's fault."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
from structlog.testing import capture_logs

from executor_service.malformed import MalformedMessageInterceptor

FAILED = "the executor failed at this call by a fault of its own; its log has the cause"


class Context:
    """As much of gRPC's as an abort needs."""

    def __init__(self) -> None:
        self.told: list[str] = []

    async def abort(self, code: grpc.StatusCode, details: str, trailing_metadata: Any) -> None:
        self.told.append(details)
        raise grpc.aio.AbortError


def call(error: Exception) -> tuple[list[str], list[Any]]:
    """What a streaming method that raises leads to: what the client is told, and the log."""

    async def method(request: object, context: object) -> AsyncIterator[object]:
        yield request
        raise error

    async def go() -> list[str]:
        async def handler(details: object) -> Any:
            return grpc.unary_stream_rpc_method_handler(method, request_deserializer=bytes, response_serializer=bytes)

        wrapped = await MalformedMessageInterceptor().intercept_service(handler, None)  # type: ignore[arg-type]
        context = Context()
        with pytest.raises(grpc.aio.BaseError):
            async for _ in wrapped.unary_stream("request", context):
                pass
        return context.told

    with capture_logs() as log:
        return asyncio.run(go()), log


def test_a_fault_of_ours_is_told_and_logged() -> None:
    told, log = call(ValueError("a bug"))
    assert told == [FAILED]
    assert [entry["event"] for entry in log] == ["call_failed"]


def test_a_client_that_left_while_it_was_told_is_no_fault() -> None:
    """Sending a status to it fails with an error of gRPC's own."""
    assert call(grpc.aio.InternalError("Failed execute_batch")) == ([], [])
