"""`metronome timeline` over recordings: what it says, and how it fails. The trace itself is in tests/golden."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from metronome.executor.v1 import executor_pb2
from metronome.scheduler.v1 import state_pb2
from metronome_cli.main import run_command
from metronome_cli.timeline.from_recording import spans_of_recording
from metronome_cli.timeline.from_watch import spans_of_watch
from metronome_cli.timeline.spans import PassSpan, Phase, RequestSpan
from support.recordings import record_of, write_recording


def test_a_recording_becomes_a_trace(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = write_recording(tmp_path, [record_of(1), record_of(2), record_of(3)])
    trace = tmp_path / "trace.json"
    assert run_command(["timeline", *map(str, paths), "-o", str(trace)]) == 0
    said = capsys.readouterr().out
    assert said == f"{trace}: 3 iterations of 1 executor, 2 requests; open it in https://ui.perfetto.dev\n"
    assert json.loads(trace.read_text())["displayTimeUnit"] == "ms"


def test_a_plan_that_was_asked_for_again_counts_once_as_it_came_last() -> None:
    spans = list(spans_of_recording([record_of(1, num_tokens=5), record_of(1, num_tokens=7), record_of(2)]))
    assert [span.iteration for span in spans if isinstance(span, PassSpan)] == [1, 2]
    assert [span.num_tokens for span in spans if isinstance(span, RequestSpan) and span.num_tokens] == [7, 16]
    waiting = [span for span in spans if isinstance(span, RequestSpan) and span.phase is Phase.WAITING]
    assert [span.request_id for span in waiting] == [2, 2]


def test_a_pass_before_a_pause_is_as_long_as_predicted() -> None:
    records = [record_of(1), record_of(2)]
    records[0].response.plans[0].predicted_time_us = 3_000
    records[1].request.state.now_us += 60_000_000
    first, _ = (span for span in spans_of_recording(records) if isinstance(span, PassSpan))
    assert first.end_us - first.start_us == 3_000


def test_passes_do_not_overlap_though_two_clocks_tell_their_times() -> None:
    """The second begins when the first has begun and lasted, as the clock of the day has it: 3 µs too early."""
    executor = state_pb2.ExecutorState(iteration=2)
    passes = [
        executor_pb2.Pass(iteration=0, start_time_us=1_000, forward_us=503),
        executor_pb2.Pass(iteration=1, start_time_us=1_500, forward_us=500),
    ]
    books = executor_pb2.GetStateResponse(state=state_pb2.ClusterState(executors=[executor]))
    spans = spans_of_watch([executor_pb2.WatchStateResponse(state=books, passes=passes)])
    assert [(span.start_us, span.end_us) for span in spans] == [(1_000, 1_503), (1_503, 2_000)]


def test_files_without_passes_and_places_that_cannot_be_written_are_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    empty = write_recording(tmp_path, [])
    assert run_command(["timeline", *map(str, empty or [tmp_path / "none"]), "-o", str(tmp_path / "t.json")]) == 1
    assert capsys.readouterr().err.startswith("error: ")
    assert not (tmp_path / "t.json").exists()
    paths = write_recording(tmp_path, [record_of(1)])
    assert run_command(["timeline", *map(str, paths), "-o", str(tmp_path / "no" / "t.json")]) == 1
    assert "cannot write" in capsys.readouterr().err
