"""Recorded in one process, replayed in another: the same plans, byte for byte, and a difference where there is one."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import grpc
import pytest

from metronome.scheduler.v1 import scheduler_pb2, scheduler_pb2_grpc
from metronome_cli.main import run_command
from scheduler_service.profiles import load_profiles
from support.recordings import recorded_files, records_in, write_recording
from support.scheduler_process import COMMAND, plan_request, scheduler_process
from support.services import SCHEDULER, Service, running_executor, started
from support.wire import TIMEOUT_SECONDS, connected, greedy

NUM_PLANS = 12


def requests() -> Iterator[scheduler_pb2.PlanRequest]:
    """States that differ, asked for in all the ways that there are."""
    for iteration in range(1, NUM_PLANS + 1):
        request = plan_request()
        executor = request.state.executors[0]
        executor.iteration = iteration
        executor.requests.num_prompt_tokens[0] = 4 * iteration  # the budget holds both
        match iteration % 4:
            case 1:
                request.profile = "fifo"
            case 2:
                request.policy.chunk_size_tokens = 7
            case 3:
                request.explain = True
        yield request


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """What a scheduler that has ended recorded, answered and logged."""

    paths: list[Path]
    answers: list[scheduler_pb2.PlanResponse]
    log: str


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Recording:
    directory = tmp_path_factory.mktemp("recording")
    arguments = ["--record-dir", str(directory / "recordings"), "--shadow-profile", "fifo", "--log-format", "json"]
    with started(directory, [*SCHEDULER, "--port", "0", *arguments]) as service:
        with grpc.insecure_channel(service.address) as channel:
            stub = scheduler_pb2_grpc.SchedulerServiceStub(channel)
            answers = [stub.Plan(request, timeout=TIMEOUT_SECONDS) for request in requests()]
            with pytest.raises(grpc.RpcError):
                stub.Plan(scheduler_pb2.PlanRequest(), timeout=TIMEOUT_SECONDS)
        service.process.terminate()
        assert service.wait() == 0
        return Recording(paths=recorded_files(directory / "recordings"), answers=answers, log=service.log)


@pytest.fixture(scope="module")
def replica() -> Iterator[str]:
    """The address of a scheduler that has recorded nothing."""
    with scheduler_process() as address:
        yield address


def replay(replica: str, paths: list[Path], *arguments: str) -> int:
    return run_command(["replay", *map(str, paths), "--scheduler", replica, *arguments])


def test_every_plan_is_recorded_with_its_policy_in_full(
    recording: Recording,
) -> None:
    records = records_in(recording.paths)
    assert [record.response for record in records] == recording.answers
    assert [record.request.state for record in records] == [request.state for request in requests()]
    chunk_sizes = [record.request.policy.chunk_size_tokens for record in records]
    by_default = load_profiles().default.policy.chunk_size_tokens
    of_kind = (by_default, 512, 7, by_default)
    assert chunk_sizes == [of_kind[iteration % 4] for iteration in range(1, NUM_PLANS + 1)]


def test_another_replica_replays_byte_for_byte(
    recording: Recording, replica: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert replay(replica, recording.paths) == 0
    assert capsys.readouterr().out == f"{NUM_PLANS} plans: no difference\n"


def test_a_plan_that_was_changed_is_found(
    recording: Recording,
    replica: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    records = records_in(recording.paths)
    records[4].response.plans[0].digest += 1
    assert replay(replica, write_recording(tmp_path, records)) == 1
    assert "record 5: the first that differs, after 4 that do not" in capsys.readouterr().out


def test_another_policy_decides_otherwise(
    recording: Recording,
    replica: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "policy.json").write_text('{"chunkSizeTokens": 7}')
    assert replay(replica, recording.paths, "--policy", str(tmp_path / "policy.json"), "--diff") == 0
    shown = capsys.readouterr().out
    # Those with the policy decide as recorded, and explanations do not count.
    assert f"{NUM_PLANS} plans: {NUM_PLANS - NUM_PLANS // 4} decide otherwise" in shown
    assert "+ run 1: 7 tokens (a chunk, cut by the chunk size)" in shown


def test_the_shadow_says_how_it_differs(
    recording: Recording,
) -> None:
    events = [json.loads(line) for line in recording.log.splitlines()]
    (difference,) = (event for event in events if event["event"] == "shadow_difference")
    assert difference["profile"] == "fifo"
    assert (difference["num_plans"], difference["num_different"]) == (NUM_PLANS, NUM_PLANS // 4)
    assert difference["scheduled_tokens"] == NUM_PLANS // 4
    assert difference["admitted"] == difference["evicted"] == difference["rejected"] == 0


def test_an_executor_records_what_its_scheduler_answered(
    tmp_path: Path,
    tiny_model_directory: Path,
    scheduler: Service,
    replica: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    arguments = ("--record-dir", str(tmp_path / "recordings"), "--executor-id", "recorded")
    with running_executor(tmp_path, tiny_model_directory, *arguments, scheduler=[scheduler.address]) as service:
        with connected(service.address) as client:
            client.generate(greedy("hello", 8))
        service.process.terminate()
        assert service.wait() == 0
    paths = recorded_files(tmp_path / "recordings")
    records = records_in(paths)
    assert len(records) >= 8
    assert {record.response.plans[0].executor_id for record in records} == {"recorded"}
    assert replay(replica, paths) == 0
    assert capsys.readouterr().out == f"{len(records)} plans: no difference\n"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--shadow-profile", "nope"], "no profile is named 'nope'"),
        (["--record-dir", "/dev/null/below"], "choose another directory with --record-dir"),
    ],
)
def test_a_setting_that_cannot_be_ends_the_start_in_one_line(arguments: list[str], said: str) -> None:
    run = subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, timeout=60)
    assert run.returncode == 1
    assert said in run.stderr
    assert run.stderr.count("\n") == 1
