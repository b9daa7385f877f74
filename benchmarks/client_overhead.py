"""What the Python client costs: CPU time of streaming many answers at once, against the bare generated stub.

Both receive the same answers of an executor without a model, which is a process of its own: `--requests` streams at
once of `--tokens` tokens each, over one channel; first asyncio on one event loop, then a thread for each stream. The
figure is the CPU time of this process for all of them, in turns within one run. The stub's loop reads each message's
text, as any user of it would; the client gives an event for each, with all that the contract says of it.

Exit status 1 where the client of asyncio costs more than `--max-ratio` times the stub.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import grpc

from harness.report import Figure, print_json, print_table
from harness.server_process import TOKENS, server_process
from metronome.inference.v1 import inference_pb2, inference_pb2_grpc
from metronome_client import AsyncInferenceClient, Delta, GenerateOptions, InferenceClient

TARGET_RATIO = 1.3


def main() -> int:
    """Measure, print, and give the exit status."""
    args = _arguments()
    with server_process(*TOKENS) as server:
        kinds: tuple[tuple[str, Callable[..., int], Callable[..., int]], ...] = (
            ("asyncio", _client_async, _stub_async),
            ("threads", _client_threads, _stub_threads),
        )
        figures = [_measured(name, ours, stub, server.address, args) for name, ours, stub in kinds]
    if args.json:
        print_json(figures)
    else:
        print_table(f"{args.requests} streams of {args.tokens} tokens, {args.reps} repetitions", figures)
    ratio = figures[0].ratio
    if ratio > args.max_ratio:
        print(f"the client costs {ratio:.3f} times the stub, more than {args.max_ratio:g}", file=sys.stderr)
    return ratio > args.max_ratio


def _measured(
    name: str, ours: Callable[..., int], stub: Callable[..., int], address: str, args: argparse.Namespace
) -> Figure:
    def cpu_seconds(run: Callable[..., int]) -> float:
        began = time.process_time()
        num_characters = run(address, args.requests, args.tokens)
        assert num_characters == args.requests * args.tokens * len(" token"), "answers are not whole"
        return time.process_time() - began

    cpu_seconds(stub), cpu_seconds(ours)  # warm up
    pairs = [(cpu_seconds(ours), cpu_seconds(stub)) for _ in range(args.reps)]
    per_token = 1e6 / (args.requests * args.tokens)
    return Figure(
        name=f"CPU time a token, {name}",
        unit="us",
        samples=[one * per_token for one, _ in pairs],
        sizes={"requests": args.requests, "tokens": args.tokens},
        reference="generated stub",
        reference_samples=[other * per_token for _, other in pairs],
    )


def _client_async(address: str, num_requests: int, num_tokens: int) -> int:
    async def one(client: AsyncInferenceClient) -> int:
        events = client.generate("x", GenerateOptions(max_tokens=num_tokens))
        return sum([len(event.text) async for event in events if isinstance(event, Delta)])

    async def all_of_them() -> int:
        async with AsyncInferenceClient(address) as client:
            return sum(await asyncio.gather(*(one(client) for _ in range(num_requests))))

    return asyncio.run(all_of_them())


def _stub_async(address: str, num_requests: int, num_tokens: int) -> int:
    async def one(stub: inference_pb2_grpc.InferenceServiceAsyncStub) -> int:
        call = stub.Generate(_request(num_tokens))
        return sum([len(message.delta.text) async for message in call if message.HasField("delta")])

    async def all_of_them() -> int:
        async with grpc.aio.insecure_channel(address) as channel:
            stub: inference_pb2_grpc.InferenceServiceAsyncStub = inference_pb2_grpc.InferenceServiceStub(channel)
            return sum(await asyncio.gather(*(one(stub) for _ in range(num_requests))))

    return asyncio.run(all_of_them())


def _client_threads(address: str, num_requests: int, num_tokens: int) -> int:
    options = GenerateOptions(max_tokens=num_tokens)
    with InferenceClient(address) as client, ThreadPoolExecutor(num_requests) as threads:

        def one(_: int) -> int:
            return sum(len(event.text) for event in client.generate("x", options) if isinstance(event, Delta))

        return sum(threads.map(one, range(num_requests)))


def _stub_threads(address: str, num_requests: int, num_tokens: int) -> int:
    with grpc.insecure_channel(address) as channel, ThreadPoolExecutor(num_requests) as threads:
        stub = inference_pb2_grpc.InferenceServiceStub(channel)

        def one(_: int) -> int:
            call = stub.Generate(_request(num_tokens))
            return sum(len(message.delta.text) for message in call if message.HasField("delta"))

        return sum(threads.map(one, range(num_requests)))


def _request(num_tokens: int) -> inference_pb2.GenerateRequest:
    return inference_pb2.GenerateRequest(text="x", stopping=inference_pb2.StoppingCriteria(max_tokens=num_tokens))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=256, help="streams at once (default: 256)")
    parser.add_argument("--tokens", type=int, default=200, help="tokens of each (default: 200)")
    parser.add_argument("--reps", type=int, default=5, help="pairs of runs (default: 5)")
    parser.add_argument("--max-ratio", type=float, default=TARGET_RATIO, help=f"(default: {TARGET_RATIO})")
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
