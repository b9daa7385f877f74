"""A whole run against a scripted executor: the board, the lines, the exit status."""

from __future__ import annotations

import asyncio
import io
import threading
from collections.abc import Iterator

import grpc
from rich.console import Console

from metronome.executor.v1 import executor_pb2
from metronome.inference.v1 import inference_pb2
from metronome_cli.main import run_command
from metronome_cli.run.live_view import LiveView
from metronome_cli.run.plain_view import PlainView
from metronome_cli.run.progress import Phase
from metronome_cli.run.session import run_session
from metronome_cli.run.workload import build_workload
from metronome_cli.trust import Trust
from support.fake_services import FakeExecutor, books, serving


def run_workload(prompts: dict[str, str]):
    output = io.StringIO()
    view = PlainView(Console(file=output, width=120))
    with serving(FakeExecutor()) as address:
        board = asyncio.run(run_session(address, Trust(), build_workload(prompts, None, "test"), view))
    return board, output.getvalue()


def test_every_request_ends_and_every_pass_of_the_run_is_seen_once():
    board, lines = run_workload({"first": "one", "second": "two"})

    assert [progress.phase for progress in board.requests] == [Phase.DONE, Phase.DONE]
    assert [progress.text for progress in board.requests] == [" once upon a time"] * 2
    assert [pass_.iteration for pass_ in board.passes] == [2, 3]  # 1 was before the run
    assert "6 in 2" in lines
    assert "done second" in lines


def test_a_request_that_fails_leaves_the_others_alone():
    board, lines = run_workload({"good": "one", "bad": "fail"})

    assert [progress.phase for progress in board.requests] == [Phase.DONE, Phase.FAILED]
    assert "FAILED bad: too long" in lines


def test_the_exit_status_says_whether_all_finished(tmp_path, capsys):
    (tmp_path / "good.txt").write_text("one")
    (tmp_path / "bad.txt").write_text("fail")
    with serving(FakeExecutor()) as address:
        assert run_command(["run", "--executor", address, "--prompts-dir", str(tmp_path)]) == 1

    output = capsys.readouterr()
    assert "1 of 2 finished" in output.out
    assert output.err == "error: 1 of 2 requests did not finish\n"


def test_a_run_says_why_no_plans_come():
    output = io.StringIO()
    view = PlainView(Console(file=output, width=120))
    with serving(FakeExecutor(planning_failure="no scheduler answers at here")) as address:
        asyncio.run(run_session(address, Trust(), build_workload({"a": "one"}, None, "test"), view))

    assert output.getvalue().count("no scheduler answers at here") == 1


class DyingExecutor(FakeExecutor):
    """Sends two tokens of each answer; then its connections break."""

    def __init__(self) -> None:
        super().__init__((" once", " upon"))
        self.dies = threading.Event()

    def Generate(
        self, request: inference_pb2.GenerateRequest, context: grpc.ServicerContext
    ) -> Iterator[inference_pb2.GenerateResponse]:
        for message in super().Generate(request, context):
            if not message.HasField("finished"):
                yield message
        self.dies.set()
        context.abort(grpc.StatusCode.UNAVAILABLE, "Socket closed")

    def WatchState(
        self, request: executor_pb2.WatchStateRequest, context: grpc.ServicerContext
    ) -> Iterator[executor_pb2.WatchStateResponse]:
        yield executor_pb2.WatchStateResponse(state=books())
        self.dies.wait(30)
        context.abort(grpc.StatusCode.UNAVAILABLE, "Socket closed")


def test_an_executor_that_dies_leaves_what_answers_there_were(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("METRONOME_HOME", str(tmp_path))
    (tmp_path / "prompt.txt").write_text("one")
    with serving(DyingExecutor()) as address:
        assert run_command(["run", "--executor", address, "--prompts-dir", str(tmp_path)]) == 1

    output = capsys.readouterr()
    assert "one once upon" in output.out
    assert "✗ prompt  the executor went away" in output.out
    assert "0 of 1 finished" in output.out
    assert output.err == f"error: the executor at {address} went away; see its log, where it was started\n"


def test_a_terminal_shows_the_answers_and_the_passes_within_its_size():
    output = io.StringIO()
    console = Console(file=output, width=80, height=24, force_terminal=True, color_system=None)
    prompts = {f"prompt-{number}": "one" for number in range(9)}
    with serving(FakeExecutor()) as address, LiveView(console) as view:
        asyncio.run(run_session(address, Trust(), build_workload(prompts, None, "test"), view))

    frame = output.getvalue().rpartition(" metronome ")[2]
    assert "prompt-8" in frame
    assert "6 in 2" in frame
    assert frame.count("\n") <= 24
