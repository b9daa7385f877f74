"""The command line with real services and the real model: a whole run, Ctrl-C, and a stack that stays up."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

pytestmark = pytest.mark.model

METRONOME = [sys.executable, "-m", "metronome_cli"]


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    return {**os.environ, "METRONOME_HOME": str(tmp_path / "home"), "COLUMNS": "120"}


def metronome(environment: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*METRONOME, *arguments], env=environment, capture_output=True, text=True, timeout=240)


def assert_all_end(processes: list[psutil.Process]) -> None:
    _, alive = psutil.wait_procs(processes, timeout=20)
    # Of services that outlived who started them, it is the system's init that reaps; not every container has one.
    assert [process for process in alive if process.status() != psutil.STATUS_ZOMBIE] == []


def test_a_run_answers_every_prompt_and_leaves_nothing_behind(environment, tmp_path):
    run = metronome(environment, "run")

    assert run.returncode == 0, run.stderr
    assert "9 of 9 finished" in run.stdout
    assert int(re.search(r"alice +([\d,]+) prompt tokens", run.stdout)[1].replace(",", "")) >= 1_500
    assert re.search(r"throughput +\d+\.\d output tokens/s", run.stdout)
    assert re.search(r"^ +\d+ +\d+ in \d+ ", run.stdout, re.MULTILINE), "no pass with several prefill chunks"
    assert list((tmp_path / "home").iterdir()) == []


def test_ctrl_c_stops_the_run_and_what_it_started(environment):
    with subprocess.Popen([*METRONOME, "run"], env=environment, stdout=subprocess.PIPE, text=True) as run:
        for line in run.stdout:
            if re.match(r" +3 ", line):  # the third pass: every request streams
                break
        services = psutil.Process(run.pid).children(recursive=True)
        run.send_signal(signal.SIGINT)
        run.stdout.read()
        assert run.wait(30) == 130

    assert len(services) == 2
    assert_all_end(services)


def test_a_model_that_is_not_there_is_one_line(environment):
    run = metronome(environment, "run", "--model", "/no/such/model")

    assert run.returncode == 1
    assert run.stderr.count("\n") == 1
    assert "the executor stopped while starting: no model '/no/such/model'" in run.stderr


def test_a_stack_stays_up_until_it_is_taken_down(environment, tmp_path):
    assert metronome(environment, "up", "--scheduler-port", "0", "--executor-port", "0").returncode == 0
    try:
        entries = json.loads((tmp_path / "home" / "stack.json").read_text())
        environment |= {f"METRONOME_{entry['name'].upper()}": entry["address"] for entry in entries}
        services = [psutil.Process(entry["process"]["pid"]) for entry in entries]

        assert "runs already" in metronome(environment, "up").stderr
        assert metronome(environment, "status").stdout.count("ready") == 2
        answer = metronome(environment, "generate", "one, two, three, four, five, six,", "--max-tokens", "4")
        assert "seven" in answer.stdout
        assert "1 finished" in metronome(environment, "state").stdout

        (tmp_path / "books.json").write_text(metronome(environment, "state", "--json").stdout)
        assert "nothing runs" in metronome(environment, "plan", str(tmp_path / "books.json")).stdout
        assert "no chat template; use `metronome generate`" in metronome(environment, "chat").stderr
    finally:
        down = metronome(environment, "down")

    assert down.stdout == "stopped executor and scheduler\n"
    assert_all_end(services)
    assert metronome(environment, "down").stdout == f"no stack of {tmp_path / 'home'} runs\n"
    assert list((tmp_path / "home").glob("*.address")) == []
