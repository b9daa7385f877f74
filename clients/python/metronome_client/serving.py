"""For services of one's own: refusals that arrive as the contract wants them.

A method raises a `RefusalError`, and the interceptor makes it a status with its details; bytes that are no message are
refused before the method is called, and what a method raises by a fault of its own is INTERNAL.

    server = grpc.aio.server(interceptors=[RefusalInterceptor(domain="executor.metronome")], options=SERVER_OPTIONS)
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import aclosing
from typing import Any

import grpc
from google.protobuf.message import DecodeError

from metronome_client.channels import MAX_MESSAGE_BYTES
from metronome_client.details import Details, Violation, write_details

SERVER_OPTIONS: tuple[tuple[str, int], ...] = (
    ("grpc.so_reuseport", 0),
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    # Clients may ping every 10 s, also while they only wait.
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
    ("grpc.keepalive_permit_without_calls", 1),
    # A client that vanished without a word is noticed in 40 s.
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.ping_timeout_ms", 10_000),
    ("grpc.http2.max_pings_without_data", 0),
)

_Handler = Any  # grpc.RpcMethodHandler, for which no types are published


class RefusalError(Exception):
    """Ends a call. `field`: path of the field at fault; `retry_delay_s`: when to come again, None: never."""

    def __init__(
        self,
        code: grpc.StatusCode,
        reason: str,
        message: str,
        *,
        field: str = "",
        metadata: Mapping[str, str] | None = None,
        retry_delay_s: float | None = None,
    ) -> None:
        super().__init__(message)
        self.code, self.message = code, message
        self.reason, self.field, self.retry_delay_s = reason, field, retry_delay_s
        self.metadata = {**({"field": field} if field else {}), **(metadata or {})}

    def details(self, domain: str) -> bytes:
        """What goes into the trailing metadata."""
        violations = (Violation(self.field, self.message),) if self.field else ()
        details = Details(
            reason=self.reason,
            domain=domain,
            metadata=self.metadata,
            field_violations=violations,
            retry_delay_s=self.retry_delay_s,
        )
        return write_details(self.code.value[0], self.message, details)


class RefusalInterceptor(grpc.aio.ServerInterceptor):  # type: ignore[type-arg]
    """Ends calls as their methods refuse them. `domain`: of ErrorInfo; `failed`: the reason of a fault of ours."""

    def __init__(self, domain: str, failed: str = "REQUEST_FAILED") -> None:
        self._domain, self._failed = domain, failed

    async def intercept_service(
        self, continuation: Callable[[grpc.HandlerCallDetails], Awaitable[_Handler]], details: grpc.HandlerCallDetails
    ) -> _Handler:
        """Wrap methods that answer with one message or a stream of them."""
        handler = await continuation(details)
        if handler is None or handler.request_streaming:
            return handler
        parsed = _forgiving(handler.request_deserializer)
        if handler.response_streaming:
            return grpc.unary_stream_rpc_method_handler(
                self._stream(handler.unary_stream), parsed, handler.response_serializer
            )
        return grpc.unary_unary_rpc_method_handler(
            self._unary(handler.unary_unary), parsed, handler.response_serializer
        )

    def _unary(self, method: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def answer(request: Any, context: Any) -> Any:
            try:
                return await method(_checked(request), context)
            except Exception as error:
                await self._end(context, error)

        return answer

    def _stream(self, method: Callable[..., Any]) -> Callable[..., Any]:
        async def answers(request: Any, context: Any) -> AsyncIterator[Any]:
            try:
                async with aclosing(method(_checked(request), context)) as responses:
                    async for response in responses:
                        yield response
            except Exception as error:
                await self._end(context, error)

        return answers

    async def _end(self, context: Any, error: Exception) -> None:
        if isinstance(error, grpc.aio.AbortError | grpc.aio.UsageError | NotImplementedError):
            raise error
        if not isinstance(error, RefusalError):
            context.set_code(grpc.StatusCode.INTERNAL)
            error = RefusalError(grpc.StatusCode.INTERNAL, self._failed, "the service failed at this call")
        trailing = (("grpc-status-details-bin", error.details(self._domain)),)
        await context.abort(error.code, error.message, trailing_metadata=trailing)


def _forgiving(deserialize: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
    def parsed(data: bytes) -> Any:
        try:
            return deserialize(data)
        except DecodeError as error:
            return RefusalError(
                grpc.StatusCode.INVALID_ARGUMENT, "MALFORMED_MESSAGE", f"no message of its type: {error}"
            )

    return parsed


def _checked(request: Any) -> Any:
    if isinstance(request, RefusalError):
        raise request
    return request
