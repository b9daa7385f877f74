"""An executor without a model: answers each `Generate` with so many tokens as fast as gRPC sends them."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc

from metronome.inference.v1 import inference_pb2, inference_pb2_grpc


class TokenServer(inference_pb2_grpc.InferenceServiceServicer):
    """Sends `started`, a delta for each of `max_tokens`, and `finished`."""

    async def Generate(  # noqa: N802  # the contract's name
        self, request: inference_pb2.GenerateRequest, context: Any
    ) -> AsyncIterator[inference_pb2.GenerateResponse]:
        """Stream."""
        num_tokens = request.stopping.max_tokens
        yield inference_pb2.GenerateResponse(started=inference_pb2.Started(request_id="r", max_tokens=num_tokens))
        for token in range(num_tokens):
            delta = inference_pb2.Delta(text=" token", token_ids=[token])
            yield inference_pb2.GenerateResponse(sequence=token + 1, delta=delta)
        usage = inference_pb2.Usage(num_prompt_tokens=3, num_output_tokens=num_tokens)
        finished = inference_pb2.Finished(finish_reason=inference_pb2.FINISH_REASON_LENGTH, usage=usage)
        yield inference_pb2.GenerateResponse(sequence=num_tokens + 1, finished=finished)


async def main() -> None:
    """Listen on a free port of loopback, and write the address into the file."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--address-file", type=Path, required=True)
    arguments = parser.parse_args()
    server = grpc.aio.server()
    inference_pb2_grpc.add_InferenceServiceServicer_to_server(TokenServer(), server)
    port = server.add_insecure_port(f"127.0.0.1:{arguments.port}")
    await server.start()
    partial = arguments.address_file.with_suffix(".partial")
    partial.write_text(f"127.0.0.1:{port}", encoding="utf-8")
    partial.rename(arguments.address_file)
    await server.wait_for_termination()


if __name__ == "__main__":
    asyncio.run(main())
