"""A workload on a real executor, open loop: each request is sent when its trace says so, however slow the answers are.

Recorded is what a client sees, as a run in virtual time records it: the time to the first token and between tokens has
the network in it. Passes are those that the executor tells of. What was computed twice no client sees: it counts as 0.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager

import numpy as np

from metronome.executor.v1 import executor_pb2
from metronome_client import (
    AsyncInferenceClient,
    DeadlineExceededError,
    Delta,
    Finished,
    GenerateOptions,
    MetronomeError,
    RejectedBySchedulerError,
    Usage,
)
from metronome_lab.live.prompts import prompt_tokens
from metronome_lab.records import Outcome, Records
from metronome_lab.workload.requests import Workload

_WATCH_INTERVAL_S = 0.5


async def replay(
    client: AsyncInferenceClient,
    workload: Workload,
    *,
    seed: int = 0,
    on_progress: Callable[[int], None] = lambda num_ended: None,
) -> tuple[Records, list[executor_pb2.Pass]]:
    """Play a workload to its end. Raises MetronomeError where the executor does not answer at all."""
    records, vocab_size = Records(workload), (await client.model_info()).vocab_size
    num_ended = 0
    async with _watched_passes(client) as passes:
        started_s, started_unix_us = time.perf_counter(), time.time_ns() // 1000

        def now_us() -> int:
            return int((time.perf_counter() - started_s) * 1e6)

        async def play(index: int) -> None:
            nonlocal num_ended
            prompt = prompt_tokens(workload, index, vocab_size=vocab_size, seed=seed)
            await asyncio.sleep(max(0, int(workload.arrival_us[index]) - now_us()) / 1e6)
            await _Answer(records, index, now_us).receive(client, prompt)
            num_ended += 1
            on_progress(num_ended)

        await asyncio.gather(*map(play, range(len(workload))))
        records.end_us = int(records.requests.end_us.max())
    for one in passes:
        records.iterations.add(1, _row(one, started_unix_us))
    return records, passes


class _Answer:
    """Receives one answer and writes its records."""

    def __init__(self, records: Records, index: int, now_us: Callable[[], int]) -> None:
        self._records = records
        self._index = index
        self._now_us = now_us
        self._last_us = -1

    async def receive(self, client: AsyncInferenceClient, prompt: tuple[int, ...]) -> None:
        requests, workload, index = self._records.requests, self._records.requests.workload, self._index
        requests.executor[index] = 0
        options = GenerateOptions(
            max_tokens=int(workload.num_output_tokens[index]),
            temperature=0.0,
            ignore_eos=True,
            omit_text=True,
            priority=int(workload.priority[index]),
            tenant=workload.tenants[workload.tenant[index]],
            expected_output_tokens=int(workload.expected_output_tokens[index]),
        )
        timeout_s = int(workload.deadline_us[index]) / 1e6 or None
        outcome = Outcome.UNFINISHED
        try:
            async with aclosing(client.generate(prompt, options, timeout_s=timeout_s)) as events:
                async for event in events:
                    if isinstance(event, Delta):
                        self._count_tokens(len(event.token_ids))
                    elif isinstance(event, Finished):
                        outcome = Outcome.FINISHED
                        self._count_usage(event.usage)
        except RejectedBySchedulerError:
            outcome = Outcome.REJECTED
        except DeadlineExceededError:
            if timeout_s is None:
                raise
            outcome = Outcome.EXPIRED
        except MetronomeError as error:
            if not error.reason:  # no verdict on this request: the executor is gone
                raise
            outcome = Outcome.REFUSED
        requests.outcome[index], requests.end_us[index] = outcome, self._now_us()

    def _count_tokens(self, count: int) -> None:
        records, index, now_us = self._records, self._index, self._now_us()
        requests = records.requests
        if not count:
            return
        if self._last_us < 0:
            requests.first_token_us[index] = now_us
        else:
            gap_us = max(now_us - self._last_us, 1)
            records.gaps.add(np.array([gap_us]))
            requests.max_gap_us[index] = max(int(requests.max_gap_us[index]), gap_us)
        if count > 1:  # of one message, which came at once
            records.gaps.add(np.array([1]), times=count - 1)
        requests.num_output_tokens[index] += count
        self._last_us = now_us
        self._serve(now_us, count)

    def _count_usage(self, usage: Usage) -> None:
        requests, index = self._records.requests, self._index
        num_computed = usage.num_prompt_tokens - usage.num_cached_tokens
        requests.num_cached_tokens[index] = usage.num_cached_tokens
        requests.num_preemptions[index] = usage.num_preemptions
        requests.num_run_tokens[index] = num_computed + usage.num_output_tokens - 1
        requests.first_run_us[index] = int(requests.workload.arrival_us[index]) + usage.queue_time_us
        self._serve(int(requests.first_token_us[index]), num_computed - 1)

    def _serve(self, now_us: int, num_tokens: int) -> None:
        workload = self._records.requests.workload
        of_tenants = np.zeros(len(workload.tenants), dtype=np.int64)
        of_tenants[workload.tenant[self._index]] = num_tokens
        self._records.service.add(np.array([now_us]), of_tenants[:, None])


@asynccontextmanager
async def _watched_passes(client: AsyncInferenceClient) -> AsyncIterator[list[executor_pb2.Pass]]:
    """The passes that the executor runs meanwhile; all are there when it is left."""
    passes: list[executor_pb2.Pass] = []
    is_watching = asyncio.Event()

    async def watch() -> None:
        async with aclosing(client.watch_state(min_interval_s=_WATCH_INTERVAL_S)) as changes:
            async for change in changes:
                if is_watching.is_set():  # the first message has what was before
                    passes.extend(change.passes)
                is_watching.set()

    watching = asyncio.create_task(watch())
    await asyncio.wait([watching, asyncio.create_task(is_watching.wait())], return_when=asyncio.FIRST_COMPLETED)
    try:
        yield passes
        await asyncio.sleep(2 * _WATCH_INTERVAL_S)  # the last ones are on their way
    finally:
        watching.cancel()


def _row(one: executor_pb2.Pass, started_unix_us: int) -> tuple[int, ...]:
    """A pass as a row of the iterations."""
    return (
        0,
        one.start_time_us - started_unix_us,
        one.total_us,
        one.num_prefill_tokens,
        one.num_decode_tokens,
        one.num_prefill_requests,
        one.num_running,
        one.num_waiting,
        one.num_swapped,
        one.num_free_blocks,
        one.num_admitted,
        one.num_resumed,
        one.num_evicted_swap,
        one.num_evicted_recompute,
        one.num_rejected,
        one.num_finished,
    )
