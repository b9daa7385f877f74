"""What an executor records: plans with what was asked for them, at no cost to the engine."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest
from structlog.testing import capture_logs

from executor_service.engine.books import SCHEDULER_COLUMNS
from executor_service.engine.limits import Limits
from executor_service.engine.planner import PlanUnavailableError
from executor_service.engine.snapshot import Snapshot
from executor_service.recorder import Recorder
from executor_service.scheduler_client import SchedulerClient
from metronome.scheduler.v1 import plan_pb2, record_pb2, scheduler_pb2
from service_shell.recording_file import RecordingError, RecordingSettings, RotatingFile
from support.fake_services import FakeScheduler, serving
from support.recordings import record_of, recorded_files, records_in

SNAPSHOT = Snapshot(
    iteration=7,
    now_us=1,
    limits=Limits(
        max_num_batched_tokens=64,
        max_num_seqs=4,
        block_size=16,
        num_blocks=8,
        num_swap_blocks=0,
        max_model_len=128,
        max_num_waiting=None,
    ),
    num_free_blocks=8,
    num_free_swap_blocks=0,
    latency=None,
    tenants=(),
    tenant_service=np.zeros(0),
    columns={name: np.zeros(0, dtype=dtype) for name, dtype in SCHEDULER_COLUMNS.items()},
)


def settings_of(directory: Path) -> RecordingSettings:
    return RecordingSettings(directory=directory, max_file_bytes=2**20, max_files=4)


def record(recorder: Recorder, iteration: int) -> record_pb2.PlanRecord:
    message = record_of(iteration)
    recorder.record(message.request, message.response)
    return message


def answer_for(executor_id: str) -> scheduler_pb2.PlanResponse:
    return scheduler_pb2.PlanResponse(plans=[plan_pb2.ExecutorPlan(executor_id=executor_id, iteration=7)])


def test_plans_are_recorded_in_order(tmp_path: Path) -> None:
    recorder = Recorder(settings_of(tmp_path))
    recorder.start()
    records = [record(recorder, iteration) for iteration in range(1, 20)]
    recorder.close()
    assert records_in(recorded_files(tmp_path)) == records


def test_what_has_no_room_is_dropped_and_counted_and_nobody_waits(tmp_path: Path) -> None:
    recorder = Recorder(settings_of(tmp_path), capacity=3)
    with capture_logs() as logs:
        records = [record(recorder, iteration) for iteration in range(1, 11)]
        recorder.start()
        recorder.close()
    assert records_in(recorded_files(tmp_path)) == records[:3]
    assert [entry.get("num_dropped") for entry in logs if entry["event"] == "records_dropped"] == [None, 7]


def test_a_disk_that_fails_ends_the_recording_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    is_failing = threading.Event()

    def full(*_: object, **__: object) -> None:
        is_failing.set()
        raise OSError(28, "No space left on device")

    recorder = Recorder(settings_of(tmp_path))
    recorder.start()
    with capture_logs() as logs:
        with monkeypatch.context() as patch:
            patch.setattr(RotatingFile, "write", full)
            record(recorder, 1)
            assert is_failing.wait(30)
        record(recorder, 2)
        recorder.close()
    assert [entry["event"] for entry in logs] == ["recording_stopped"]
    assert recorded_files(tmp_path) == []


def test_a_directory_that_cannot_be_is_said_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(RecordingError, match="choose another directory with --record-dir"):
        Recorder(settings_of(tmp_path / "file" / "below"))


def test_a_client_records_what_it_asked_and_what_was_answered(tmp_path: Path) -> None:
    recorder = Recorder(settings_of(tmp_path))
    recorder.start()
    scheduler = FakeScheduler(answer_for("executor-0"))
    with serving(scheduler) as address:
        client = SchedulerClient([address], executor_id="executor-0", timeout_s=20, policy="fifo", recorder=recorder)
        client.request(SNAPSHOT).result()
        client.close()
    (kept,) = records_in(recorded_files(tmp_path))
    assert (kept.request, kept.response) == (scheduler.requests[0], scheduler.response)
    assert kept.request.profile == "fifo"


def test_an_answer_that_is_no_plan_is_not_recorded(tmp_path: Path) -> None:
    recorder = Recorder(settings_of(tmp_path))
    recorder.start()
    with serving(FakeScheduler(answer_for("another"))) as address:
        client = SchedulerClient([address], executor_id="executor-0", timeout_s=20, recorder=recorder)
        with pytest.raises(PlanUnavailableError):
            client.request(SNAPSHOT).result()
        client.close()
    assert recorded_files(tmp_path) == []
