"""A method of the executor that fails in a way that nobody foresaw is INTERNAL, with a reason, for that call alone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest

from executor_service.gate import Gate
from executor_service.malformed import MalformedMessageInterceptor
from executor_service.servicer import InferenceServicer, Serving
from executor_service.streams import Streams
from executor_service.traces import Traces
from metronome.inference.v1 import inference_pb2 as pb
from metronome.inference.v1 import inference_pb2_grpc
from support.wire import TIMEOUT_SECONDS, Details, connected, details_of


class Faulty(InferenceServicer):
    """Fails where the real one asks for the model: at once, and in the midst of an answer."""

    async def Generate(self, request: pb.GenerateRequest, context: Any) -> AsyncIterator[pb.GenerateResponse]:
        yield pb.GenerateResponse(started=pb.Started())
        raise ZeroDivisionError("a secret")

    async def Detokenize(self, request: pb.DetokenizeRequest, context: Any) -> pb.DetokenizeResponse:
        raise ZeroDivisionError("a secret")


def refusals_of(address: str) -> tuple[Details, ...]:
    with connected(address) as client:
        found = [client.refused(pb.GenerateRequest(text="a"))]
        for call in (
            lambda: client.inference.Detokenize(pb.DetokenizeRequest(), timeout=TIMEOUT_SECONDS),
            lambda: client.inference.GetModelInfo(pb.GetModelInfoRequest(), timeout=TIMEOUT_SECONDS),
        ):
            with pytest.raises(grpc.RpcError) as caught:
                call()
            found.append(details_of(caught.value))
        return tuple(found)


async def refusals() -> tuple[Details, ...]:
    server = grpc.aio.server(interceptors=[MalformedMessageInterceptor()])
    serving = Serving(streams=Streams(asyncio.get_running_loop()))
    inference_pb2_grpc.add_InferenceServiceServicer_to_server(
        Faulty(serving, Gate(max_num_calls=None, quota_file=None), Traces(), on_refusal=lambda _: None), server
    )
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        return await asyncio.to_thread(refusals_of, f"127.0.0.1:{port}")
    finally:
        await server.stop(None)


def test_a_fault_of_ours_is_internal_and_tells_no_secret() -> None:
    stream, unary, loading = asyncio.run(refusals())
    for refusal in (stream, unary):
        assert (refusal.code, refusal.info.reason) == (grpc.StatusCode.INTERNAL, "REQUEST_FAILED")
        assert "secret" not in refusal.message
    # What the method says itself stays as it is.
    assert (loading.code, loading.info.reason) == (grpc.StatusCode.UNAVAILABLE, "MODEL_LOADING")
    assert loading.retry is not None
