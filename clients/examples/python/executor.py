"""A complete executor: it keeps books, asks a scheduler for a plan before every pass, and obeys. Its model is
arithmetic.

    python clients/examples/python/executor.py --port 50052 --scheduler 127.0.0.1:50051

docs/bring-your-own.md walks through it. Where yours computes, this one adds: see `Request.generate`.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import random
import time
import uuid
from typing import Any

import grpc
from checks import Checked, checked, token_text
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from metronome.executor.v1 import executor_pb2, executor_pb2_grpc
from metronome.inference.v1 import inference_pb2, inference_pb2_grpc
from metronome.scheduler.v1 import plan_pb2, scheduler_pb2, state_pb2
from metronome_client import AsyncSchedulerClient, MetronomeError, RetryPolicy, request_table
from metronome_client.executing import plan_fault, safe_plan
from metronome_client.serving import SERVER_OPTIONS, RefusalError, RefusalInterceptor

LIMITS = state_pb2.ExecutorLimits(
    max_num_batched_tokens=64,
    max_num_seqs=8,
    block_size=16,
    num_blocks=32,
    num_swap_blocks=8,
    max_model_len=512,
    max_num_waiting=4,
)
WAITING, RUNNING, SWAPPED = 1, 2, 3


class Request:
    """A row of the books, and the stream that its tokens go to."""

    def __init__(self, id: int, wanted: Checked, name: str, seed: int) -> None:
        self.id, self.wanted, self.name, self.seed = id, wanted, name, seed
        self.arrival_time_us = time.time_ns() // 1000
        self.status, self.output, self.text, self.num_sent = WAITING, [], "", 0
        self.num_computed = self.num_blocks = self.num_preemptions = self.last_run = self.times_overtaken = 0
        self.events: asyncio.Queue[Any] = asyncio.Queue()
        self.has_ended = False

    def generate(self) -> None:
        """Append the next token and tell it. Arithmetic: a number made of all tokens so far, and of the seed."""
        of = hash((*self.wanted.prompt, *self.output, 0 if self.wanted.is_greedy else self.seed))
        token = ord("a") + of % 26
        self.output.append(token)
        self.text += token_text([token])
        stop, end = self.wanted.stop_in(self.text)
        if stop is None and len(self.output) < self.wanted.max_tokens:
            end -= self.wanted.num_held_back(self.text)  # it may become a stop string yet
        delta = inference_pb2.Delta(text=self.text[self.num_sent : end], token_ids=[token])
        self.num_sent = max(end, self.num_sent)
        self.events.put_nowait(inference_pb2.GenerateResponse(delta=delta))
        if stop is not None or len(self.output) == self.wanted.max_tokens:
            usage = inference_pb2.Usage(
                num_prompt_tokens=len(self.wanted.prompt),
                num_output_tokens=len(self.output),
                num_preemptions=self.num_preemptions,
            )
            reason = inference_pb2.FINISH_REASON_LENGTH if stop is None else inference_pb2.FINISH_REASON_STOP
            finished = inference_pb2.Finished(finish_reason=reason, matched_stop=stop or "", usage=usage)
            self.end(inference_pb2.GenerateResponse(finished=finished))

    def end(self, event: Any) -> None:
        """The last event, or the RefusalError that the stream ends with. Its blocks are free before the next plan."""
        if not self.has_ended:
            self.has_ended = True
            self.events.put_nowait(event)


class Executor(inference_pb2_grpc.InferenceServiceServicer, executor_pb2_grpc.ExecutorServiceServicer):
    """The books, the loop over passes, and the methods of the contract. All of it on one event loop."""

    def __init__(self, executor_id: str, schedulers: list[str]) -> None:
        self.executor_id, self.draining, self.iteration = executor_id, False, 1
        self.requests: dict[int, Request] = {}
        self.counters, self.ids, self.news = executor_pb2.Counters(), itertools.count(1), asyncio.Event()
        self.scheduler = AsyncSchedulerClient(schedulers, retry=RetryPolicy(max_attempts=1), timeout_s=1.0)
        self.health = health.aio.HealthServicer()

    def state(self) -> state_pb2.ExecutorState:
        """The books as the scheduler sees them."""
        rows = list(self.requests.values())
        held = {status: sum(row.num_blocks for row in rows if row.status == status) for status in (RUNNING, SWAPPED)}
        table = request_table(
            id=[row.id for row in rows],
            status=[row.status for row in rows],
            arrival_time_us=[row.arrival_time_us for row in rows],
            num_prompt_tokens=[len(row.wanted.prompt) for row in rows],
            num_output_tokens=[len(row.output) for row in rows],
            num_computed_tokens=[row.num_computed for row in rows],
            max_output_tokens=[row.wanted.max_tokens for row in rows],
            num_blocks=[row.num_blocks for row in rows],
            num_preemptions=[row.num_preemptions for row in rows],
            last_run_iteration=[row.last_run for row in rows],
            times_overtaken=[row.times_overtaken for row in rows],
        )
        return state_pb2.ExecutorState(
            executor_id=self.executor_id,
            iteration=self.iteration,
            limits=LIMITS,
            num_free_blocks=LIMITS.num_blocks - held[RUNNING],
            num_free_swap_blocks=LIMITS.num_swap_blocks - held[SWAPPED],
            requests=table,
            draining=self.draining,
        )

    async def run(self) -> None:
        """Pass after pass, while there is something to do."""
        while True:
            self.requests = {id: row for id, row in self.requests.items() if not row.has_ended}
            if not self.requests:
                self.news.clear()
                await self.news.wait()
                continue
            plan = await self.plan()
            self.apply(plan)
            await asyncio.sleep(0.001 if plan.scheduled.id else 0.01)  # yours runs its forward pass here

    async def plan(self) -> plan_pb2.ExecutorPlan:
        """The scheduler's plan for the next pass; the safe plan where none comes, or none that can be carried out."""
        state = self.state()
        cluster = state_pb2.ClusterState(now_us=time.time_ns() // 1000, executors=[state])
        try:
            answer = await self.scheduler.plan(scheduler_pb2.PlanRequest(state=cluster))
        except MetronomeError:
            self.counters.num_plan_failures += 1
        else:
            if len(answer.plans) == 1 and plan_fault(state, answer.plans[0]) is None:
                return answer.plans[0]
            self.counters.num_refused_plans += 1
        self.counters.num_safe_plans += 1
        return safe_plan(state)

    def apply(self, plan: plan_pb2.ExecutorPlan) -> None:
        """Evict, reject, resume and admit; then one pass over all that is scheduled."""
        for id, mode in zip(plan.evict.id, plan.evict.mode, strict=True):
            row, is_swap = self.requests[id], mode == plan_pb2.EVICT_MODE_SWAP
            row.status, row.num_preemptions = SWAPPED if is_swap else WAITING, row.num_preemptions + 1
            if is_swap:
                self.counters.num_evicted_swap += 1
            else:
                row.num_computed = row.num_blocks = 0
                self.counters.num_evicted_recompute += 1
        for id, reason in zip(plan.reject.id, plan.reject.reason, strict=False):
            name = plan_pb2.Reason.Name(reason).removeprefix("REASON_")
            never = name.startswith("REJECTED_EXCEEDS") or name == "REJECTED_DEADLINE"
            self.requests[id].end(
                RefusalError(
                    grpc.StatusCode.RESOURCE_EXHAUSTED,
                    "REJECTED_BY_SCHEDULER",
                    "the scheduler turned it away",
                    metadata={"scheduler_reason": name},
                    retry_delay_s=None if never else 1.0,
                )
            )
            self.counters.num_rejected += 1
        for row in self.requests.values():
            row.times_overtaken += sum(id > row.id for id in plan.admit.id) if row.status == WAITING else 0
        for id in (*plan.resume.id, *plan.admit.id):
            self.requests[id].status = RUNNING
        for id, num_tokens in zip(plan.scheduled.id, plan.scheduled.num_tokens, strict=True):
            row = self.requests[id]
            row.num_computed, row.last_run = row.num_computed + num_tokens, self.iteration
            row.num_blocks = max(-(-row.num_computed // LIMITS.block_size), row.num_blocks)
            if row.num_computed == len(row.wanted.prompt) + len(row.output) and not row.has_ended:
                row.generate()
        if plan.scheduled.id or plan.evict.id or plan.reject.id:
            self.iteration, self.counters.num_iterations = self.iteration + 1, self.counters.num_iterations + 1

    async def Generate(self, request: inference_pb2.GenerateRequest, context: Any) -> Any:  # noqa: N802
        """Queue a request and stream what becomes of it; a client that leaves ends it."""
        wanted = checked(request, LIMITS)
        name = request.request_id or str(uuid.uuid4())
        if self.draining:
            raise RefusalError(grpc.StatusCode.UNAVAILABLE, "DRAINING", "this executor drains", retry_delay_s=1.0)
        if self.named(name) is not None:
            message = f"request {name!r} is here already"
            raise RefusalError(grpc.StatusCode.ALREADY_EXISTS, "DUPLICATE_REQUEST_ID", message, field="request_id")
        if sum(row.status == WAITING for row in self.requests.values()) >= LIMITS.max_num_waiting:
            raise RefusalError(grpc.StatusCode.RESOURCE_EXHAUSTED, "QUEUE_FULL", "the queue is full", retry_delay_s=1.0)
        seed = request.sampling.seed if request.sampling.HasField("seed") else random.getrandbits(32)
        row = Request(next(self.ids), wanted, name, seed)
        self.requests[row.id] = row
        self.news.set()
        try:
            started = inference_pb2.Started(
                request_id=name,
                num_prompt_tokens=len(wanted.prompt),
                sampling=wanted.parameters(seed),
                max_tokens=wanted.max_tokens,
            )
            yield inference_pb2.GenerateResponse(started=started)
            for sequence in itertools.count(1):
                event = await row.events.get()
                if isinstance(event, RefusalError):
                    raise event
                event.sequence = sequence
                yield event
                if event.HasField("finished"):
                    self.counters.num_finished += 1
                    return
        finally:
            if not row.has_ended:
                left_s = context.time_remaining()
                self.counters.num_expired += left_s is not None and left_s < 0.1
                row.end(None)

    def named(self, name: str) -> Request | None:
        """The request of this name that has not ended."""
        return next((row for row in self.requests.values() if row.name == name and not row.has_ended), None)

    async def Cancel(self, request: inference_pb2.CancelRequest, context: Any) -> Any:  # noqa: N802
        """End a request by its name."""
        row = self.named(request.request_id)
        if row is None:
            message = f"no request {request.request_id!r} is here"
            raise RefusalError(grpc.StatusCode.NOT_FOUND, "UNKNOWN_REQUEST_ID", message, field="request_id")
        row.end(RefusalError(grpc.StatusCode.CANCELLED, "CANCELLED", "it was cancelled"))
        return inference_pb2.CancelResponse()

    async def Tokenize(self, request: inference_pb2.TokenizeRequest, context: Any) -> Any:  # noqa: N802
        """Tokens are bytes."""
        return inference_pb2.TokenizeResponse(token_ids=request.text.encode())

    async def Detokenize(self, request: inference_pb2.DetokenizeRequest, context: Any) -> Any:  # noqa: N802
        """And bytes are text."""
        return inference_pb2.DetokenizeResponse(text=token_text(request.token_ids, field="token_ids"))

    async def GetModelInfo(self, request: inference_pb2.GetModelInfoRequest, context: Any) -> Any:  # noqa: N802
        """What there is instead of a model."""
        return inference_pb2.GetModelInfoResponse(
            model="arithmetic", vocab_size=256, max_model_len=LIMITS.max_model_len
        )

    async def GetState(self, request: executor_pb2.GetStateRequest, context: Any) -> Any:  # noqa: N802
        """The books, for whoever asks."""
        state = state_pb2.ClusterState(now_us=time.time_ns() // 1000, executors=[self.state()])
        names = [executor_pb2.RequestName(id=row.id, request_id=row.name) for row in self.requests.values()]
        return executor_pb2.GetStateResponse(state=state, request_names=names, counters=self.counters)

    async def Drain(self, request: executor_pb2.DrainRequest, context: Any) -> Any:  # noqa: N802
        """Take nothing new, and answer when the last has ended."""
        self.draining = True
        await self.say(health_pb2.HealthCheckResponse.NOT_SERVING)
        while any(not row.has_ended for row in self.requests.values()):
            await asyncio.sleep(0.01)
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
