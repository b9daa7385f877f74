"""The executor as a process: what it says when it cannot start, and how it ends."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import grpc
import pytest

from executor_service.build import build_executor
from executor_service.config import parse_config
from executor_service.model.devices import DeviceError
from executor_service.model.errors import ModelSourceError, UnsupportedModelError
from executor_service.sizing import SizeError
from executor_service.telemetry import EngineLog
from executor_service.traces import Traces
from metronome.executor.v1 import executor_pb2
from service_shell.address import AddressError, check_free, publish
from support.services import (
    EXECUTOR,
    START_SECONDS,
    STOP_SECONDS,
    Service,
    executor_command,
    is_healthy,
    patched_executor,
    running_executor,
    slow_executor,
    started,
    wait_until,
    wait_until_healthy,
)
from support.wire import TIMEOUT_SECONDS, connected, details_of, greedy

LONG = 480  # tokens: seconds of work


def run_to_its_end(command: list[str], **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, env={**os.environ, **environment}, capture_output=True, text=True, timeout=START_SECONDS
    )


def ending_of(stream: grpc.CallIterator) -> tuple[grpc.StatusCode, str]:
    """The status and the reason of a stream that ends with an error."""
    with pytest.raises(grpc.RpcError) as caught:
        list(stream)
    details = details_of(caught.value)
    return details.code, details.info.reason


# Starting


def test_without_torch_one_line_says_what_to_install() -> None:
    without = "import sys\nsys.modules['torch'] = None\nfrom executor_service.__main__ import main\nmain()"
    run = run_to_its_end([sys.executable, "-c", without])
    assert (run.returncode, run.stderr) == (
        1,
        "error: torch is not installed: run `pip install 'metronome-llm[executor]'`\n",
    )


def test_a_model_that_is_not_there_is_one_clear_line(tmp_path: Path) -> None:
    run = run_to_its_end(executor_command(tmp_path / "missing", "--log-level", "error"))
    assert run.returncode == 1
    assert run.stderr.startswith(f"error: no model '{tmp_path / 'missing'}'")
    assert run.stderr.count("\n") == 1


def test_a_corrupt_model_is_one_clear_line(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(b"GGUF" + bytes(range(200)))
    run = run_to_its_end(executor_command(path, "--log-level", "error"))
    assert run.returncode == 1
    assert run.stderr.startswith("error: ")
    assert "model.gguf" in run.stderr
    assert run.stderr.count("\n") == 1


def without_files(directory: Path) -> None:
    for path in directory.iterdir():
        path.unlink()


def with_corrupt_weights(directory: Path) -> None:
    (directory / "model.safetensors").write_bytes(b"\x10" * 100)


def with_a_corrupt_configuration(directory: Path) -> None:
    (directory / "config.json").write_text("{")


def of_an_unknown_architecture(directory: Path) -> None:
    (directory / "config.json").write_text('{"model_type": "abacus"}')


def as_it_is(directory: Path) -> None:
    """Nothing is wrong with it."""


@pytest.mark.parametrize(
    ("spoil", "arguments", "error"),
    [
        (without_files, (), ModelSourceError),
        (with_corrupt_weights, (), ModelSourceError),
        (with_a_corrupt_configuration, (), ModelSourceError),
        (of_an_unknown_architecture, (), ModelSourceError),
        (as_it_is, ("--kv-cache-memory", "100"), SizeError),
        (as_it_is, ("--num-blocks", "1000000000000"), SizeError),
        (as_it_is, ("--max-model-len", "99999999"), SizeError),
        (as_it_is, ("--tensor-parallel-size", "3"), UnsupportedModelError),
        (as_it_is, ("--device", "cuda:99"), DeviceError),
    ],
)
def test_what_cannot_be_built_is_one_of_the_errors_that_are_told_in_a_line(
    tmp_path: Path,
    tiny_model_directory: Path,
    spoil: Callable[[Path], None],
    arguments: tuple[str, ...],
    error: type[Exception],
) -> None:
    for path in tiny_model_directory.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    spoil(tmp_path)
    config = parse_config(["--model", str(tmp_path), "--dtype", "float32", *arguments], {})
    with pytest.raises(error) as caught:
        build_executor(
            config, executor_id="x", sink=list, observer=EngineLog("x", list), traces=Traces(), progress=list
        )
    assert str(caught.value).strip()
    assert "\n" not in str(caught.value)


def test_a_port_that_is_taken_is_one_clear_line(tiny_model_directory: Path) -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = str(holder.getsockname()[1])
        run = run_to_its_end(executor_command(tiny_model_directory, "--port", port))
    assert run.returncode == 1
    assert run.stderr == f"error: port {port} on 127.0.0.1 is taken; choose another with --port\n"


def test_an_address_that_cannot_be_is_told_with_its_cause(tmp_path: Path) -> None:
    with pytest.raises(AddressError, match=r"cannot listen on 192\.0\.2\.1:0: .*; choose another address with --host"):
        check_free("192.0.2.1", 0)
    with pytest.raises(AddressError, match=r"cannot listen on no such host:1: .*; choose another address with --host"):
        check_free("no such host", 1)
    with pytest.raises(AddressError, match=r"cannot write --address-file .*: No such file or directory"):
        publish("127.0.0.1:1", tmp_path / "missing" / "address")


@pytest.mark.parametrize(
    ("arguments", "environment", "said"),
    [
        (["--port", "99999"], {}, "argument --port (flag): '99999' is not a port"),
        (["--num-blocks", "0"], {}, "argument --num-blocks (flag): '0' is not a whole number above 0"),
        (["--kv-cache-memory", "much"], {}, "argument --kv-cache-memory (flag): 'much' is not a size"),
        (["--dtype", "float8"], {}, "argument --dtype (flag): 'float8' is none of"),
        (["--device", "gpu"], {}, "argument --device (flag): 'gpu' is not a device: auto, cpu, cuda or cuda:N"),
        (
            ["--tensor-parallel-size", "0"],
            {},
            "argument --tensor-parallel-size (flag): '0' is not a whole number above 0",
        ),
        (["--no-such-flag"], {}, "unrecognized arguments: --no-such-flag"),
        ([], {"METRONOME_EXECUTOR_PORT": "here"}, "argument --port (METRONOME_EXECUTOR_PORT): 'here' is not a port"),
        ([], {"METRONOME_EXECUTOR_THREADZ": "1"}, "no setting; did you mean METRONOME_EXECUTOR_THREADS?"),
    ],
)
def test_a_setting_that_cannot_be_is_a_usage_error(
    arguments: list[str], environment: dict[str, str], said: str
) -> None:
    run = run_to_its_end([*EXECUTOR, *arguments], **environment)
    assert run.returncode == 2
    assert said in run.stderr
    assert "Traceback" not in run.stderr


def test_the_environment_sets_what_no_flag_does(
    services_directory: Path, tiny_model_directory: Path, scheduler: Service
) -> None:
    environment = {
        "METRONOME_EXECUTOR_MODEL": str(tiny_model_directory),
        "METRONOME_EXECUTOR_SCHEDULER": f"127.0.0.1:1,{scheduler.address}",
        "METRONOME_EXECUTOR_EXECUTOR_ID": "named",
        "METRONOME_EXECUTOR_PORT": "1",
        "METRONOME_EXECUTOR_NUM_BLOCKS": "12",
        "METRONOME_EXECUTOR_THREADS": "1",
        "METRONOME_EXECUTOR_PROFILE": "fifo",
    }
    command = [*EXECUTOR, "--port", "0", "--num-blocks", "24"]
    with started(services_directory, command, environment) as service, connected(service.address) as client:
        wait_until_healthy(service)
        assert client.executor().executor_id == "named"
        assert client.executor().limits.num_blocks == 24
        assert len(client.generate(greedy("planned by the second", 3)).tokens) == 3
        watch = client.control.WatchState(executor_pb2.WatchStateRequest(), timeout=TIMEOUT_SECONDS)
        next(watch)
        service.send(signal.SIGTERM)  # whoever watches does not keep the process
        assert service.wait() == 0


def test_who_waits_because_of_an_unknown_profile_hears_heartbeats_and_the_log_says_why_once(
    services_directory: Path, tiny_model_directory: Path, scheduler: Service
) -> None:
    often = patched_executor(
        "from executor_service import servicer\nservicer.HEARTBEAT_INTERVAL_S = servicer.LOOK_INTERVAL_S = 0.05"
    )
    command = executor_command(
        tiny_model_directory, "--profile", "fast", "--grace-s", "0.1", scheduler=[scheduler.address], program=often
    )
    with started(services_directory, command) as service, connected(service.address) as client:
        wait_until_healthy(service)
        streams = [client.open(greedy(f"waits for ever {number}", 5)) for number in range(3)]
        heard = [[next(stream) for _ in range(5)] for stream in streams]
        assert [[response.sequence for response in responses] for responses in heard] == [[1, 2, 3, 4, 5]] * 3
        assert [[response.heartbeat.num_ahead for response in responses] for responses in heard] == [
            [number] * 5 for number in range(3)
        ]
        wait_until(lambda: client.books().counters.num_plan_failures > 3)
        failure = client.books().planning_failure
        assert failure.startswith(f"the scheduler answers without a plan: {scheduler.address}: INVALID_ARGUMENT: ")
        assert "'fast'" in failure
        assert {responses[-1].heartbeat.detail for responses in heard} == {failure}
        assert service.log.count("scheduler_refuses") == 1
        assert "no_scheduler_answers" not in service.log
        assert "INVALID_ARGUMENT" in service.log
        assert "fast" in service.log
        service.send(signal.SIGTERM)
        assert [ending_of(stream) for stream in streams] == [(grpc.StatusCode.UNAVAILABLE, "DRAINING")] * 3
        assert service.wait() == 0


# Ending


def test_sigterm_lets_everybody_finish(
    services_directory: Path, tiny_model_directory: Path, scheduler: Service
) -> None:
    """Case 47: some decode, some are evicted on the way, some wait."""
    arguments = ("--num-blocks", "8", "--num-swap-blocks", "8", "--max-num-seqs", "3", "--grace-s", "30")
    requests = [greedy(f"thirty-two tokens of a prompt..{number}", 40) for number in range(6)]
    with (
        running_executor(
            services_directory, tiny_model_directory, *arguments, scheduler=[scheduler.address]
        ) as service,
        connected(service.address) as client,
    ):
        alone = [client.generate(request).tokens for request in requests]
        streams = [client.open(request) for request in requests]
        service.send(signal.SIGTERM)
        wait_until(lambda: not is_healthy(service.address))
        refusal = client.refused(greedy("too late", 1))
        assert (refusal.code, refusal.info.reason) == (grpc.StatusCode.UNAVAILABLE, "DRAINING")
        tokens = [[token for response in stream for token in response.delta.token_ids] for stream in streams]
        assert tokens == alone
        assert service.wait() == 0


def test_what_does_not_finish_within_the_grace_period_is_told_so(
    services_directory: Path, tiny_model_directory: Path, scheduler: Service
) -> None:
    """Case 47 with a grace period of half a second."""
    arguments = ("--max-num-seqs", "1", "--grace-s", "0.5")
    with (
        running_executor(
            services_directory, tiny_model_directory, *arguments, scheduler=[scheduler.address]
        ) as service,
        connected(service.address) as client,
    ):
        streams = [client.open(greedy(f"long {number}", LONG)) for number in range(4)]
        service.send(signal.SIGTERM)
        assert [ending_of(stream) for stream in streams] == [(grpc.StatusCode.UNAVAILABLE, "DRAINING")] * 4
        assert service.wait() == 0


def test_a_second_sigterm_ends_the_process_at_once(
    services_directory: Path, tiny_model_directory: Path, scheduler: Service
) -> None:
    arguments = ("--max-num-seqs", "1", "--grace-s", "600")
    with (
        running_executor(
            services_directory, tiny_model_directory, *arguments, scheduler=[scheduler.address]
        ) as service,
        connected(service.address) as client,
    ):
        streams = [client.open(greedy(f"long {number}", LONG)) for number in range(20)]
        service.send(signal.SIGTERM)
        wait_until(lambda: "draining" in service.log)
        service.send(signal.SIGTERM)
        assert service.wait() == 1
        assert ending_of(streams[-1])[0] is grpc.StatusCode.UNAVAILABLE


def test_a_sigterm_after_the_end_of_all_work_changes_nothing(
    services_directory: Path, tiny_model_directory: Path
) -> None:
    slow_to_leave = patched_executor(
        "import asyncio\n"
        "from grpc.aio import _server\n"
        "async def stop(server, grace):\n"
        "    await asyncio.sleep(1)\n"
        "_server.Server.stop = stop"
    )
    with started(services_directory, executor_command(tiny_model_directory, program=slow_to_leave)) as service:
        wait_until_healthy(service)
        service.send(signal.SIGTERM)
        wait_until(lambda: "executor_stopped" in service.log)
        service.send(signal.SIGTERM)
        assert service.wait() == 0
        assert "stopped_at_once" not in service.log


def test_sigterm_ends_a_process_that_loads(
    services_directory: Path, tiny_model_directory: Path, tmp_path: Path
) -> None:
    command = executor_command(tiny_model_directory, program=slow_executor(tmp_path / "never"))
    with started(services_directory, command) as service:
        service.send(signal.SIGTERM)
        assert service.wait() == 0


def test_an_engine_that_dies_tells_everybody_and_ends_the_process(
    services_directory: Path, tiny_model_directory: Path, scheduler: Service
) -> None:
    patch = (
        "from executor_service.engine import loop\n"
        "step = loop.Engine.step\n"
        "def dying(engine):\n"
        "    if engine.counters.num_output_tokens > 20:\n"
        "        raise ZeroDivisionError('a fault of ours')\n"
        "    return step(engine)\n"
        "loop.Engine.step = dying"
    )
    command = executor_command(
        tiny_model_directory, "--max-num-seqs", "2", scheduler=[scheduler.address], program=patched_executor(patch)
    )
    with started(services_directory, command) as service, connected(service.address) as client:
        wait_until_healthy(service)
        streams = [client.open(greedy(f"doomed {number}", 200)) for number in range(4)]
        begun = time.monotonic()
        assert [ending_of(stream) for stream in streams] == [(grpc.StatusCode.INTERNAL, "REQUEST_FAILED")] * 4
        assert service.wait() == 1
        assert time.monotonic() - begun < STOP_SECONDS
        assert "engine_died" in service.log
        assert "a fault of ours" in service.log
