"""What goes wrong around a method: bytes that are no message, and a method that fails in a way that nobody foresaw.

Messages that cannot be parsed (broken UTF-8, cut off, no protobuf at all) are INVALID_ARGUMENT; gRPC itself answers
INTERNAL then, which tells a client to blame, and a balancer to avoid, a server that is well. What a method raises by a
fault of ours is INTERNAL with a reason; gRPC itself answers UNKNOWN, and repeats the exception to whoever called.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from typing import Any

import grpc
import structlog
from google.protobuf.message import DecodeError

from executor_service.errors import abort_failed, abort_malformed

log = structlog.get_logger()

_MALFORMED = object()


class MalformedMessageInterceptor(grpc.aio.ServerInterceptor):  # type: ignore[type-arg]
    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler[Any, Any]]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler[Any, Any]:
        handler = await continuation(handler_call_details)
        method: Any = handler and (handler.unary_stream or handler.unary_unary)
        if method is None or handler.request_streaming or handler.request_deserializer is None:
            return handler
        if handler.response_streaming:
            return grpc.unary_stream_rpc_method_handler(
                _refusing_stream(method),
                request_deserializer=_forgiving(handler.request_deserializer),
                response_serializer=handler.response_serializer,
            )
        return grpc.unary_unary_rpc_method_handler(
            _refusing_unary(method),
            request_deserializer=_forgiving(handler.request_deserializer),
            response_serializer=handler.response_serializer,
        )


def _forgiving(deserialize: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
    def forgiving(data: bytes) -> Any:
        try:
            return deserialize(data)
        except DecodeError:
            return _MALFORMED

    return forgiving


def _refusing_unary(method: Callable[..., Any]) -> Callable[..., Any]:
    async def refusing(request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> Any:
        if request is _MALFORMED:
            await abort_malformed(context)
        try:
            return await method(request, context)
        except grpc.aio.BaseError:  # likewise
            raise
        except Exception:
            log.exception("call_failed")
            await abort_failed(context)

    return refusing


def _refusing_stream(method: Callable[..., Any]) -> Callable[..., Any]:
    if not inspect.isasyncgenfunction(method):  # writes to the context, as the health service does
        return _refusing_unary(method)

    async def refusing(request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> Any:
        if request is _MALFORMED:
            await abort_malformed(context)
        # Closed here and not by the garbage collector: a client that leaves must free its memory at once.
        async with aclosing(method(request, context)) as responses:
            try:
                async for response in responses:
                    yield response
            except grpc.aio.BaseError:  # an abort, or nobody is there to hear of it any more: gRPC knows what to do
                raise
            except Exception:
                log.exception("call_failed")
                await abort_failed(context)

    return refusing
