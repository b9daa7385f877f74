"""A stack as docker-compose.yml has it, on loopback, and Prometheus that scrapes it: two schedulers, two executors.

Prometheus reads deploy/prometheus, with the addresses of here under the names of the containers.
"""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from metronome_cli.stack.start import Lifetime, Service, launch, wait_until_serving
from metronome_cli.stack.stop import stop_all

CONFIGURATION = Path(__file__).parents[2] / "deploy/prometheus"
START_S = 600.0
_PROMETHEUS_START_S = 60.0


@dataclass(slots=True, kw_only=True)
class Watched:
    """A service on a port that stays the same, however often it starts. `name`: that of its container."""

    name: str
    command: list[str]
    directory: Path
    address: str
    metrics_address: str
    service: Service | None = None

    def start(self) -> None:
        """Until it serves. Raises CommandError where it dies instead."""
        self.service = launch(self.name, self.command, self.directory, Lifetime.WITH_PARENT)
        wait_until_serving(self.service, timeout_s=START_S, on_progress=lambda message: None)

    def kill(self) -> None:
        """As a crash would."""
        assert self.service is not None
        self.service.process.send_signal(signal.SIGKILL)
        self.service.process.reap()

    def stop(self) -> None:
        """In order, if it runs."""
        if self.service is not None:
            stop_all([self.service.process])
            self.service.process.reap()


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchedStack:
    """All of it. `prometheus`: its address."""

    schedulers: Sequence[Watched]
    executors: Sequence[Watched]
    prometheus: str

    def query_range(self, expression: str, start_s: float, end_s: float, step_s: float) -> list[Any]:
        """The series of a query, as Prometheus gives them: `metric` and `values`."""
        query = {"query": expression, "start": start_s, "end": end_s, "step": step_s}
        url = f"http://{self.prometheus}/api/v1/query_range?{urllib.parse.urlencode(query)}"
        with urllib.request.urlopen(url, timeout=30) as answer:
            series: list[Any] = json.load(answer)["data"]["result"]
        return series


@contextmanager
def watched_stack(
    directory: Path, scheduler_flags: Sequence[str], executor_flags: Sequence[str]
) -> Iterator[WatchedStack]:
    """Start it, and stop it again."""
    schedulers = [_watched("scheduler", number, directory, scheduler_flags) for number in (1, 2)]
    # Each executor has another scheduler first.
    asked = ([one.address for one in order] for order in (schedulers, reversed(schedulers)))
    executors = [
        _watched("executor", number, directory, [*executor_flags, *(f"--scheduler={address}" for address in addresses)])
        for number, addresses in enumerate(asked, start=1)
    ]
    services = [*schedulers, *executors]
    try:
        for service in services:
            service.start()
        with _prometheus(directory, services) as address:
            yield WatchedStack(schedulers=schedulers, executors=executors, prometheus=address)
    finally:
        for service in reversed(services):
            service.stop()


def _watched(kind: str, number: int, directory: Path, flags: Sequence[str]) -> Watched:
    address, metrics_address = _free_address(), _free_address()
    name, port = f"{kind}-{number}", address.rpartition(":")[2]
    places = ["--host", "127.0.0.1", "--port", port, "--metrics-address", metrics_address, "--log-format", "json"]
    return Watched(
        name=name,
        command=[f"{kind}_service", *places, *flags],
        directory=directory,
        address=address,
        metrics_address=metrics_address,
    )


@contextmanager
def _prometheus(directory: Path, services: Sequence[Watched]) -> Iterator[str]:
    configuration = yaml.safe_load((CONFIGURATION / "prometheus.yml").read_text(encoding="utf-8"))
    configuration["rule_files"] = [str(CONFIGURATION / file) for file in configuration["rule_files"]]
    here = {service.name: service.metrics_address for service in services}
    for job in configuration["scrape_configs"]:
        targets = [target for group in job["static_configs"] for target in group["targets"]]
        job["static_configs"] = [
            {"targets": [here[target.partition(":")[0]]], "labels": {"instance": target}} for target in targets
        ]
    file, address = directory / "prometheus.yml", _free_address()
    file.write_text(yaml.safe_dump(configuration), encoding="utf-8")
    command = ["prometheus", f"--config.file={file}", f"--storage.tsdb.path={directory / 'prometheus'}"]
    with (directory / "prometheus.log").open("wb") as log:
        process = subprocess.Popen([*command, f"--web.listen-address={address}"], stdout=log, stderr=log)
    try:
        _wait_until_ready(process, address, directory / "prometheus.log")
        yield address
    finally:
        process.terminate()
        process.wait()


def _wait_until_ready(process: subprocess.Popen[bytes], address: str, log: Path) -> None:
    deadline = time.monotonic() + _PROMETHEUS_START_S
    while time.monotonic() < deadline and process.poll() is None:
        try:
            with urllib.request.urlopen(f"http://{address}/-/ready", timeout=5):
                return
        except OSError:
            time.sleep(0.1)
    raise SystemExit(f"Prometheus does not start: {log.read_text(errors='replace')[-500:]}")


def _free_address() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"
