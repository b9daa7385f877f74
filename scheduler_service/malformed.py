"""Bytes that are no message of the contract: the caller's fault, and told so.

gRPC parses a request before the method sees it, and ends a call whose bytes it cannot parse with UNKNOWN, as if the
service had failed. Here parsing gives a `Malformed` instead of raising, and the call ends with INVALID_ARGUMENT.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import grpc
from google.protobuf.message import DecodeError

from scheduler_service.errors import refuse_malformed

_Handler = Any  # grpc.RpcMethodHandler, for which no types are published


@dataclass(frozen=True, slots=True)
class Malformed:
    """Stands for a request that could not be parsed, and says why."""

    why: str


class MalformedMessageInterceptor(grpc.aio.ServerInterceptor):  # type: ignore[type-arg]
    """Refuses what is no message. `service_name`: the service whose calls it looks at, all unary or bidirectional."""

    def __init__(self, service_name: str) -> None:
        self._prefix = f"/{service_name}/"
        self._handlers: dict[str, _Handler] = {}

    async def intercept_service(
        self, continuation: Callable[[grpc.HandlerCallDetails], Awaitable[_Handler]], details: grpc.HandlerCallDetails
    ) -> _Handler:
        method: str = details.method
        known = self._handlers.get(method)
        if known is not None:
            return known
        handler = await continuation(details)
        if handler is None or not method.startswith(self._prefix):
            return handler
        return self._handlers.setdefault(method, _refusing(handler))


def _refusing(handler: _Handler) -> _Handler:
    """The handler, but that it answers what cannot be parsed."""

    def parsed(data: bytes) -> Any:
        try:
            return handler.request_deserializer(data)
        except DecodeError as error:
            return Malformed(str(error))

    async def answer(request: Any, context: Any) -> Any:
        if isinstance(request, Malformed):
            await refuse_malformed(context, request.why)
        return await handler.unary_unary(request, context)

    async def answers(requests: AsyncIterator[Any], context: Any) -> AsyncIterator[Any]:
        async for response in handler.stream_stream(_well_formed(requests, context), context):
            yield response

    if handler.unary_unary is not None:
        return grpc.unary_unary_rpc_method_handler(answer, parsed, handler.response_serializer)
    return grpc.stream_stream_rpc_method_handler(answers, parsed, handler.response_serializer)


async def _well_formed(requests: AsyncIterator[Any], context: Any) -> AsyncIterator[Any]:
    async for request in requests:
        if isinstance(request, Malformed):
            await refuse_malformed(context, request.why)
        yield request
