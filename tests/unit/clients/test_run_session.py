"""A whole run against a scripted executor: the board, the lines, the exit status."""

from __future__ import annotations

import asyncio
import io

from rich.console import Console

from metronome_cli.main import run_command
from metronome_cli.run.live_view import LiveView
from metronome_cli.run.plain_view import PlainView
from metronome_cli.run.progress import Phase
from metronome_cli.run.session import run_session
from metronome_cli.run.workload import build_workload
from support.fake_services import FakeExecutor, serving


def run_workload(prompts: dict[str, str]):
    output = io.StringIO()
    view = PlainView(Console(file=output, width=120))
    with serving(FakeExecutor()) as address:
        board = asyncio.run(run_session(address, build_workload(prompts, None, "test"), view))
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


def test_a_terminal_shows_the_answers_and_the_passes_within_its_size():
    output = io.StringIO()
    console = Console(file=output, width=80, height=24, force_terminal=True, color_system=None)
    prompts = {f"prompt-{number}": "one" for number in range(9)}
    with serving(FakeExecutor()) as address, LiveView(console) as view:
        asyncio.run(run_session(address, build_workload(prompts, None, "test"), view))

    frame = output.getvalue().rpartition(" metronome ")[2]
    assert "prompt-8" in frame
    assert "6 in 2" in frame
    assert frame.count("\n") <= 24
