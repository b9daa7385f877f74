"""A local stack for a measurement, and jobs sent to it at their times."""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import aclosing, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path

from harness.timings import Answer
from harness.workload import Job
from metronome.executor.v1 import executor_pb2
from metronome_cli.stack.local import StackSettings, start_stack
from metronome_cli.stack.services import ExecutorSettings
from metronome_cli.stack.start import Lifetime
from metronome_client import AsyncInferenceClient, Delta, GenerateOptions

WATCH_INTERVAL_S = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalStack:
    """Scheduler and executor, ready. `address`: the executor's. `start_s`: what it took until both reported SERVING."""

    address: str
    pids: tuple[int, ...]
    start_s: float

    name = "Metronome"

    def run(self, jobs: Sequence[Job], arrivals_s: Sequence[float]) -> list[Answer]:
        """Stream each job at its time, greedy, to its full length. Raises RuntimeError where an answer is not whole."""
        return asyncio.run(_run_timed(self.address, jobs, arrivals_s))


@contextmanager
def running_stack(executor: ExecutorSettings) -> Iterator[LocalStack]:
    """Scheduler and executor as processes of their own."""
    with tempfile.TemporaryDirectory() as directory:
        started = time.monotonic()
        stack = start_stack(
            StackSettings(executor=executor),
            Path(directory),
            Lifetime.WITH_PARENT,
            on_progress=lambda message: print(message, file=sys.stderr),
            on_launch=lambda services: None,
        )
        start_s = time.monotonic() - started
        pids = tuple(service.process.pid for service in stack.services)
        try:
            yield LocalStack(address=stack.executor_address, pids=pids, start_s=start_s)
        finally:
            stack.stop()


@contextmanager
def local_stack(executor: ExecutorSettings) -> Iterator[str]:
    """The same, where the executor's address is all that matters."""
    with running_stack(executor) as stack:
        yield stack.address


def run_jobs(address: str, jobs: Sequence[Job]) -> tuple[list[list[int]], float]:
    """Stream all jobs at once, greedy, to their full length. Returns each one's tokens, and the seconds in all."""
    return asyncio.run(_run_jobs(address, jobs))


async def stream(
    client: AsyncInferenceClient,
    job: Job,
    *,
    clock_zero: float,
    at_s: float = 0.0,
    on_tokens: Callable[[int], None] = lambda num_tokens: None,
) -> Answer:
    """Stream one job, greedy, to its full length, when the clock of the run says so, or at once if that is past.

    ``clock_zero``: a time of ``time.perf_counter()``. ``on_tokens`` gets the number of tokens so far.

    Raises RuntimeError where the answer is not whole.
    """
    await asyncio.sleep(max(0.0, clock_zero + at_s - time.perf_counter()))
    options = GenerateOptions(max_tokens=job.num_output_tokens, temperature=0, ignore_eos=True)
    sent_s, times_s = time.perf_counter() - clock_zero, list[float]()
    async for event in client.generate(job.prompt_token_ids, options):
        if isinstance(event, Delta):
            times_s.extend([time.perf_counter() - clock_zero] * len(event.token_ids))
            on_tokens(len(times_s))
    if len(times_s) != job.num_output_tokens:
        raise RuntimeError(f"{len(times_s)} tokens instead of {job.num_output_tokens}")
    return Answer(sent_s=sent_s, token_times_s=times_s)


@asynccontextmanager
async def watched_passes(client: AsyncInferenceClient) -> AsyncIterator[list[executor_pb2.Pass]]:
    """The passes that the executor runs meanwhile; all are there when it is left."""
    passes: list[executor_pb2.Pass] = []
    is_watching = asyncio.Event()

    async def watch() -> None:
        async with aclosing(client.watch_state(min_interval_s=WATCH_INTERVAL_S)) as changes:
            async for change in changes:
                passes.extend(change.passes)
                is_watching.set()  # the first message has what was before

    watching = asyncio.create_task(watch())
    await is_watching.wait()
    passes.clear()
    try:
        yield passes
        await asyncio.sleep(2 * WATCH_INTERVAL_S)  # the last ones are on their way
    finally:
        watching.cancel()


async def run_watched(address: str, jobs: Sequence[Job]) -> tuple[list[Answer], list[executor_pb2.Pass]]:
    """Stream all jobs at once. Returns the answers, and the passes that the executor ran for them."""
    async with AsyncInferenceClient(address) as client, watched_passes(client) as passes:
        clock_zero = time.perf_counter()
        answers = await asyncio.gather(*(stream(client, job, clock_zero=clock_zero) for job in jobs))
    return list(answers), passes


async def _run_timed(address: str, jobs: Sequence[Job], arrivals_s: Sequence[float]) -> list[Answer]:
    async with AsyncInferenceClient(address) as client:
        started = time.perf_counter()
        pairs = zip(jobs, arrivals_s, strict=True)
        return await asyncio.gather(*(stream(client, job, at_s=at, clock_zero=started) for job, at in pairs))


async def _run_jobs(address: str, jobs: Sequence[Job]) -> tuple[list[list[int]], float]:
    async with AsyncInferenceClient(address) as client:

        async def run(job: Job) -> list[int]:
            options = GenerateOptions(max_tokens=job.num_output_tokens, temperature=0, ignore_eos=True)
            tokens: list[int] = []
            async for event in client.generate(job.prompt_token_ids, options):
                if isinstance(event, Delta):
                    tokens.extend(event.token_ids)
            return tokens

        started = time.perf_counter()
        answers = await asyncio.gather(*(run(job) for job in jobs))
        return list(answers), time.perf_counter() - started
