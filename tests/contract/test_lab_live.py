"""The lab on a real executor: a workload like a user's traffic, and the profile that its passes give."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from metronome.executor.v1 import executor_pb2
from metronome_cli.main import run_command
from metronome_client import AsyncInferenceClient
from metronome_lab.hardware.profile import load_hardware
from metronome_lab.live.prompts import prompt_tokens
from metronome_lab.live.replay import replay
from metronome_lab.records import Outcome, Records
from support.lab import workload_of
from support.services import Service


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "trace.csv"
    rows = [f"{number * 0.02:.2f},{20 + 7 * number % 40},{4 + number % 5}" for number in range(12)]
    path.write_text("\n".join(["arrival_s,prompt_tokens,output_tokens", *rows]) + "\n")
    return path


def test_what_a_client_sees_is_recorded_as_a_run_is(executor: Service) -> None:
    workload = workload_of((0, 20, 5), (10, 300, 5), (200, 40, 6), tenant=np.array([0, 0, 1]), tenants=("chat", "code"))

    async def run() -> tuple[Records, list[executor_pb2.Pass]]:
        async with AsyncInferenceClient(executor.address) as client:
            return await replay(client, workload)

    records, passes = asyncio.run(run())

    requests, iterations = records.requests, records.iterations.columns()
    assert requests.outcome.tolist() == [Outcome.FINISHED, Outcome.REFUSED, Outcome.FINISHED]
    assert requests.num_output_tokens.tolist() == [5, 0, 6]
    assert requests.first_token_us[2] >= 200_000
    assert (requests.end_us >= requests.first_token_us)[[0, 2]].all()
    assert records.gaps.count == 4 + 5
    assert iterations["num_prefill_tokens"].sum() == 20 + 40
    assert iterations["num_decode_tokens"].sum() == 4 + 5
    assert sum(one.num_chunk_kv_tokens for one in passes) == 20 * 21 // 2 + 40 * 41 // 2
    assert sum(one.num_logits_rows for one in passes) == 5 + 6
    assert sum(one.num_kv_tokens for one in passes) == sum(range(21, 25)) + sum(range(41, 46))
    assert records.service.tokens.sum(axis=1).tolist() == [20 + 4, 40 + 5]


def test_prompts_are_alike_as_far_as_the_trace_says() -> None:
    first, other = np.array([1, 2], dtype=np.int32), np.array([1, 3], dtype=np.int32)
    workload = workload_of((0, 1100, 1), (0, 1100, 1), (0, 700, 1), prefixes=[first, other, first])

    one, two, short = (prompt_tokens(workload, index, vocab_size=5000, seed=1) for index in range(3))

    assert [len(one), len(two), len(short)] == [1100, 1100, 700]
    assert one[:512] == two[:512]
    assert one[:700] == short
    assert one[512:520] != two[512:520]
    assert one[1024:] != two[1024:]
    assert 500 <= min(one) <= max(one) < 5000


def test_an_executor_is_calibrated_and_then_simulated(
    executor: Service, trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    profile = tmp_path / "mine.toml"

    assert run_command(["calibrate", executor.address, "--workload", str(trace), "--out", str(profile)]) == 0
    assert "fitted from" in capsys.readouterr().out
    hardware = load_hardware(str(profile))
    assert (hardware.limits.num_blocks, hardware.limits.max_num_seqs) == (16, 8)
    assert hardware.latency.pass_us > 0
    assert hardware.cost is not None
    assert hardware.cost.pass_us > 0
    assert run_command(["simulate", str(trace), "--hardware", str(profile), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["num_finished"] == 12


def test_load_prints_the_figures_of_a_run(executor: Service, trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["load", str(trace), "--executor", executor.address, "--json", "--requests", "5"]) == 0

    figures: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert figures["num_finished"] == 5
    assert figures["ttft"]["p50_ms"] > 0


def test_a_scheduler_plans_for_many_executors(
    scheduler: Service, trace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    load = ["load", str(trace), "--scheduler", scheduler.address, "--executors", "5", "--seconds", "1"]

    assert run_command([*load, "--json"]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert run_command([*load, "--profile", "vllm"]) == 0

    assert min(figures["plans_per_s"], figures["asked_per_s"]) > 0
    assert 0 < figures["p50_ms"] <= figures["p99_ms"]
    assert "5 executors asked for" in capsys.readouterr().out


@pytest.mark.parametrize("command", [["load", "--executor"], ["calibrate", "--workload"]], ids=lambda words: words[0])
def test_where_nobody_answers_is_said_in_one_line(
    command: list[str], trace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [str(trace), "127.0.0.1:1"] if command[0] == "calibrate" else ["127.0.0.1:1", str(trace)]

    assert run_command([*command, *arguments]) == 1

    assert capsys.readouterr().err.startswith("error: no executor answers at 127.0.0.1:1")
