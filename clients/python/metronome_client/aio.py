"""The client of executors for asyncio: the same methods as `InferenceClient`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from typing import Any, TypeVar

import grpc

from metronome.executor.v1 import executor_pb2, executor_pb2_grpc
from metronome.inference.v1 import inference_pb2, inference_pb2_grpc
from metronome_client.channels import ANSWER_TIMEOUT_S, duration
from metronome_client.client import AsyncClient
from metronome_client.errors import (
    InternalError,
    MetronomeError,
    details_of,
    error_from_call,
    error_from_status,
    raising_metronome_errors,
)
from metronome_client.events import Event, event_from_message
from metronome_client.inference import GENERATE, SERVICE, check_cancelled
from metronome_client.requests import ChatMessage, GenerateOptions, Prompt, generate_request, tokenize_request
from metronome_client.retry import Attempts
from metronome_client.tracing import traced

_Response = TypeVar("_Response")
_Value = TypeVar("_Value")

# What gRPC says of a call, in place of its end, where a message could not be sent any more.
_COULD_NOT_SEND = "Internal error from Core"
_END_TIMEOUT_S = 1.0


class AsyncInferenceClient(AsyncClient):
    """Calls an executor, or several in turn, over one channel; settings as `InferenceClient`.

    Made in a running event loop, and used in that one alone. Every method raises `MetronomeError`.
    """

    _service = SERVICE

    def _make_stubs(self, channel: grpc.aio.Channel) -> None:
        self._inference: inference_pb2_grpc.InferenceServiceAsyncStub
        self._inference = inference_pb2_grpc.InferenceServiceStub(channel)
        self._inference_of: dict[str, inference_pb2_grpc.InferenceServiceAsyncStub] = {
            address: inference_pb2_grpc.InferenceServiceStub(alone) for address, alone in self._alone.items()
        }
        self._executor_of: dict[str, executor_pb2_grpc.ExecutorServiceAsyncStub] = {
            address: executor_pb2_grpc.ExecutorServiceStub(alone) for address, alone in self._alone.items()
        }

    async def generate(
        self, prompt: Prompt, options: GenerateOptions | None = None, *, timeout_s: float | None = None
    ) -> AsyncGenerator[Event, None]:
        """Generate, yielding events as they arrive.

        The request is sent when the first event is asked for; cancelling the task or closing the generator
        (`contextlib.aclosing`) cancels it. `timeout_s` is the deadline of the whole answer: 10 minutes unless given,
        `math.inf` for none.
        """
        request = generate_request(prompt, options or GenerateOptions())
        attempts = self._connection.attempts(timeout_s, ANSWER_TIMEOUT_S)
        has_begun = False
        with traced(GENERATE) as metadata:
            while not has_begun:
                call = self._inference.Generate(request, timeout=attempts.timeout_s, metadata=metadata)
                try:
                    async for message in call:
                        has_begun = True
                        event = event_from_message(parsed(message))
                        if event is not None:
                            yield event
                except grpc.RpcError as error:
                    failure = error_from_call(error)
                    if has_begun:
                        raise failure from None
                    await asyncio.sleep(attempts.pause_s(failure))
                else:
                    return
                finally:
                    call.cancel()

    async def cancel(self, request_id: str) -> None:
        """Cancel a request of any client by its id, on whichever executor it is; its own call ends with CANCELLED."""
        request = inference_pb2.CancelRequest(request_id=request_id)
        calls = [
            inference.Cancel(request, timeout=self._connection.timeout_s) for inference in self._inference_of.values()
        ]
        answers = await asyncio.gather(*calls, return_exceptions=True)
        check_cancelled([answer if isinstance(answer, BaseException) else None for answer in answers])

    async def tokenize(self, prompt: str | Sequence[ChatMessage]) -> tuple[int, ...]:
        """Turn text or a conversation into token ids, as `generate` would."""
        return tuple((await self._ask(self._inference.Tokenize, tokenize_request(prompt))).token_ids)

    async def detokenize(self, token_ids: Sequence[int]) -> str:
        """Turn token ids into text, special tokens left out."""
        request = inference_pb2.DetokenizeRequest(token_ids=token_ids)
        return (await self._ask(self._inference.Detokenize, request)).text

    async def model_info(self) -> inference_pb2.GetModelInfoResponse:
        """Describe the model that the executor runs."""
        return await self._ask(self._inference.GetModelInfo, inference_pb2.GetModelInfoRequest())

    async def state(self, *, address: str | None = None) -> executor_pb2.GetStateResponse:
        """Give an executor's books as they stand between two passes."""
        executor = self._executor_of[self._connection.named(address)]
        return await self._ask(executor.GetState, executor_pb2.GetStateRequest())

    async def watch_state(
        self, *, address: str | None = None, min_interval_s: float = 0.0
    ) -> AsyncGenerator[executor_pb2.WatchStateResponse, None]:
        """Stream the books: the present ones first, then one message a pass, `min_interval_s` apart at least."""
        request = executor_pb2.WatchStateRequest(min_interval=duration(min_interval_s))
        executor = self._executor_of[self._connection.named(address)]
        with raising_metronome_errors():
            call = executor.WatchState(request)
            try:
                async for message in call:
                    yield parsed(message)
            finally:
                call.cancel()

    async def drain(self, *, address: str | None = None, timeout_s: float | None = None) -> None:
        """Take no new requests and return when the last one has ended. At the timeout the executor goes on draining."""
        executor = self._executor_of[self._connection.named(address)]
        timeout_s = self._connection.attempts(timeout_s, ANSWER_TIMEOUT_S).timeout_s
        with raising_metronome_errors():
            await executor.Drain(executor_pb2.DrainRequest(), timeout=timeout_s)

    async def _ask(self, method: Callable[..., Awaitable[_Response]], request: Any) -> _Response:
        return await ask_async(method, request, self._connection.attempts(None))


