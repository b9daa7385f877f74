"""Starting: launch a service, wait until it reports healthy, say meanwhile what it does.

A service writes the address that it listens on to a file, then answers `grpc.health.v1`. It may die at any moment of
its start (a port that is taken, a model that is not there); then its own last words are the error.
"""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from metronome_cli.command_error import CommandError
from metronome_cli.stack.identity import ProcessIdentity, identify
from metronome_cli.stack.logs import ProgressReader, reason_of_death
from metronome_cli.trust import NO_TLS, Trust

_PORT_FLAG = re.compile(r"(?<![\w-])--port\b")  # a service's own; `up` has one for each service
_POLL_S = 0.05
_HEALTH_TIMEOUT_S = 2.0


class Lifetime(Enum):
    """How long a service is to live."""

    WITH_PARENT = "with the process that started it"
    DETACHED = "until it is stopped"


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """A service that was launched. `address_file` and `log` are its files."""

    name: str
    process: ProcessIdentity
    address_file: Path
    log: Path


def launch(name: str, command: list[str], directory: Path, lifetime: Lifetime) -> Service:
    """Start a service in a session of its own, so that Ctrl-C in the terminal reaches only its parent."""
    address_file, log = directory / f"{name}.address", directory / f"{name}.log"
    address_file.unlink(missing_ok=True)
    bound = ["metronome_cli.stack.bound", str(os.getpid())] if lifetime is Lifetime.WITH_PARENT else []
    arguments = [sys.executable, "-m", *bound, *command, "--address-file", str(address_file)]
    files = [
        (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
        (os.POSIX_SPAWN_OPEN, 1, str(log), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644),
        (os.POSIX_SPAWN_DUP2, 1, 2),
    ]
    # Not subprocess: its objects want to be waited for, and a detached service outlives whoever started it.
    pid = os.posix_spawn(sys.executable, arguments, os.environ, file_actions=files, setsid=True)
    process = identify(pid)
    if process is None:
        raise CommandError(f"the {name} stopped at once: {reason_of_death(log)}", f"its log is {log}")
    return Service(name=name, process=process, address_file=address_file, log=log)


def wait_until_serving(
    service: Service, *, timeout_s: float, on_progress: Callable[[str], None], trust: Trust = NO_TLS
) -> str:
    """Wait until a service reports SERVING, and give its address. `trust`: how to connect where it speaks TLS.

    Raises `CommandError` where it dies, is not ready in time, or cannot be asked.
    """
    deadline = time.monotonic() + timeout_s
    way = None
    with service.log.open("rb") as log:
        progress = ProgressReader(log)
        while time.monotonic() < deadline:
            for message in progress.new_messages():
                on_progress(message)
            if not service.process.is_alive():
                why = _PORT_FLAG.sub(f"--{service.name}-port", reason_of_death(service.log))
                raise CommandError(f"the {service.name} stopped while starting: {why}", f"its log is {service.log}")
            address = _read_address(service.address_file)
            if address:
                way = way or trust.towards(address)
                if is_serving(address, way):
                    return address
            time.sleep(_POLL_S)
    raise CommandError(f"the {service.name} was not ready after {timeout_s:,.0f} s", f"its log is {service.log}")


def is_serving(address: str, trust: Trust = NO_TLS) -> bool:
    """Whether a service answers at the address and reports itself healthy."""
    with trust.open(address) as channel:
        health = health_pb2_grpc.HealthStub(channel)
        try:
            answer = health.Check(health_pb2.HealthCheckRequest(), timeout=_HEALTH_TIMEOUT_S)
        except grpc.RpcError:
            return False
    return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)


def _read_address(path: Path) -> str:
    try:
        return path.read_text().strip()
    except FileNotFoundError:
        return ""
