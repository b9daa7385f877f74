"""A complete executor: it keeps books, asks a scheduler for a plan before every pass, and obeys. Its model adds up.

    python clients/examples/python/executor.py --port 50052 --scheduler 127.0.0.1:50051

Yours goes where this one is: `tokens_of`, `text_of`, `next_token`, and the pass in `run`. docs/bring-your-own.md walks
through it.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from metronome.executor.v1 import executor_pb2, executor_pb2_grpc
from metronome.inference.v1 import inference_pb2, inference_pb2_grpc
from metronome.scheduler.v1 import plan_pb2, scheduler_pb2, state_pb2
from metronome_client import AsyncSchedulerClient, MetronomeError, RetryPolicy
from metronome_client.executing import Books, Request, checked, known_tokens, plan_fault, safe_plan
from metronome_client.serving import SERVER_OPTIONS, RefusalInterceptor

VOCAB_SIZE = 256
LIMITS = state_pb2.ExecutorLimits(
    max_num_batched_tokens=64,
    max_num_seqs=8,
    block_size=16,
    num_blocks=32,
    num_swap_blocks=8,
    max_model_len=512,
    max_num_waiting=4,
)


def tokens_of(text: str) -> Sequence[int]:
    """Tokens are bytes."""
    return text.encode()


def text_of(tokens: Sequence[int]) -> str:
    """And text is bytes."""
    return bytes(tokens).decode(errors="replace")


def next_token(request: Request) -> int:
    """Arithmetic: a letter that all tokens so far decide, and the seed where there is chance.

    It follows from the request alone, or an eviction would change the text.
    """
    seed = 0 if request.wanted.is_greedy else request.wanted.sampling.seed
    return ord("a") + hash((*request.tokens, seed)) % 26


class Executor(inference_pb2_grpc.InferenceServiceServicer, executor_pb2_grpc.ExecutorServiceServicer):
    """The loop over passes, and the methods of the contract. All of it on one event loop."""

    def __init__(self, executor_id: str, schedulers: Sequence[str]) -> None:
        self.books = Books(executor_id, LIMITS)
        self.scheduler = AsyncSchedulerClient(schedulers, retry=RetryPolicy(max_attempts=1), timeout_s=1.0)
        self.health = health.aio.HealthServicer()

    async def run(self) -> None:
        """Pass after pass, while somebody is there."""
        while True:
            await self.books.somebody()
            work = self.books.begin(await self.plan())
            # Yours copies work.swap_out and work.swap_in, and runs all of work.chunks in one forward pass.
            await asyncio.sleep(0.001 if work.chunks else 0.01)
            self.books.commit(work)
            for request, _ in work.chunks:
                if request.is_computed:
                    token = next_token(request)
                    request.append(token, text_of([token]))

    async def plan(self) -> plan_pb2.ExecutorPlan:
        """The scheduler's plan for the next pass; the safe plan where none comes, or none that can be carried out."""
        counters, cluster = self.books.counters, self.books.cluster()
        try:
            answer = await self.scheduler.plan(scheduler_pb2.PlanRequest(state=cluster))
        except MetronomeError as error:
            self.books.planning_failure = error.message
            counters.num_plan_failures += 1
        else:
            self.books.planning_failure = ""
            if len(answer.plans) == 1 and plan_fault(cluster.executors[0], answer.plans[0]) is None:
                return answer.plans[0]
            counters.num_refused_plans += 1
        counters.num_safe_plans += 1
        return safe_plan(cluster.executors[0])

    async def Generate(self, message: inference_pb2.GenerateRequest, context: Any) -> AsyncIterator[Any]:
        """Queue a request and stream what becomes of it; a client that leaves, or whose deadline passes, ends it."""
        wanted = checked(message, LIMITS, tokenize=tokens_of, vocab_size=VOCAB_SIZE)
        request = Request(wanted, left_s=context.time_remaining())
        self.books.add(request)
        try:
            async for event in request.events():
                yield event
        finally:
            self.books.leave(request, context.time_remaining())

    async def Cancel(self, message: inference_pb2.CancelRequest, context: Any) -> Any:
        """End a request of any client."""
        self.books.cancel(message.request_id)
        return inference_pb2.CancelResponse()

    async def Tokenize(self, message: inference_pb2.TokenizeRequest, context: Any) -> Any:
        """The tokens that `Generate` counts."""
        return inference_pb2.TokenizeResponse(token_ids=tokens_of(message.text))

    async def Detokenize(self, message: inference_pb2.DetokenizeRequest, context: Any) -> Any:
        """Their text."""
        return inference_pb2.DetokenizeResponse(text=text_of(known_tokens(message.token_ids, VOCAB_SIZE, "token_ids")))

    async def GetModelInfo(self, message: inference_pb2.GetModelInfoRequest, context: Any) -> Any:
        """What there is instead of a model."""
        return inference_pb2.GetModelInfoResponse(model="arithmetic", vocab_size=VOCAB_SIZE)

    async def GetState(self, message: executor_pb2.GetStateRequest, context: Any) -> Any:
        """The books, for whoever asks."""
        return self.books.response()

    async def Drain(self, message: executor_pb2.DrainRequest, context: Any) -> Any:
        """Take nothing new, and answer when the last has ended."""
        await self.say(health_pb2.HealthCheckResponse.NOT_SERVING)
        await self.books.drained()
        return executor_pb2.DrainResponse()

    async def say(self, status: int) -> None:
        """Tell health, for the server and for each service."""
        for service in ("", "metronome.inference.v1.InferenceService", "metronome.executor.v1.ExecutorService"):
            await self.health.set(service, status)


async def main() -> None:
    """Listen, and serve until told to stop."""
    parser = argparse.ArgumentParser(description="An executor whose model is arithmetic.")
    parser.add_argument("--port", type=int, default=50052)
    parser.add_argument("--scheduler", action="append", required=True, metavar="HOST:PORT")
    arguments = parser.parse_args()
    server = grpc.aio.server(interceptors=[RefusalInterceptor("executor.metronome")], options=SERVER_OPTIONS)
    port = server.add_insecure_port(f"127.0.0.1:{arguments.port}")
    executor = Executor(f"arithmetic:{port}", arguments.scheduler)
    inference_pb2_grpc.add_InferenceServiceServicer_to_server(executor, server)
    executor_pb2_grpc.add_ExecutorServiceServicer_to_server(executor, server)
    health_pb2_grpc.add_HealthServicer_to_server(executor.health, server)
    await server.start()
    await executor.say(health_pb2.HealthCheckResponse.SERVING)
    print(f"listening on 127.0.0.1:{port}", flush=True)
    await executor.run()


if __name__ == "__main__":
    asyncio.run(main())
