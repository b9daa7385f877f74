"""Real scheduler and executor processes on free ports of loopback, and what tests do to them: stop, kill, start anew.

The executor runs a tiny random model, so a process is ready a few seconds after it was started.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import grpc
import psutil
from grpc_health.v1 import health_pb2, health_pb2_grpc

SCHEDULER = (sys.executable, "-m", "scheduler_service")
EXECUTOR = (sys.executable, "-m", "executor_service")
START_SECONDS = 180
STOP_SECONDS = 60
NO_SCHEDULER = "127.0.0.1:1"  # nobody listens there

_numbers = count()


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """A process that listens at `address` and logs to a file."""

    process: subprocess.Popen[bytes]
    address: str
    log_file: Path

    @property
    def port(self) -> str:
        return self.address.rsplit(":", 1)[1]

    @property
    def log(self) -> str:
        return self.log_file.read_text(encoding="utf-8", errors="replace")

    def send(self, signal_number: signal.Signals) -> None:
        self.process.send_signal(signal_number)

    def wait(self) -> int:
        """The exit status, once the process has ended."""
        return self.process.wait(timeout=STOP_SECONDS)

    def kill(self) -> None:
        """End it as a crash would: without a word to anyone."""
        self.process.kill()
        self.wait()


def executor_command(
    model: Path, *arguments: str, scheduler: Sequence[str] = (NO_SCHEDULER,), program: Sequence[str] = EXECUTOR
) -> list[str]:
    """The command of an executor on a free port, with a cache of 64 blocks unless told otherwise."""
    command = [*program, "--model", str(model), "--dtype", "float32", "--threads", "1", "--port", "0"]
    command += ["--log-format", "json", "--num-blocks", "64"]
    for address in scheduler:
        command += ["--scheduler", address]
    return [*command, *arguments]


@contextmanager
def started(directory: Path, command: Sequence[str], environment: Mapping[str, str] | None = None) -> Iterator[Service]:
    """Start a service and wait until it listens; kill what is left of it afterwards."""
    number = next(_numbers)
    address_file, log_file = directory / f"address-{number}", directory / f"log-{number}"
    with log_file.open("wb") as log:
        process = subprocess.Popen(
            [*command, "--address-file", str(address_file)], stderr=log, env={**os.environ, **(environment or {})}
        )
    with process:
        try:
            wait_until(lambda: address_file.exists() or process.poll() is not None, START_SECONDS)
            assert process.poll() is None, log_file.read_text(encoding="utf-8")
            address = address_file.read_text(encoding="utf-8").strip()
            yield Service(process=process, address=address, log_file=log_file)
        finally:
            process.kill()


def patched(service: str, patch: str) -> list[str]:
    """The program of a service in which `patch`, a piece of Python, has changed something before it starts."""
    return [sys.executable, "-c", f"{patch}\nfrom {service}_service.__main__ import main\nmain()"]


def patched_executor(patch: str) -> list[str]:
    return patched("executor", patch)


def impatient(service: str) -> list[str]:
    """The program of a service that soon asks a silent client whether it is there, and soon gives it up."""
    return patched(
        service,
        "from service_shell import port_settings\n"
        "port_settings.KEEPALIVE_MS, port_settings.KEEPALIVE_TIMEOUT_MS = 200, 2000",
    )


def slow_executor(gate: Path) -> list[str]:
    """The program of an executor whose model is loaded once the file `gate` exists."""
    return patched_executor(
        "import pathlib, time\n"
        "from executor_service import build\n"
        "build_executor = build.build_executor\n"
        "def slow(*args, **settings):\n"
        f"    while not pathlib.Path({str(gate)!r}).exists():\n"
        "        time.sleep(0.01)\n"
        "    return build_executor(*args, **settings)\n"
        "build.build_executor = slow"
    )


def free_port() -> str:
    """A port of loopback that nobody listened on a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


@contextmanager
def running_scheduler(directory: Path, *, port: str = "0") -> Iterator[Service]:
    with started(directory, [*SCHEDULER, "--port", port]) as service:
        yield service


@contextmanager
def running_executor(
    directory: Path, model: Path, *arguments: str, scheduler: Sequence[str] = (NO_SCHEDULER,)
) -> Iterator[Service]:
    """An executor that has loaded its model."""
    with started(directory, executor_command(model, *arguments, scheduler=scheduler)) as service:
        wait_until_healthy(service)
        yield service


def wait_until_healthy(service: Service) -> None:
    wait_until(lambda: service.process.poll() is not None or is_healthy(service.address), START_SECONDS)
    assert service.process.poll() is None, service.log


def is_healthy(address: str, name: str = "") -> bool:
    """A process that loads its model on a machine with other work may take longer than a check waits."""
    try:
        return health_of(address, name) == int(health_pb2.HealthCheckResponse.SERVING)
    except grpc.RpcError as error:
        if error.code() is not grpc.StatusCode.DEADLINE_EXCEEDED:
            raise
        return False


def health_of(address: str, name: str = "") -> int:
    with grpc.insecure_channel(address) as channel:
        check = health_pb2_grpc.HealthStub(channel).Check
        return int(check(health_pb2.HealthCheckRequest(service=name), timeout=10).status)


def is_alive(process: psutil.Process) -> bool:
    """Not one that has ended and that nobody has asked for its status."""
    with suppress(psutil.NoSuchProcess):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False


def wait_until(condition: Callable[[], bool], seconds: float = 60) -> None:
    """Poll until it holds. Fails when it never does; the time is a bound for a hang, not a measure."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.01)
