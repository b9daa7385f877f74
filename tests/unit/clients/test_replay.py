"""`metronome replay` against scripted schedulers: what is the same, what differs first, how another policy differs."""

from __future__ import annotations

from pathlib import Path

import grpc
import pytest

from metronome.scheduler.v1 import plan_pb2, record_pb2, scheduler_pb2
from metronome_cli.main import run_command
from metronome_cli.plan_difference import Tally, decision_lines, difference_lines
from support.fake_services import FakeScheduler, serving
from support.recordings import record_of, write_recording


class Recalling(FakeScheduler):
    """Answers each state as a record says."""

    def __init__(self, *records: record_pb2.PlanRecord) -> None:
        super().__init__(scheduler_pb2.PlanResponse())
        self._answers = {record.request.state.executors[0].iteration: record.response for record in records}

    def Plan(self, request: scheduler_pb2.PlanRequest, context: grpc.ServicerContext) -> scheduler_pb2.PlanResponse:
        super().Plan(request, context)
        return self._answers[request.state.executors[0].iteration]


RECORDS = [record_of(iteration) for iteration in (1, 2, 3)]
OTHERWISE = [record_of(1), record_of(2, num_tokens=5), record_of(3, num_tokens=6)]


def replay(scheduler: FakeScheduler, *arguments: object) -> int:
    with serving(scheduler) as address:
        return run_command(["replay", *map(str, arguments), "--scheduler", address])


def test_plans_that_come_out_as_recorded_are_no_difference(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    scheduler = Recalling(*RECORDS)
    paths = write_recording(tmp_path, RECORDS, max_file_bytes=1)
    assert replay(scheduler, *paths) == 0
    assert capsys.readouterr().out == "3 plans: no difference\n"
    assert scheduler.requests == [record.request for record in RECORDS]


def test_the_first_difference_is_shown_and_ends_with_status_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert replay(Recalling(*OTHERWISE), *write_recording(tmp_path, RECORDS)) == 1
    assert [line.rstrip() for line in capsys.readouterr().out.splitlines()] == [
        "recording-000001.pb.gz, record 2: the first that differs, after 1 that do not",
        "executor-0, iteration 2",
        "  - run 1: 16 tokens (the rest of its prompt)",
        "  + run 1: 5 tokens (the rest of its prompt)",
    ]


@pytest.mark.parametrize("show_diff", [(), ("--diff",)])
def test_another_policy_is_summed_up_and_is_no_failure(
    show_diff: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    scheduler = Recalling(*OTHERWISE)
    assert replay(scheduler, *write_recording(tmp_path, RECORDS), "--profile", "other", *show_diff) == 0
    shown = capsys.readouterr().out
    assert "3 plans: 2 decide otherwise" in shown
    (line,) = (line for line in shown.splitlines() if line.startswith("tokens scheduled"))
    assert line.split() == ["tokens", "scheduled", "2", "48", "27"]
    assert [request.profile for request in scheduler.requests] == ["other"] * 3
    assert ("+ run 1: 5 tokens" in shown) == bool(show_diff)


def test_a_policy_comes_from_a_file(tmp_path: Path) -> None:
    scheduler = Recalling(*RECORDS)
    (tmp_path / "policy.json").write_text('{"chunkSizeTokens": 64}')
    replay(scheduler, *write_recording(tmp_path, RECORDS), "--policy", tmp_path / "policy.json")
    assert [request.policy.chunk_size_tokens for request in scheduler.requests] == [64] * 3


def test_a_recording_that_was_cut_is_replayed_as_far_as_it_goes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (path,) = write_recording(tmp_path, RECORDS)
    path.write_bytes(path.read_bytes()[:-1])
    assert replay(Recalling(*RECORDS), path) == 0
    captured = capsys.readouterr()
    assert captured.out == "3 plans: no difference\n"
    assert captured.err.startswith(f"warning: {path} ends too early")
    assert captured.err.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["nowhere"], "error: cannot read nowhere: No such file or directory; name a recording"),
        ([__file__], f"error: {__file__} is no recording: Not a gzipped file"),
    ],
)
def test_a_file_that_cannot_be_replayed_is_one_line(
    arguments: list[str], line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert replay(Recalling(), *arguments) == 1
    error = capsys.readouterr().err
    assert error.startswith(line)
    assert error.count("\n") == 1


def test_an_empty_recording_is_said_to_be_empty(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "recording-000001.pb.gz").touch()
    assert replay(Recalling(), tmp_path / "recording-000001.pb.gz") == 1
    assert capsys.readouterr().err.startswith("error: nothing is recorded there")


def test_a_state_that_is_refused_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert replay(FakeScheduler(scheduler_pb2.PlanResponse()), *write_recording(tmp_path, RECORDS), "--profile", "fast")
    expected = "error: recording-000001.pb.gz, record 1: no profile has the name fast\n"
    assert capsys.readouterr().err == expected


def test_two_policies_are_one_too_many(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["replay", "x", "--profile", "a", "--policy", "b"]) == 2
    assert "Give either --profile or --policy." in capsys.readouterr().err


def test_decisions_are_compared_before_figures() -> None:
    one = plan_pb2.ExecutorPlan(predicted_time_us=5, admit=plan_pb2.TransitionTable(id=[1], reason=[10]))
    slower = plan_pb2.ExecutorPlan(predicted_time_us=6, admit=plan_pb2.TransitionTable(id=[1], reason=[10]))
    nobody = plan_pb2.ExecutorPlan(predicted_time_us=6)
    otherwise = plan_pb2.ExecutorPlan(predicted_time_us=5, admit=plan_pb2.TransitionTable(id=[1], reason=[11]))
    assert list(difference_lines(one, one)) == []
    assert list(difference_lines(one, slower)) == ["- predicted_time_us: 5", "+ predicted_time_us: 6"]
    assert list(difference_lines(one, nobody)) == ["- admit 1 (first in order, and it fits)"]
    assert list(decision_lines(one, slower)) == list(decision_lines(one, otherwise)) == []
    assert list(difference_lines(one, otherwise)) == ["the same decisions, in another order or for other reasons"]


def test_a_tally_counts_plans_and_requests_of_every_kind() -> None:
    one = plan_pb2.ExecutorPlan(evict=plan_pb2.EvictTable(id=[1], mode=[1], reason=[20]))
    other = plan_pb2.ExecutorPlan(evict=plan_pb2.EvictTable(id=[1, 2], mode=[2, 2], reason=[20, 20]))
    tally = Tally()
    tally.add(one, other)
    tally.add(other, other)
    assert (tally.num_plans, tally.num_different) == (2, 1)
    assert (tally.num_plans_with["evict"], tally.recorded["evict"], tally.replayed["evict"]) == (1, 3, 4)
    assert tally.num_plans_with["admit"] == 0
