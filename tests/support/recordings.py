"""Small records, and recordings of them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from metronome.scheduler.v1 import plan_pb2, record_pb2, scheduler_pb2
from metronome_client import read_recording
from service_shell.recording_file import RecordingSettings, RotatingFile
from support.scheduler_process import plan_request


def record_of(iteration: int, *, num_tokens: int = 16) -> record_pb2.PlanRecord:
    """A record of the small state, in which request 1 runs so many tokens."""
    request = plan_request()
    request.state.executors[0].iteration = iteration
    scheduled = plan_pb2.ScheduledTable(id=[1], num_tokens=[num_tokens], reason=[plan_pb2.REASON_PREFILL])
    plan = plan_pb2.ExecutorPlan(executor_id="executor-0", iteration=iteration, scheduled=scheduled)
    return record_pb2.PlanRecord(request=request, response=scheduler_pb2.PlanResponse(plans=[plan]))


def settings_of(directory: Path, *, max_file_bytes: int = 2**20, max_files: int = 4) -> RecordingSettings:
    return RecordingSettings(directory=directory, max_file_bytes=max_file_bytes, max_files=max_files)


def write_recording(directory: Path, records: Iterable[record_pb2.PlanRecord], **settings: int) -> list[Path]:
    """Write records, and give the files that are there."""
    file = RotatingFile(settings_of(directory, **settings))
    for record in records:
        file.write(record)
    file.close()
    return recorded_files(directory)


def recorded_files(directory: Path) -> list[Path]:
    return sorted(directory.glob("recording-*.pb.gz"))


def records_in(paths: Iterable[Path]) -> list[record_pb2.PlanRecord]:
    """All records of the files. Raises RecordingError."""
    records = []
    for path in paths:
        with path.open("rb") as file:
            records += read_recording(file)
    return records
