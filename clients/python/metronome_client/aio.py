"""The client of an executor for asyncio: the same methods as `InferenceClient`."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from types import TracebackType
from typing import Self

import grpc

from metronome.executor.v1 import executor_pb2, executor_pb2_grpc
from metronome.inference.v1 import inference_pb2, inference_pb2_grpc
from metronome_client.channels import CHANNEL_OPTIONS, DEFAULT_TIMEOUT_S, duration
from metronome_client.errors import raising_metronome_errors
from metronome_client.events import Event, event_from_message
from metronome_client.requests import ChatMessage, GenerateOptions, Prompt, generate_request, tokenize_request


class AsyncInferenceClient:
    """Calls one executor over one channel, from one event loop. Every method raises `MetronomeError`."""

    def __init__(self, address: str) -> None:
        self._channel = grpc.aio.insecure_channel(address, options=CHANNEL_OPTIONS)
        self._inference = inference_pb2_grpc.InferenceServiceStub(self._channel)
        self._executor = executor_pb2_grpc.ExecutorServiceStub(self._channel)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the channel; what streams on it is cancelled."""
        await self._channel.close(grace=None)

    async def generate(
        self, prompt: Prompt, options: GenerateOptions | None = None, *, timeout_s: float | None = None
    ) -> AsyncGenerator[Event, None]:
        """Generate, yielding events as they arrive.

        The request is sent when the first event is asked for; cancelling the task or closing the generator
        (`contextlib.aclosing`) cancels it. `timeout_s` is the deadline of the whole answer.
        """
        request = generate_request(prompt, options or GenerateOptions())
        with raising_metronome_errors():
            call = self._inference.Generate(request, timeout=timeout_s)
            try:
                async for message in call:
                    event = event_from_message(message)
                    if event is not None:
                        yield event
            finally:
                call.cancel()

    async def cancel(self, request_id: str) -> None:
        """Cancel a request of any client by its id; its own call ends with CANCELLED."""
        with raising_metronome_errors():
            await self._inference.Cancel(inference_pb2.CancelRequest(request_id=request_id), timeout=DEFAULT_TIMEOUT_S)

    async def tokenize(self, prompt: str | Sequence[ChatMessage]) -> tuple[int, ...]:
        """Turn text or a conversation into token ids, as `generate` would."""
        with raising_metronome_errors():
            response = await self._inference.Tokenize(tokenize_request(prompt), timeout=DEFAULT_TIMEOUT_S)
        return tuple(response.token_ids)

    async def detokenize(self, token_ids: Sequence[int]) -> str:
        """Turn token ids into text, special tokens left out."""
        request = inference_pb2.DetokenizeRequest(token_ids=token_ids)
        with raising_metronome_errors():
            return (await self._inference.Detokenize(request, timeout=DEFAULT_TIMEOUT_S)).text

    async def model_info(self) -> inference_pb2.GetModelInfoResponse:
        """Describe the model that the executor runs."""
        with raising_metronome_errors():
            return await self._inference.GetModelInfo(inference_pb2.GetModelInfoRequest(), timeout=DEFAULT_TIMEOUT_S)

    async def state(self) -> executor_pb2.GetStateResponse:
        """Give the executor's books as they stand between two passes."""
        with raising_metronome_errors():
            return await self._executor.GetState(executor_pb2.GetStateRequest(), timeout=DEFAULT_TIMEOUT_S)

    async def watch_state(
        self, *, min_interval_s: float = 0.0
    ) -> AsyncGenerator[executor_pb2.WatchStateResponse, None]:
        """Stream the books: the present ones first, then one message a pass, `min_interval_s` apart at least."""
        request = executor_pb2.WatchStateRequest(min_interval=duration(min_interval_s))
        with raising_metronome_errors():
            call = self._executor.WatchState(request)
            try:
                async for message in call:
                    yield message
            finally:
                call.cancel()

    async def drain(self, *, timeout_s: float | None = None) -> None:
        """Take no new requests and return when the last one has ended. At the timeout the executor goes on draining."""
        with raising_metronome_errors():
            await self._executor.Drain(executor_pb2.DrainRequest(), timeout=timeout_s)
