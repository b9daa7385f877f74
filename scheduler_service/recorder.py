"""Records planned calls so that they can be replayed (record.proto has the format)."""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import suppress

import structlog

from metronome.scheduler.v1 import record_pb2, scheduler_pb2
from scheduler_service.convert import policy_message
from scheduler_service.observers import Missed, PlannedCall
from service_shell.recording_file import RecordingSettings, RotatingFile

log = structlog.get_logger(__name__)


class Recorder:
    """Observes calls by writing them down. A disk that fails ends the recording, which is said once."""

    name = "recorder"

    def __init__(self, settings: RecordingSettings) -> None:
        """Raises RecordingError where nothing can be written."""
        self._file: RotatingFile | None = RotatingFile(settings)

    def observe(self, call: PlannedCall) -> None:
        # The policy in full: what a profile's name means may change, and so may the default.
        request = scheduler_pb2.PlanRequest(
            state=call.request.state, policy=policy_message(call.policy), explain=call.request.explain
        )
        record = record_pb2.PlanRecord(request=request, response=call.response)
        self._attempt(functools.partial(RotatingFile.write, message=record))

    def report(self, missed: Missed) -> None:
        if missed.num_dropped or missed.num_failed:
            log.warning("records_missed", num_dropped=missed.num_dropped, num_failed=missed.num_failed)

    def close(self) -> None:
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
