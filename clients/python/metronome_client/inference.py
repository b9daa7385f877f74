"""The client of executors, for programs without asyncio."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Sequence
from typing import Any, TypeVar

import grpc

from metronome.executor.v1 import executor_pb2, executor_pb2_grpc
from metronome.inference.v1 import inference_pb2, inference_pb2_grpc
from metronome_client.channels import ANSWER_TIMEOUT_S, duration
from metronome_client.client import Client
from metronome_client.errors import NotFoundError, error_from_call, raising_metronome_errors
from metronome_client.events import Event, event_from_message
from metronome_client.requests import ChatMessage, GenerateOptions, Prompt, generate_request, tokenize_request
from metronome_client.retry import Attempts
from metronome_client.tracing import traced

SERVICE = "metronome.inference.v1.InferenceService"

_Response = TypeVar("_Response")


GENERATE = "metronome.inference.v1.InferenceService/Generate"


class InferenceClient(Client):
    """Calls an executor, or several in turn. May be shared by threads.

    `addresses`: host:port, or several, of which those are used that say SERVING; `state`, `watch_state` and `drain`
    concern one executor, and want its `address` then. `timeout_s`: deadline of the calls that answer at once. Every
    method raises `MetronomeError`; calls are tried again only where the contract allows it (`retry`).
    """

    _service = SERVICE

    def _make_stubs(self, channel: grpc.Channel) -> None:
        self._inference = inference_pb2_grpc.InferenceServiceStub(channel)
        self._inference_of = {
            address: inference_pb2_grpc.InferenceServiceStub(alone) for address, alone in self._alone.items()
        }
        self._executor_of = {
            address: executor_pb2_grpc.ExecutorServiceStub(alone) for address, alone in self._alone.items()
        }

    def generate(
        self, prompt: Prompt, options: GenerateOptions | None = None, *, timeout_s: float | None = None
    ) -> Generator[Event, None, None]:
        """Generate, yielding events as they arrive.

        The request is sent when the first event is asked for; leaving or closing the iterator cancels it. `timeout_s`
        is the deadline of the whole answer: 10 minutes unless given, `math.inf` for none.
        """
        request = generate_request(prompt, options or GenerateOptions())
        attempts = self._connection.attempts(timeout_s, ANSWER_TIMEOUT_S)
        has_begun = False
        with traced(GENERATE) as metadata:
            while not has_begun:
                call = self._inference.Generate(request, timeout=attempts.timeout_s, metadata=metadata)
                try:
                    for message in call:
                        has_begun = True
                        event = event_from_message(message)
                        if event is not None:
                            yield event
                except grpc.RpcError as error:
                    failure = error_from_call(error)
                    if has_begun:
                        raise failure from None
                    time.sleep(attempts.pause_s(failure))
                else:
                    return
                finally:
                    call.cancel()  # type: ignore[no-untyped-call]  # grpc's stubs leave it bare

    def cancel(self, request_id: str) -> None:
        """Cancel a request of any client by its id, on whichever executor it is; its own call ends with CANCELLED."""
        request = inference_pb2.CancelRequest(request_id=request_id)
        calls = [
            inference.Cancel.future(request, timeout=self._connection.timeout_s)
            for inference in self._inference_of.values()
        ]
        check_cancelled([call.exception() for call in calls])

    def tokenize(self, prompt: str | Sequence[ChatMessage]) -> tuple[int, ...]:
        """Turn text or a conversation into token ids, as `generate` would."""
        return tuple(self._ask(self._inference.Tokenize, tokenize_request(prompt)).token_ids)

    def detokenize(self, token_ids: Sequence[int]) -> str:
        """Turn token ids into text, special tokens left out."""
        request = inference_pb2.DetokenizeRequest(token_ids=token_ids)
        return self._ask(self._inference.Detokenize, request).text

    def model_info(self) -> inference_pb2.GetModelInfoResponse:
        """Describe the model that the executor runs."""
        return self._ask(self._inference.GetModelInfo, inference_pb2.GetModelInfoRequest())

    def state(self, *, address: str | None = None) -> executor_pb2.GetStateResponse:
        """Give an executor's books as they stand between two passes."""
        executor = self._executor_of[self._connection.named(address)]
        return self._ask(executor.GetState, executor_pb2.GetStateRequest())

    def watch_state(
        self, *, address: str | None = None, min_interval_s: float = 0.0
    ) -> Generator[executor_pb2.WatchStateResponse, None, None]:
        """Stream the books: the present ones first, then one message a pass, `min_interval_s` apart at least."""
        request = executor_pb2.WatchStateRequest(min_interval=duration(min_interval_s))
        executor = self._executor_of[self._connection.named(address)]
        with raising_metronome_errors():
            call = executor.WatchState(request)
            try:
                yield from call
            finally:
                call.cancel()  # type: ignore[no-untyped-call]  # grpc's stubs leave it bare

    def drain(self, *, address: str | None = None, timeout_s: float | None = None) -> None:
        """Take no new requests and return when the last one has ended. At the timeout the executor goes on draining."""
        executor = self._executor_of[self._connection.named(address)]
        timeout_s = self._connection.attempts(timeout_s, ANSWER_TIMEOUT_S).timeout_s
        with raising_metronome_errors():
            executor.Drain(executor_pb2.DrainRequest(), timeout=timeout_s)

    def _ask(self, method: Callable[..., _Response], request: Any) -> _Response:
        return ask(method, request, self._connection.attempts(None))


def check_cancelled(failures: Sequence[Any]) -> None:
    """Raise why nobody has cancelled a request. `failures`: one of each executor, None where it has.

    Where not all say that they do not know it, it is the failure of one that may have it.
    """
    if None in failures:
        return
    errors = [error_from_call(failure) if isinstance(failure, grpc.RpcError) else failure for failure in failures]
    raise next((error for error in errors if not isinstance(error, NotFoundError)), errors[0])


def ask(method: Callable[..., _Response], request: Any, attempts: Attempts) -> _Response:
    """Make a call without side effects, again where that may help. Raises MetronomeError."""
    while True:
        try:
            return method(request, timeout=attempts.timeout_s)
        except grpc.RpcError as error:
            time.sleep(attempts.pause_s(error_from_call(error)))
