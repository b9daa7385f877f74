"""The other ranks, as rank 0 sees them: processes that it starts, tells what to run, watches, and outlives."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from typing import Any

import structlog

from executor_service.engine.device import DeviceLostError
from executor_service.parallel.messages import Failed, WorkerSettings

log = structlog.get_logger()

END_SECONDS = 5.0  # for a process whose socket has been closed, before it is killed


class WorkerStartError(Exception):
    """A rank did not come up. The text says which and why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Worker:
    rank: int
    process: subprocess.Popen[bytes]
    connection: Connection[Any, Any]

    def ending(self) -> str:
        """How it ended, or is about to, in words; for one whose connection has something to read, or is closed."""
        with suppress(EOFError, OSError):
            message = self.connection.recv()
            if isinstance(message, Failed):
                return message.reason
        try:
            status = self.process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            return "its process does not answer"
        if status < 0:
            return f"its process was ended by {signal.Signals(-status).name}"
        return f"its process ended with status {status}"

    def hang_up(self) -> None:
        """Closing alone would not do: a thread that waits for something to read keeps the socket open."""
        with socket.socket(fileno=os.dup(self.connection.fileno())) as ours, suppress(OSError):
            ours.shutdown(socket.SHUT_RDWR)


class Workers:
    """Ranks 1 and up of an executor, none at first. ``close`` ends them, and so does the end of this process."""

    def __init__(self) -> None:
        self._workers: list[_Worker] = []
        self._closing = threading.Event()

    def start(self, settings: Sequence[WorkerSettings]) -> None:
        """Start one process for each. They load the model meanwhile."""
        for setting in settings:
            ours, theirs = Pipe()
            with theirs:
                process = subprocess.Popen(
                    [sys.executable, "-m", "executor_service.parallel.worker", str(theirs.fileno())],
                    stdin=subprocess.DEVNULL,
                    pass_fds=[theirs.fileno()],
                )
            self._workers.append(_Worker(rank=setting.rank, process=process, connection=ours))
            with suppress(OSError):  # it ended already: `wait_for` says so
                ours.send(setting)

    @property
    def pids(self) -> list[int]:
        return [worker.process.pid for worker in self._workers]

    def wait_for(self, kind: type) -> None:
        """Until each has sent a message of this kind. Raises WorkerStartError."""
        for worker in self._workers:
            try:
                message = worker.connection.recv()
            except (EOFError, OSError):
                raise WorkerStartError(f"rank {worker.rank} did not start: {worker.ending()}") from None
            if isinstance(message, Failed):
                raise WorkerStartError(f"rank {worker.rank} did not start: {message.reason}")
            assert isinstance(message, kind), message

    def send(self, message: object) -> None:
        """Raises DeviceLostError where one of them has ended."""
        for worker in self._workers:
            try:
                worker.connection.send(message)
            except OSError as error:
                raise DeviceLostError(f"rank {worker.rank} takes no messages: {worker.ending()}") from error

    def watch(self, on_loss: Callable[[], None]) -> None:
        """From now on nothing is expected of them. ``on_loss`` is called, on a thread of its own, when one fails."""
        if not self._workers:
            return
        by_connection = {worker.connection: worker for worker in self._workers}

        def run() -> None:
            ready = wait(list(by_connection))
            if not self._closing.is_set():
                for connection in ready:
                    worker = by_connection[connection]  # type: ignore[index]  # one of those that were waited for
                    log.error("rank_lost", rank=worker.rank, reason=worker.ending())
                on_loss()

        threading.Thread(target=run, name="watch-ranks", daemon=True).start()

    def close(self) -> None:
        """End them, and return when they have. Idempotent."""
        self._closing.set()
        for worker in self._workers:
            worker.hang_up()
        for worker in self._workers:
            try:
                worker.process.wait(END_SECONDS)
            except subprocess.TimeoutExpired:
                worker.process.kill()
                worker.process.wait()
