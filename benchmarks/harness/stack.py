"""A local stack for a measurement, and jobs sent to it all at once."""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from harness.workload import Job
from metronome_cli.stack.local import StackSettings, start_stack
from metronome_cli.stack.services import ExecutorSettings
from metronome_cli.stack.start import Lifetime
from metronome_client import AsyncInferenceClient, Delta, GenerateOptions


@contextmanager
def local_stack(executor: ExecutorSettings) -> Iterator[str]:
    """Scheduler and executor as processes of their own; yields the executor's address."""
    with tempfile.TemporaryDirectory() as directory:
        stack = start_stack(
            StackSettings(executor=executor),
            Path(directory),
            Lifetime.WITH_PARENT,
            on_progress=lambda message: print(message, file=sys.stderr),
            on_launch=lambda services: None,
        )
        try:
            yield stack.executor_address
        finally:
            stack.stop()


def run_jobs(address: str, jobs: Sequence[Job]) -> tuple[list[list[int]], float]:
    """Stream all jobs at once, greedy, to their full length. Returns each one's tokens, and the seconds in all."""
    return asyncio.run(_run_jobs(address, jobs))


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
