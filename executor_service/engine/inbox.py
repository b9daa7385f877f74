"""How other threads reach the engine: commands, run between two passes, and the bound on how many requests may wait."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from queue import Empty, SimpleQueue
from threading import Lock
from typing import TypeVar

T = TypeVar("T")


class QueueFullError(Exception):
    """So many requests wait already that no more are taken. Nothing has been queued."""

    def __init__(self, *, num_waiting: int, max_num_waiting: int, num_requests: int) -> None:
        others = "" if num_requests == 1 else f", and {num_requests} are asked for"
        super().__init__(f"{num_waiting} requests wait, {max_num_waiting} may (max_num_waiting){others}")
        self.num_waiting = num_waiting
        self.max_num_waiting = max_num_waiting


class EngineClosedError(Exception):
    """The engine has stopped."""


class Inbox:
    """Thread-safe, but for ``run_commands``, ``wait`` and ``publish``, which are the engine's own."""

    def __init__(self, *, max_num_waiting: int | None, max_num_seqs: int) -> None:
        self._commands: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._max_num_waiting = max_num_waiting
        self._max_num_seqs = max_num_seqs
        self._lock = Lock()
        self._num_submitted = 0  # and not accepted by the engine yet
        self._num_waiting = 0  # in the books, never run
        self._num_requests = 0  # in the books
        self._closed = False

    @property
    def closed(self) -> bool:
        return self._closed

    def submit(self, accept: Callable[[], None], *, num_requests: int = 1) -> None:
        """Queue the acceptance of requests, all or none. Raises QueueFullError or EngineClosedError.

        Requests may always come to an executor that has places free for them and no queue: with a bound of 0, they are
        taken as long as they can run at once.
        """
        with self._lock:
            if self._closed:
                raise EngineClosedError("the executor has stopped")
            num_waiting = self._num_submitted + self._num_waiting
            run_at_once = num_waiting == 0 and self._num_requests + num_requests <= self._max_num_seqs
            most = self._max_num_waiting
            if most is not None and num_waiting + num_requests > most and not run_at_once:
                raise QueueFullError(num_waiting=num_waiting, max_num_waiting=most, num_requests=num_requests)
            self._num_submitted += num_requests
            # Still under the lock: what is taken comes before the close, so the engine hears of it.
            self._commands.put(lambda: self._accept(accept, num_requests))

    def put(self, command: Callable[[], None]) -> None:
        """Run a command between two passes; never, if the engine has stopped."""
        self._commands.put(command)

    def call(self, function: Callable[[], T]) -> Future[T]:
        """Run a function between two passes and give its result. Raises EngineClosedError."""
        future: Future[T] = Future()

        def command() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                future.set_result(function())
            except Exception as error:  # the caller's to handle, on the caller's thread
                future.set_exception(error)

        with self._lock:
            if self._closed:
                raise EngineClosedError("the executor has stopped")
            self._commands.put(command)
        return future

    def close(self) -> None:
        """Stop the loop after the commands that are here."""
        with self._lock:
            self._closed = True
        self.put(lambda: None)

    def run_commands(self) -> None:
        while True:
            try:
                command = self._commands.get_nowait()
            except Empty:
                return
            command()

    def wait(self, timeout_s: float | None) -> None:
        """Rest until there is a command, and run it."""
        try:
            command = self._commands.get(timeout=timeout_s)
        except Empty:
            return
        command()

    def publish(self, *, num_waiting: int, num_requests: int) -> None:
        """Note the length of the queue in the books."""
        with self._lock:
            self._num_waiting = num_waiting
            self._num_requests = num_requests

    def _accept(self, accept: Callable[[], None], num_requests: int) -> None:
        accept()
        with self._lock:
            self._num_submitted -= num_requests
            self._num_waiting += num_requests
            self._num_requests += num_requests
