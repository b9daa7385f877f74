"""Sends the requests at once, watches the executor's books, and keeps the board for the view."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from contextlib import aclosing

import grpc

from metronome.executor.v1 import executor_pb2
from metronome_cli.columns import at
from metronome_cli.errors import failure_in_words
from metronome_cli.run.board import Board, View
from metronome_cli.run.progress import RequestProgress, on_event, on_failure, on_row
from metronome_cli.run.workload import WorkloadRequest
from metronome_cli.trust import Trust
from metronome_client import AsyncInferenceClient, MetronomeError

_REFRESH_S = 0.2
_LAST_PASS_TIMEOUT_S = 2.0


async def run_session(address: str, trust: Trust, workload: Sequence[WorkloadRequest], view: View) -> Board:
    """Run the workload on an executor, and give the board as it was at the end. Leaving it cancels every request.

    Raises `MetronomeError` where the executor cannot be watched at all, `OSError` where the view cannot write. What
    befalls one request, or the watch later on, is on the board.
    """
    async with AsyncInferenceClient(address, tls=trust.tls, token=trust.token) as client:
        session = _Session(client, view, Board(model=await client.model_info(), started_at=time.monotonic()))
        try:
            await session.run(workload)
        except ExceptionGroup as failures:  # of the task groups
            expected = failures.subgroup((MetronomeError, OSError))
            if expected is None:
                raise
            raise _first(expected) from None
        return session.board


def _first(failures: BaseException) -> BaseException:
    """Give the first error of a group of groups."""
    return _first(failures.exceptions[0]) if isinstance(failures, BaseExceptionGroup) else failures


class _Session:
    def __init__(self, client: AsyncInferenceClient, view: View, board: Board) -> None:
        self.board = board
        self._client = client
        self._view = view
        self._is_watching = asyncio.Event()
        self._is_idle = asyncio.Event()

    async def run(self, workload: Sequence[WorkloadRequest]) -> None:
        async with asyncio.TaskGroup() as background:
            watcher = background.create_task(self._watch())
            refresher = background.create_task(self._refresh())
            # The first message of the watch is what was before this run; it must come before the first request.
            await self._is_watching.wait()
            self.board.started_at = now = time.monotonic()
            self.board.requests = [RequestProgress(request=request, sent_at=now) for request in workload]
            async with asyncio.TaskGroup() as answers:
                for index in range(len(workload)):
                    answers.create_task(self._answer(index))
            self.board.ended_at = time.monotonic()
            await self._await_last_pass()
            self._view.refresh(self.board)
            watcher.cancel()
            refresher.cancel()

    async def _answer(self, index: int) -> None:
        requests = self.board.requests
        request = requests[index].request
        try:
            async with aclosing(self._client.generate(request.prompt, request.options)) as events:
                async for event in events:
                    requests[index] = on_event(requests[index], event, time.monotonic())
        except MetronomeError as error:  # this request's alone: the others go on
            requests[index] = on_failure(requests[index], failure_in_words(error))
            if error.code is grpc.StatusCode.UNAVAILABLE:
                self._is_idle.clear()  # if the executor is gone, the watch is about to say so as well
        self._view.request_done(self.board, requests[index])

    async def _watch(self) -> None:
        """Follow the books. Raises `MetronomeError` where they do not come at all."""
        try:
            async with aclosing(self._client.watch_state()) as changes:
                async for change in changes:
                    self._take_in(change.state)
                    if self._is_watching.is_set() and change.passes:
                        self.board.passes.extend(change.passes)
                        self._view.passes_done(self.board, change.passes)
                    self._is_watching.set()
        except MetronomeError as error:
            if not self._is_watching.is_set():
                raise
            self.board.watch_error = error
        self._is_idle.set()  # nothing more will be told

    def _take_in(self, books: executor_pb2.GetStateResponse) -> None:
        executor = books.state.executors[0]
        self.board.num_blocks = executor.limits.num_blocks
        self.board.planning_failure = books.planning_failure
        rows = {request_id: row for row, request_id in enumerate(executor.requests.id)}
        row_of = {name.request_id: rows[name.id] for name in books.request_names if name.id in rows}
        for index, progress in enumerate(self.board.requests):
            row = row_of.get(progress.request.options.request_id)
            if row is not None:
                self.board.requests[index] = on_row(
                    progress,
                    status=at(executor.requests.status, row),
                    num_computed_tokens=at(executor.requests.num_computed_tokens, row),
                    num_output_tokens=at(executor.requests.num_output_tokens, row),
                    num_preemptions=at(executor.requests.num_preemptions, row),
                )
        if not rows:
            self._is_idle.set()
        else:
            self._is_idle.clear()

    async def _await_last_pass(self) -> None:
        """Wait until the watch has told of the pass that ended the last answer; others may keep the executor busy."""
        try:
            await asyncio.wait_for(self._is_idle.wait(), _LAST_PASS_TIMEOUT_S)
        except TimeoutError:
            return

    async def _refresh(self) -> None:
        while True:
            self._view.refresh(self.board)
            await asyncio.sleep(_REFRESH_S)
