"""Records what the scheduler was asked and what it answered (record.proto has the format).

Recording costs the engine microseconds: it never waits for the disk, and never raises. What the queue has no room for
is dropped and counted. A disk that fails ends the recording, which is said once.
"""

from __future__ import annotations

import functools
import queue
import threading
from collections.abc import Callable
from contextlib import suppress

import structlog

from metronome.scheduler.v1 import record_pb2, scheduler_pb2
from service_shell.recording_file import RecordingSettings, RotatingFile

QUEUE_CAPACITY = 128  # plans

log = structlog.get_logger()


class Recorder:
    """Writes on a thread of its own. `record` is for one thread, that of the engine; `close` comes after it."""

    def __init__(self, settings: RecordingSettings, *, capacity: int = QUEUE_CAPACITY) -> None:
        """Raises RecordingError where nothing can be written."""
        self._file: RotatingFile | None = RotatingFile(settings)
        self._calls: queue.Queue[tuple[scheduler_pb2.PlanRequest, scheduler_pb2.PlanResponse] | None]
        self._calls = queue.Queue(capacity)
        self._num_dropped = 0
        self._thread = threading.Thread(target=self._run, name="recorder", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def record(self, request: scheduler_pb2.PlanRequest, response: scheduler_pb2.PlanResponse) -> None:
        """Keep a plan. Nobody may change the messages afterwards."""
        try:
            self._calls.put_nowait((request, response))
        except queue.Full:
            self._num_dropped += 1
            if self._num_dropped == 1:
                log.warning("records_dropped", detail="plans come faster than they can be written")

    def close(self) -> None:
        """Write what is queued, and end the file."""
        self._calls.put(None)
        self._thread.join()
        if self._num_dropped:
            log.warning("records_dropped", num_dropped=self._num_dropped)

    def _run(self) -> None:
        while (call := self._calls.get()) is not None:
            request, response = call
            record = record_pb2.PlanRecord(request=request, response=response)
            self._attempt(functools.partial(RotatingFile.write, message=record))
        self._attempt(RotatingFile.close)

    def _attempt(self, action: Callable[[RotatingFile], None]) -> None:
        if self._file is None:
            return
        try:
            action(self._file)
        except OSError as error:
            log.error("recording_stopped", error=str(error))
            with suppress(OSError):  # it has just been said
                self._file.close()
            self._file = None
