"""The lab's commands: what they print and write, and how they fail."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from metronome_cli import lab_options
from metronome_cli.main import run_command
from scheduler_service import profiles
from support.services import running_scheduler
from support.traces import TRACES

TRACE = str(TRACES / "azure_2023_conv_code.csv")
MOONCAKE = str(TRACES / "mooncake_conversation.csv")
SHORT = ("--requests", "12")


def run(*arguments: object) -> int:
    return run_command([str(argument) for argument in arguments])


def figures(capsys: pytest.CaptureFixture[str], *arguments: object) -> dict[str, object]:
    assert run("simulate", TRACE, *SHORT, "--json", *arguments) == 0
    return json.loads(capsys.readouterr().out)


def test_simulate_prints_figures_and_writes_rows(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert run("simulate", TRACE, *SHORT, "--profile", "vllm", "--out", tmp_path, "--format", "csv") == 0

    printed = capsys.readouterr().out
    assert "12 of 12" in printed
    rows = (tmp_path / "requests.csv").read_text().splitlines()
    assert len(rows) == 13
    assert rows[1].split(",")[:2] == ["code-00361", "code"]
    assert (tmp_path / "iterations.csv").read_text().startswith("executor,start_us,")


def test_where_no_policy_is_named_a_schedulers_own_default_is_played() -> None:
    assert lab_options.DEFAULT_PROFILE == profiles.DEFAULT_PROFILE


def test_rows_are_left_out_where_nobody_wants_them(tmp_path: Path) -> None:
    assert run("simulate", TRACE, *SHORT, "--no-iterations", "--out", tmp_path) == 0

    assert [path.name for path in tmp_path.iterdir()] == ["requests.parquet"]


def test_a_scheduler_service_plans_as_the_core_in_process_does(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    with running_scheduler(tmp_path) as scheduler:
        assert figures(capsys, "--scheduler", scheduler.address) == figures(capsys)


def test_settings_reach_the_run(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    policy = tmp_path / "mine.json"
    policy.write_text('{"ordering": "ORDERING_SHORTEST_JOB_FIRST", "chunkSizeTokens": 256}')
    settings = ["--policy", policy, "--rate", "50", "--estimates", "0.5", "--max-output-tokens", "2000", "--seed", "7"]

    changed = figures(capsys, *settings, "--hardware", "h100-80gb-llama3-8b", "--executors", "2")

    assert changed["name"] == "mine"
    assert changed["duration_s"] < figures(capsys)["duration_s"]
    assert changed == figures(capsys, *settings, "--hardware", "h100-80gb-llama3-8b", "--executors", "2")


def test_a_policy_may_be_given_as_settings(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "mine.json").write_text('{"ordering": "ORDERING_FAIR", "holdForSharedPrefix": true, "watermark": 0.1}')
    settings = "ordering=FAIR,hold_for_shared_prefix=true,watermark=0.1"

    in_a_line = figures(capsys, "--policy", settings)

    assert in_a_line.pop("name") == settings
    assert in_a_line == {k: v for k, v in figures(capsys, "--policy", tmp_path / "mine.json").items() if k != "name"}


def test_a_limit_of_the_executor_reaches_the_run(capsys: pytest.CaptureFixture[str]) -> None:
    crowded = figures(capsys, "--limit", "max_num_seqs=1", "--limit", "num_blocks=2000")

    assert crowded["longest_wait_s"] > figures(capsys)["longest_wait_s"]


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (["none.csv"], 1, "cannot read none.csv"),
        ([TRACE, "--profile", "none"], 1, "no profile is named 'none'; give one of fifo,"),
        ([TRACE, "--hardware", "abacus"], 1, "no hardware profile is named 'abacus'; give a .toml or one of"),
        ([TRACE, "--policy", "none.json"], 1, "cannot read none.json"),
        ([TRACE, "--profile", "fifo", "--policy", "x.json"], 2, "either --profile or --policy"),
        ([TRACE, "--policy", "ordering=SOON"], 1, "policy ordering=SOON: "),
        ([TRACE, "--policy", "colour=5"], 1, "policy colour=5: "),
        ([TRACE, "--policy", "watermark=2"], 1, "policy watermark=2: "),
        ([TRACE, "--policy", "hold_for_shared_prefix=maybe"], 1, "policy hold_for_shared_prefix=maybe: "),
        ([TRACE, "--limit", "num_blocks=none"], 1, "limit: num_blocks is 'none'"),
        ([TRACE, "--rate", "-1"], 1, "a rate of -1 times the recorded one is out of range"),
        ([TRACE, "--rate", "nan"], 1, "a rate of nan times"),
        ([TRACE, "--skip", "5000"], 1, "none of them in the part that was asked for"),
        ([TRACE, "--estimates", "some"], 2, "is none of exact, none and a number"),
        ([TRACE, "--executors", "0"], 2, "0 is less than 1"),
        ([TRACE, "--executors", "1000000"], 1, "give 1 to 100,000"),
        ([TRACE, "--scheduler", "127.0.0.1:1"], 1, "no scheduler answers at 127.0.0.1:1"),
    ],
)
def test_what_cannot_be_played_is_refused_in_one_line(
    arguments: list[str], status: int, words: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert run("simulate", *arguments) == status

    error = capsys.readouterr().err
    assert words in error
    assert error.count("\n") == 1


def test_where_results_cannot_be_written_is_said(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    assert run("simulate", TRACE, *SHORT, "--out", tmp_path / "file") == 1

    assert "cannot write to" in capsys.readouterr().err


def test_compare_prints_a_column_a_policy_and_writes_a_report(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    policies = ["--profile", "vllm", "--profile", "orca", "--jobs", "1"]

    assert run("compare", TRACE, *SHORT, *policies, "--report", tmp_path / "new" / "r.html", "--png", tmp_path) == 0

    printed = capsys.readouterr().out
    assert printed.count("12 of 12") == 2
    assert (tmp_path / "new" / "r.html").stat().st_size > 1_000_000
    assert {path.name for path in tmp_path.glob("*.png")} >= {"latency.png", "gantt.png"}


def test_capacity_prints_the_highest_rate_and_the_smallest_fleet(capsys: pytest.CaptureFixture[str]) -> None:
    search = ["capacity", TRACE, *SHORT, "--profile", "vllm", "--jobs", "1", "--ttft-p99", "3000"]

    assert run(*search) == 0
    assert run(*search, "--fewest-executors", "--rate", "3", "--itl-p99", "500") == 0

    rate, fleet = (line.split() for line in capsys.readouterr().out.splitlines() if line.split()[:1] == ["vllm"])
    assert float(rate[2]) > 0
    assert int(fleet[1]) >= 1
