"""`metronome top`: the chart, the figures, the screen, and how it ends."""

from __future__ import annotations

import io
import os
import pty
import signal
import subprocess
import sys

import pytest
from rich.console import Console

from metronome.executor.v1 import executor_pb2
from metronome.inference.v1 import inference_pb2
from metronome_cli.main import run_command
from metronome_cli.top.chart import stacked_columns
from metronome_cli.top.history import History
from metronome_cli.top.screen import draw
from support.fake_services import FakeExecutor, books, serving

SECONDS = 60  # a bound for a hang
MODEL = inference_pb2.GetModelInfoResponse(model="fake", dtype="float32", device="cpu")


def chart(values: list[tuple[int, int]], *, width: int, height: int, top: int) -> list[str]:
    lines = stacked_columns(values, width=width, height=height, top=top, colours=("green", "magenta"))
    return [line.plain for line in lines]


def history_of(*passes: executor_pb2.Pass, age_us: int = 1_000_000) -> History:
    history = History()
    state = books()
    for one in passes:
        one.start_time_us = one.start_time_us or state.state.now_us - age_us
    history.add(executor_pb2.WatchStateResponse(state=state, passes=passes))
    return history


def test_a_column_is_as_high_as_the_root_of_its_share_and_the_newest_is_at_the_right() -> None:
    assert chart([(16, 0), (4, 0), (0, 0), (1, 0)], width=5, height=1, top=16) == [" █▄ ▂"]
    assert chart([(64, 0), (36, 0), (4, 0)], width=2, height=2, top=64) == ["▄ ", "█▄"]
    assert chart([], width=3, height=2, top=0) == ["   ", "   "]


def test_parts_stand_upon_one_another_and_little_is_more_than_nothing() -> None:
    (line,) = stacked_columns([(4, 12)], width=1, height=1, top=16, colours=("green", "magenta"))
    ((_, _, style),) = line.spans
    assert (line.plain, str(style)) == ("▄", "green on magenta")
    assert chart([(1, 0), (0, 1), (1, 10_000)], width=3, height=1, top=10_000) == ["▁▁▁"]


def test_figures_are_of_the_last_ten_seconds() -> None:
    history = history_of(
        executor_pb2.Pass(iteration=1, num_prefill_tokens=10, num_decode_tokens=2, total_us=1_000, forward_us=600),
        executor_pb2.Pass(iteration=2, num_decode_tokens=4, total_us=3_000, forward_us=2_400, plan_wait_us=400),
    )
    figures = history.figures()
    assert (figures.prefill_rate, figures.decode_rate) == (10.0, 6.0)
    assert (figures.pass_p50_us, figures.pass_p99_us) == (1_000, 3_000)
    assert (figures.forward_share, figures.plan_wait_share) == (0.75, 0.1)
    assert history_of(executor_pb2.Pass(num_decode_tokens=9), age_us=11_000_000).figures().decode_rate == 0.0


@pytest.mark.parametrize("height", [12, 24, 50])
def test_the_screen_fits_into_a_terminal(height: int) -> None:
    history = history_of(*(executor_pb2.Pass(iteration=number, num_decode_tokens=number) for number in range(1, 200)))
    console = Console(file=io.StringIO(), width=90, height=height)
    lines = console.render_lines(draw(history, MODEL, width=90, height=height))
    assert len(lines) <= max(height, 15)
    assert "fake" in "".join(segment.text for segment in lines[0])


def test_an_executor_that_gets_no_plans_says_so() -> None:
    history = history_of()
    assert history.books is not None
    history.books.planning_failure = "no scheduler answers."
    console = Console(file=io.StringIO(), width=90)
    console.print(draw(history, MODEL, width=90, height=30))
    assert "no scheduler answers; waiting requests stay" in console.file.getvalue()  # type: ignore[attr-defined]


def test_without_a_terminal_it_prints_what_there_is_and_ends(capsys: pytest.CaptureFixture[str]) -> None:
    with serving(FakeExecutor()) as address:
        assert run_command(["top", "--executor", address]) == 0
    shown = capsys.readouterr().out
    for text in ("metronome top", "fake, float32 on cpu", "prefill tokens of a pass", "blocks"):
        assert text in shown
    assert "\x1b" not in shown


def test_no_executor_is_an_error_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["top", "--executor", "127.0.0.1:1"]) == 1
    assert capsys.readouterr().err.startswith("error: no executor answers at 127.0.0.1:1")


@pytest.mark.parametrize("how", ["q", "Ctrl-C"])
def test_in_a_terminal_it_goes_on_until_it_is_told_to_end(how: str) -> None:
    with serving(FakeExecutor()) as address:
        ours, theirs = pty.openpty()
        command = [sys.executable, "-m", "metronome_cli", "top", "--executor", address]
        with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, close_fds=True) as process:
            os.close(theirs)
            try:
                shown = b""
                while b"metronome top" not in shown:
                    shown += os.read(ours, 4096)
                if how == "q":
                    os.write(ours, b"q")
                else:
                    process.send_signal(signal.SIGINT)
                assert process.wait(SECONDS) == 0
            finally:
                process.kill()
                os.close(ours)