async def ask_async(method: Callable[..., Awaitable[_Response]], request: Any, attempts: Attempts) -> _Response:
    """Make a call without side effects, again where that may help. Raises MetronomeError."""
    while True:
        try:
            return parsed(await method(request, timeout=attempts.timeout_s))
        except grpc.RpcError as error:
            await asyncio.sleep(attempts.pause_s(error_from_call(error)))


def parsed(message: _Response | None) -> _Response:
    """gRPC for asyncio gives None for bytes that are no message, where gRPC for threads ends the call."""
    if message is None:
        raise InternalError(grpc.StatusCode.INTERNAL, "", "the answer is no message of its type", {})
    return message


class ServersEnd:
    """How the server ended a call that sends a stream, also where a message was just being sent.

    gRPC for asyncio then puts INTERNAL in place of what the server said, before or after that arrives
    (grpc/grpc#36066), so that it is to be heard of when it arrives.
    """

    def __init__(self, call: grpc.aio.Call) -> None:
        self._error: MetronomeError | None = None
        self._is_known = asyncio.Event()
        call.add_done_callback(self._hear)

    async def raise_for(self, error: grpc.RpcError) -> None:
        """Raise as MetronomeError what the server said, if it said one, in place of what gRPC did."""
        failure = error_from_call(error)
        if failure.message == _COULD_NOT_SEND:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._is_known.wait(), _END_TIMEOUT_S)
                if self._error is None:
                    return
                failure = self._error
        raise failure from None

    def _hear(self, call: Any) -> None:
        message = _known(call.details())
        if message == _COULD_NOT_SEND or self._is_known.is_set():
            return
        code = _known(call.code())
        if code is not grpc.StatusCode.OK:
            self._error = error_from_status(code, message, details_of(_known(call.trailing_metadata())))
        self._is_known.set()


def _known(asked: Coroutine[Any, Any, _Value]) -> _Value:
    """What a coroutine gives that has nothing to wait for."""
    try:
        asked.send(None)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]  # untyped in typeshed
    raise AssertionError("it is not known yet")
