"""The stack of docker-compose.yml as tests use it: Compose's command, its containers, and clients of its services."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.request import urlopen

from metronome_client import InferenceClient, SchedulerClient, Tls

ROOT = Path(__file__).parents[2]
PROJECT = "metronome-test"
_PORTS = ("SCHEDULER_1_PORT", "SCHEDULER_2_PORT", "EXECUTOR_1_PORT", "EXECUTOR_2_PORT", "PROMETHEUS_PORT")
# Nobody else's ports: the engine takes free ones.
_ENVIRONMENT = {**os.environ, **dict.fromkeys(_PORTS, "0")}


def run(*command: str, environment: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    variables = _ENVIRONMENT | dict(environment or {})
    return subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, text=True)


def output(*command: str) -> str:
    result = run(*command)
    assert result.returncode == 0, f"{' '.join(command)}\n{result.stdout}\n{result.stderr}"
    return result.stdout


def compose_command() -> tuple[str, ...] | None:
    """Compose as a plugin of the docker command, or on its own; None: neither is here."""
    for command in (("docker", "compose"), (docker_compose(),)):
        if shutil.which(command[0]) and run(*command, "version").returncode == 0:
            return (*command, "--project-name", PROJECT)
    return None


def docker_compose() -> str:
    """The command of its own, of the virtual environment that the tests run in if there is one."""
    installed = Path(sys.executable).with_name("docker-compose")
    return str(installed) if installed.exists() else "docker-compose"


@contextmanager
def images_removed() -> Iterator[None]:
    """Leave the engine with the images that it had, and no others."""
    before = _image_ids()
    try:
        yield
    finally:
        # What is built on another one goes with it, or is in its way until it is gone itself.
        while made := _image_ids() - before:
            run("docker", "image", "rm", "--force", *made)
            if _image_ids() - before == made:
                break


def _image_ids() -> set[str]:
    return set(output("docker", "image", "ls", "--quiet", "--no-trunc").split())


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """`services`: those that tests run. `environment`: what a build is told beside the environment of this process.

    `certificates`: a directory that gets what clients show, and whom they trust.
    """

    compose: tuple[str, ...]
    services: tuple[str, ...]
    environment: Mapping[str, str]
    certificates: Path

    def __call__(self, *arguments: str) -> str:
        return output(*self.compose, *arguments)

    def build(self, *services: str) -> None:
        result = run(*self.compose, "build", *services, environment=self.environment)
        assert result.returncode == 0, result.stdout[-4000:] + result.stderr[-4000:]

    def up(self) -> None:
        """Start what does not run, and wait until all is healthy."""
        result = run(*self.compose, "up", "--wait", "--no-build", *self.services)
        assert result.returncode == 0, f"{result.stdout[-4000:]}\n{result.stderr[-4000:]}\n{self._states()}"

    def down(self) -> None:
        self("down", "--volumes", "--remove-orphans", "--timeout", "30")

    def inspect(self, service: str) -> dict[str, Any]:
        container = self("ps", "--all", "--quiet", service).strip()
        details: dict[str, Any] = json.loads(output("docker", "inspect", container))[0]
        return details

    def crash(self, service: str) -> None:
        """Kill its process from outside its container, as a lack of memory would: nobody told the engine to stop it."""
        container = self.inspect(service)
        kill = ("run", "--rm", "--pid=host", "--user=0", "--network=none", "--entrypoint=sh")
        output("docker", *kill, container["Image"], "-c", f"kill -KILL {container['State']['Pid']}")

    def executor(self, service: str) -> InferenceClient:
        return InferenceClient(self.address(service, 50052), tls=Tls(root_certificates=self._pem("ca")))

    def scheduler(self, service: str) -> SchedulerClient:
        ca, certificate, key = (self._pem(name) for name in ("ca", "certificate", "key"))
        tls = Tls(root_certificates=ca, certificate_chain=certificate, private_key=key)
        return SchedulerClient(self.address(service, 50051), tls=tls)

    def metrics(self, path: str) -> dict[str, Any]:
        """An answer of Prometheus: https://prometheus.io/docs/prometheus/latest/querying/api/"""
        with urlopen(f"http://{self.address('prometheus', 9090)}/api/v1/{path}", timeout=30) as answer:
            data: dict[str, Any] = json.load(answer)["data"]
        return data

    def address(self, service: str, port: int) -> str:
        """Where the host finds a port of a container."""
        return self("port", service, str(port)).strip()

    def _pem(self, name: str) -> bytes:
        if not (self.certificates / "client").exists():
            self("cp", "certificates:/certificates/client", str(self.certificates))
        return (self.certificates / "client" / f"{name}.pem").read_bytes()

    def _states(self) -> str:
        logs = run(*self.compose, "logs", "--no-color", "--tail", "30").stdout
        return f"{run(*self.compose, 'ps', '--all').stdout}\n{logs}"
