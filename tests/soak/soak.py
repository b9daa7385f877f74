"""More work than an executor can do, for a long time, from clients that give up, through schedulers that die.

Real processes with a tiny model: one executor, and a scheduler that is killed every few seconds and started anew on the
same port. First a closed loop of clients measures how many requests a second are served; then come 1.5 times as many,
at random times (Poisson), and more where more are served, on a machine that had other work before. Some are cancelled,
some have a deadline, some ask for several answers or a form. Checked is:

- Each call ends exactly once, with a status that its fate allows: an answer that is whole; CANCELLED where it was
  cancelled; DEADLINE_EXCEEDED where it had a deadline; RESOURCE_EXHAUSTED, for more come than may wait, and some
  end with it.
- The executor's counters add up, and agree with what the clients saw.
- In the end every block is free and no name is left; books that are wrong, or a request that failed, are in the log.
- Memory is flat: after the first third of the run, the median of the executor's resident memory over the last quarter
  of the samples is at most --max-growth-mib above that over the first; a scheduler never has more than
  --max-scheduler-mib.

Exit status 1 if anything does not hold. The last line of the output is a summary in JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import random
import signal
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

import grpc

from metronome.executor.v1 import executor_pb2, executor_pb2_grpc
from metronome.inference.v1 import inference_pb2 as pb
from metronome.inference.v1 import inference_pb2_grpc
from support.services import Service, free_port, running_executor, running_scheduler

OVERLOAD = 1.5
NUM_CLIENTS = 24  # of the closed loop
CAPACITY_WINDOW_S = 15.0
EXECUTOR = ("--num-blocks", "96", "--num-swap-blocks", "40", "--max-num-seqs", "16", "--max-num-waiting", "48")
NEVER_ENDS_SECONDS = 90
MAX_PROMPT_BYTES = 300  # a token each, and the tiny model takes 512 with the answer
TEXT = "the river was wide and slow that year, so they waited for winter and its ice to carry the wagons over"
WRONG_IN_THE_LOG = ("books_wrong", "engine_died", "requests_failed", "swap_copies_failed", "Traceback")


class Fate(Enum):
    """What the client means to do."""

    LISTEN = "listen"
    LEAVE = "leave"  # hang up
    CANCEL = "cancel"  # ask for the end, by name
    DEADLINE = "deadline"


LEGAL = {
    Fate.LISTEN: {grpc.StatusCode.OK},
    Fate.LEAVE: {grpc.StatusCode.OK, grpc.StatusCode.CANCELLED},
    Fate.CANCEL: {grpc.StatusCode.OK, grpc.StatusCode.CANCELLED},
    Fate.DEADLINE: {grpc.StatusCode.OK, grpc.StatusCode.DEADLINE_EXCEEDED},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    request: pb.GenerateRequest
    fate: Fate
    after_s: float  # when the client leaves, cancels, or has its deadline


@dataclass(slots=True, kw_only=True)
class Seen:
    """What the clients saw."""

    ends: Counter[str] = field(default_factory=Counter)  # by fate and status
    num_answers: int = 0  # of calls that ended with OK
    num_output_tokens: int = 0
    problems: list[str] = field(default_factory=list)

    @property
    def num_served(self) -> int:
        return self.num_ended_with(grpc.StatusCode.OK)

    def num_ended_with(self, code: grpc.StatusCode) -> int:
        return sum(count for end, count in self.ends.items() if end.endswith(f" {code.name}"))

    def complain(self, problem: str) -> None:
        """Of a call: the first twenty are enough."""
        if len(self.problems) < 20:
            self.problems.append(problem)


@dataclass(slots=True, kw_only=True)
class Memory:
    """Resident memory in MiB: of the executor, with the time of each sample, and the most of any scheduler."""

    executor: list[tuple[float, float]] = field(default_factory=list)
    most_of_a_scheduler: float = 0.0

    def growth_mib(self, from_s: float, to_s: float) -> float:
        """Between the medians of the first and the last quarter of the samples in this span; 0 where there are few."""
        samples = [mib for at, mib in self.executor if from_s <= at < to_s]
        share = len(samples) // 4
        return statistics.median(samples[-share:]) - statistics.median(samples[:share]) if share else 0.0


def main() -> int:
    args = _arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # the processes end with it
    with tempfile.TemporaryDirectory() as scratch:
        directory = Path(scratch)
        from support.model_directory import save_tiny_model

        model = save_tiny_model(directory / "model")
        scheduler_port = free_port()
        with running_executor(directory, model, *EXECUTOR, scheduler=[f"127.0.0.1:{scheduler_port}"]) as executor:
            summary = asyncio.run(_soak(args, directory, executor, scheduler_port))
            executor.process.terminate()
            status = executor.wait()
        if status != 0:
            summary["problems"].append(f"the executor ended with {status}")
        summary["problems"] += [
            f"{word!r} is in the executor's log" for word in WRONG_IN_THE_LOG if word in executor.log
        ]
        if summary["problems"] and args.keep_log:
            args.keep_log.write_text(executor.log)
    print(json.dumps(summary))
    return 1 if summary["problems"] else 0


async def _soak(args: argparse.Namespace, directory: Path, executor: Service, port: str) -> dict[str, Any]:
    rng, seen, memory = random.Random(args.seed), Seen(), Memory()
    started, seconds = time.monotonic(), args.minutes * 60
    numbers = itertools.count()
    async with grpc.aio.insecure_channel(executor.address) as channel:
        chaos = asyncio.create_task(_restart_schedulers(directory, port, random.Random(args.seed + 1), memory))
        watching = asyncio.create_task(_watch_memory(executor.process.pid, memory, started))
        capacity = await _measure_capacity(channel, rng, numbers, seen, seconds=min(20.0, seconds / 6))
        _say(f"capacity: {capacity:.1f} requests/s; now {OVERLOAD * capacity:.1f} come for {seconds:.0f} s")
        calls: set[asyncio.Task[None]] = set()
        next_s, end_s = time.monotonic(), started + seconds
        window_s, served_before = next_s, seen.num_served
        while time.monotonic() < end_s and not chaos.done():
            # What would have come while the whole machine stood still does not come at once after it.
            next_s = max(next_s, time.monotonic() - 1.0) + rng.expovariate(OVERLOAD * capacity)
            await asyncio.sleep(max(0.0, next_s - time.monotonic()))
            if (elapsed := time.monotonic() - window_s) > CAPACITY_WINDOW_S:
                capacity = max(capacity, (seen.num_served - served_before) / elapsed)
                window_s, served_before = window_s + elapsed, seen.num_served
            call = asyncio.create_task(_call(channel, _job(rng, next(numbers)), seen))
            calls.add(call)
            call.add_done_callback(calls.discard)
        loaded_s = time.monotonic() - started
        if calls:
            _, unended = await asyncio.wait(calls, timeout=NEVER_ENDS_SECONDS)
            if unended:
                seen.complain(f"{len(unended)} calls do not end")
        control = executor_pb2_grpc.ExecutorServiceStub(channel)
        state = await _when_idle(control)
        restarts = await _stop(chaos, watching, seen)
    _check_end(state, seen)
    if not seen.num_ended_with(grpc.StatusCode.RESOURCE_EXHAUSTED):
        seen.problems.append("no request was refused: that was no overload")
    growth = memory.growth_mib(seconds / 3, loaded_s)
    if growth > args.max_growth_mib:
        seen.problems.append(f"the executor's memory grew by {growth:.1f} MiB")
    if memory.most_of_a_scheduler > args.max_scheduler_mib:
        seen.problems.append(f"a scheduler had {memory.most_of_a_scheduler:.0f} MiB")
    return {
        "minutes": args.minutes,
        "capacity_requests_per_s": round(capacity, 2),
        "scheduler_restarts": restarts,
        "calls": dict(sorted(seen.ends.items())),
        "num_output_tokens": seen.num_output_tokens,
        "executor_mib": round(memory.executor[-1][1], 1),
        "executor_growth_mib": round(growth, 1),
        "most_of_a_scheduler_mib": round(memory.most_of_a_scheduler, 1),
        "counters": {f.name: getattr(state.counters, f.name) for f in state.counters.DESCRIPTOR.fields},
        "problems": seen.problems,
    }


async def _measure_capacity(
    channel: grpc.aio.Channel, rng: random.Random, numbers: Iterator[int], seen: Seen, *, seconds: float
) -> float:
    """Requests a second that a closed loop of listening clients is served."""
    end_s = time.monotonic() + seconds
    num_served = 0

    async def client() -> None:
        nonlocal num_served
        while time.monotonic() < end_s:
            job = _job(rng, next(numbers))
            await _call(channel, Job(request=job.request, fate=Fate.LISTEN, after_s=0.0), seen)
            num_served += 1

    await asyncio.gather(*(client() for _ in range(NUM_CLIENTS)))
    return num_served / seconds


def _job(rng: random.Random, number: int) -> Job:
    """Of every kind; a third begin with one of four texts, so that prefixes are shared."""
    words = TEXT.split()
    beginning = words * (1 + number % 4) if rng.random() < 0.3 else []
    prompt = " ".join(beginning + rng.choices(words, k=rng.randint(1, 40)))
    request = pb.GenerateRequest(
        request_id=f"soak-{number}", text=prompt[:MAX_PROMPT_BYTES], tenant=rng.choice(["", "a", "b"])
    )
    request.stopping.max_tokens = min(200, 1 + int(rng.expovariate(1 / 30)))
    request.stopping.ignore_eos = rng.random() < 0.5
    request.sampling.temperature = rng.choice([0.0, 0.7, 1.0])
    request.sampling.seed = number
    if rng.random() < 0.15:
        request.sampling.n = rng.randint(2, 4)
    if rng.random() < 0.05:
        request.sampling.best_of = request.sampling.n + 1 if request.sampling.HasField("n") else 2
    if rng.random() < 0.1:
        request.sampling.regex = "[a-z ]+"
    if rng.random() < 0.1:
        request.output.logprobs = 2
    if rng.random() < 0.1:
        request.stopping.stop.append("e")
    fate = rng.choices(list(Fate), weights=[65, 12, 8, 15])[0]
    return Job(request=request, fate=fate, after_s=rng.uniform(0.0, 4.0))


async def _call(channel: grpc.aio.Channel, job: Job, seen: Seen) -> None:
    """Make one call, do to it what is its fate, and look at its end."""
    stub = inference_pb2_grpc.InferenceServiceStub(channel)
    timeout = job.after_s + 0.05 if job.fate is Fate.DEADLINE else None
    stream = stub.Generate(job.request, timeout=timeout)
    meddler = asyncio.create_task(_meddle(channel, stream, job))
    tokens: Counter[int] = Counter()
    finished: Counter[int] = Counter()
    try:
        async for response in stream:
            if response.HasField("delta"):
                tokens[response.delta.index] += len(response.delta.token_ids)
                if finished[response.delta.index]:
                    seen.complain(f"{job.request.request_id}: tokens after the end of an answer")
            elif response.HasField("finished"):
                finished[response.finished.index] += 1
                if response.finished.usage.num_output_tokens != tokens[response.finished.index]:
                    seen.complain(f"{job.request.request_id}: another number of tokens than it says")
        code = grpc.StatusCode.OK
    except grpc.aio.AioRpcError as error:
        code = error.code()
    except asyncio.CancelledError:  # what a client that has hung up itself gets
        code = grpc.StatusCode.CANCELLED
    finally:
        meddler.cancel()
    seen.ends[f"{job.fate.value} {code.name}"] += 1
    seen.num_output_tokens += sum(tokens.values())
    if code not in LEGAL[job.fate] | {grpc.StatusCode.RESOURCE_EXHAUSTED}:
        seen.complain(f"{job.request.request_id}: {code.name}, and its fate was to {job.fate.value}")
    if code is grpc.StatusCode.OK:
        num_answers = job.request.sampling.n or 1
        seen.num_answers += num_answers
        if finished != Counter(range(num_answers)):
            seen.complain(f"{job.request.request_id}: {dict(finished)} of {num_answers} answers ended")


async def _meddle(channel: grpc.aio.Channel, stream: grpc.aio.UnaryStreamCall[Any, Any], job: Job) -> None:
    if job.fate is Fate.LEAVE:
        await asyncio.sleep(job.after_s)
        stream.cancel()
    elif job.fate is Fate.CANCEL:
        await asyncio.sleep(job.after_s)
        request = pb.CancelRequest(request_id=job.request.request_id)
        try:
            await inference_pb2_grpc.InferenceServiceStub(channel).Cancel(request)
        except grpc.aio.AioRpcError as error:
            if error.code() is not grpc.StatusCode.NOT_FOUND:  # it has ended, or never came in
                raise


async def _restart_schedulers(directory: Path, port: str, rng: random.Random, memory: Memory) -> int:
    """Kill a scheduler and start the next, until cancelled. Returns how many there were."""
    num_started = 0
    try:
        while True:
            with ExitStack() as stack:  # starting one takes a second, in which clients go on
                scheduler = await asyncio.to_thread(stack.enter_context, running_scheduler(directory, port=port))
                num_started += 1
                for _ in range(rng.randint(3, 30)):
                    await asyncio.sleep(1.0)
                    memory.most_of_a_scheduler = max(memory.most_of_a_scheduler, resident_mib(scheduler.process.pid))
                scheduler.process.kill()
            await asyncio.sleep(rng.uniform(0.0, 2.0))
    except asyncio.CancelledError:
        return num_started


async def _watch_memory(pid: int, memory: Memory, started: float) -> None:
    while True:
        memory.executor.append((time.monotonic() - started, resident_mib(pid)))
        await asyncio.sleep(1.0)


async def _when_idle(control: executor_pb2_grpc.ExecutorServiceAsyncStub) -> executor_pb2.GetStateResponse:
    """The books once nobody is in them, or as they are after a while."""
    end_s = time.monotonic() + NEVER_ENDS_SECONDS
    while True:
        state = await control.GetState(executor_pb2.GetStateRequest())
        if not state.state.executors[0].requests.id or time.monotonic() > end_s:
            return state
        await asyncio.sleep(0.2)


async def _stop(chaos: asyncio.Task[int], watching: asyncio.Task[None], seen: Seen) -> int:
    if chaos.done():  # only by an error
        seen.complain(f"a scheduler did not start: {chaos.exception()}")
        restarts = 0
    else:
        chaos.cancel()
        restarts = await chaos
    watching.cancel()
    return restarts


def _check_end(state: executor_pb2.GetStateResponse, seen: Seen) -> None:
    books, counters = state.state.executors[0], state.counters
    if books.requests.id or state.request_names:
        names = [name.request_id for name in state.request_names]
        seen.problems.append(f"requests are left: {list(books.requests.id)}, {names}")
    for what, free, all_ in (
        ("KV", books.num_free_blocks, books.limits.num_blocks),
        ("swap", books.num_free_swap_blocks, books.limits.num_swap_blocks),
    ):
        if free != all_:
            seen.problems.append(f"{free} of {all_} {what} blocks are free")
    ended = counters.num_finished + counters.num_cancelled + counters.num_expired
    ended += counters.num_rejected + counters.num_failed
    if ended != counters.num_accepted:
        seen.problems.append(f"{counters.num_accepted} requests were accepted, {ended} ended")
    if counters.num_failed or counters.num_rejected:
        seen.problems.append(f"{counters.num_failed} requests failed, {counters.num_rejected} were rejected")
    if counters.num_finished < seen.num_answers or counters.num_output_tokens < seen.num_output_tokens:
        seen.problems.append("clients have more answers or tokens than the executor gave")


def resident_mib(pid: int) -> float:
    """0 for a process that has ended."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except (OSError, IndexError):
        return 0.0
    return pages * 4096 / 2**20


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--max-growth-mib", type=float, default=16.0)
    parser.add_argument("--max-scheduler-mib", type=float, default=256.0)
    parser.add_argument("--keep-log", type=Path, help="where to put the executor's log if something does not hold")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
