"""A server as a process of its own, on chosen cores, and the memory that it holds."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

SCHEDULER = ("-m", "scheduler_service", "--port", "0", "--log-level", "warning")
ECHO = (str(Path(__file__).with_name("echo_server.py")),)
OTLP_SINK = (str(Path(__file__).with_name("otlp_sink.py")),)
TOKENS = (str(Path(__file__).with_name("token_server.py")),)
START_SECONDS = 180.0
STOP_SECONDS = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerProcess:
    """A server that listens at `address`."""

    address: str
    pid: int

    @property
    def resident_mib(self) -> float:
        """Memory that it has in RAM."""
        return float(psutil.Process(self.pid).memory_info().rss) / 2**20


@contextmanager
def server_process(*arguments: str, cores: Sequence[int] | None = None) -> Iterator[ServerProcess]:
    """Start a Python program that takes --address-file; end it afterwards. `cores`: those it may use; None: all."""
    with tempfile.TemporaryDirectory() as directory:
        address_file = Path(directory) / "address"
        command = [sys.executable, *arguments, "--address-file", str(address_file)]
        with on_cores(cores):  # a child inherits them, and so does each of its threads
            process = subprocess.Popen(command)
        with process:
            try:
                yield ServerProcess(address=_wait_for_address(process, address_file), pid=process.pid)
            finally:
                process.terminate()
                process.wait(timeout=STOP_SECONDS)


def free_port() -> int:
    """A port of loopback that nobody listened on a moment ago."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


@contextmanager
def on_cores(cores: Sequence[int] | None) -> Iterator[None]:
    """Run the calling thread on these cores alone meanwhile. None: on those that it has."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, before if cores is None else cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def _wait_for_address(process: subprocess.Popen[bytes], address_file: Path) -> str:
    deadline = time.monotonic() + START_SECONDS
    while not address_file.exists():
        if process.poll() is not None:
            raise RuntimeError(f"{process.args} ended with status {process.returncode}")
        if time.monotonic() > deadline:
            raise RuntimeError(f"{process.args} does not listen after {START_SECONDS:.0f} s")
        time.sleep(0.01)
    return address_file.read_text(encoding="utf-8").strip()
