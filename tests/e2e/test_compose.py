"""The stack of docker-compose.yml for real: images, containers, text through the published port, and down again.

Needs a Docker engine, Compose v2, and the base image of the Dockerfiles, here or where the engine can pull it; skipped
where one of them is missing. What such a machine sets to build at all (`BASE_IMAGE`, `TORCH_INDEX_URL`, `COMPOSE_FILE`)
counts here too. The images stay, so that the next run finds their layers.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from metronome_client import Delta, Finished, FinishReason, GenerateOptions, InferenceClient, SchedulerClient

pytestmark = [pytest.mark.compose, pytest.mark.timeout(1800)]

ROOT = Path(__file__).parents[2]
PROJECT = "metronome-test"
SERVICES = ("scheduler", "executor")
UNPRIVILEGED_USER = "10001:10001"
# Nobody else's ports: the engine takes free ones.
ENVIRONMENT = {**os.environ, "METRONOME_SCHEDULER_PORT": "0", "METRONOME_EXECUTOR_PORT": "0"}


def run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True)


def output(*command: str) -> str:
    result = run(*command)
    assert result.returncode == 0, f"{' '.join(command)}\n{result.stdout}\n{result.stderr}"
    return result.stdout


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """The running stack, and Compose's command for it."""

    compose: tuple[str, ...]

    def __call__(self, *arguments: str) -> str:
        return output(*self.compose, *arguments)

    def up(self, *arguments: str) -> None:
        """Start what does not run and wait until all is healthy."""
        result = run(*self.compose, "up", "--wait", *arguments)
        assert result.returncode == 0, f"{result.stderr}\n{self('logs', '--tail', '50')}"

    def base_image(self) -> str:
        """What the Dockerfiles build on."""
        services = json.loads(self("config", "--format", "json"))["services"]
        image: str = services["scheduler"]["build"]["args"]["BASE_IMAGE"]
        return image

    def inspect(self, service: str) -> dict[str, Any]:
        container = self("ps", "--all", "--quiet", service).strip()
        details: dict[str, Any] = json.loads(output("docker", "inspect", container))[0]
        return details

    def executor(self) -> InferenceClient:
        return InferenceClient(self("port", "executor", "50052").strip())

    def scheduler(self) -> SchedulerClient:
        return SchedulerClient(self("port", "scheduler", "50051").strip())


def compose_command() -> tuple[str, ...] | None:
    """Compose as a plugin of the docker command, or on its own; None: neither is here."""
    for command in (("docker", "compose"), ("docker-compose",)):
        if shutil.which(command[0]) and run(*command, "version").returncode == 0:
            return (*command, "--project-name", PROJECT)
    return None


def is_available(image: str) -> bool:
    return any(run("docker", *command, image).returncode == 0 for command in (("image", "inspect"), ("pull",)))


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    if shutil.which("docker") is None or run("docker", "info").returncode != 0:
        pytest.skip("no Docker engine answers here")
    compose = compose_command()
    if compose is None:
        pytest.skip("Docker Compose v2 is not installed")
    stack = Stack(compose=compose)
    base_image = stack.base_image()
    if not is_available(base_image):
        pytest.skip(f"the base image {base_image} is not here and cannot be pulled")
    stack("down", "--volumes")
    try:
        stack.up("--build")
        yield stack
    finally:
        stack("down", "--volumes")


def count_on(client: InferenceClient) -> str:
    options = GenerateOptions(max_tokens=4, temperature=0.0)
    events = list(client.generate("one, two, three, four, five, six,", options, timeout_s=120))
    assert isinstance(events[-1], Finished)
    assert events[-1].reason is FinishReason.LENGTH
    return "".join(event.text for event in events if isinstance(event, Delta))


def test_a_prompt_is_answered_by_the_plans_of_the_scheduler(stack: Stack) -> None:
    with stack.executor() as executor:
        assert "seven" in count_on(executor)
        counters = executor.state().counters
    assert counters.num_iterations > 0
    assert counters.num_safe_plans == 0


def test_the_scheduler_answers_on_its_published_port(stack: Stack) -> None:
    with stack.scheduler() as scheduler:
        assert scheduler.list_profiles()


def test_a_restarted_executor_drains_and_finds_its_converted_model(stack: Stack) -> None:
    assert "converting" in stack("logs", "executor")
    stack("stop", "executor")
    assert stack.inspect("executor")["State"]["ExitCode"] == 0, "it was killed"
    stack("rm", "--force", "executor")
    stack.up()
    assert "converting" not in stack("logs", "executor")
    with stack.executor() as executor:
        assert "seven" in count_on(executor)


@pytest.mark.parametrize("service", SERVICES)
def test_a_container_holds_no_privileges_and_is_limited(stack: Stack, service: str) -> None:
    container = stack.inspect(service)
    host = container["HostConfig"]
    assert container["Config"]["User"] == UNPRIVILEGED_USER
    assert host["ReadonlyRootfs"]
    assert host["CapDrop"] == ["ALL"]
    assert "no-new-privileges:true" in host["SecurityOpt"]
    assert host["RestartPolicy"]["Name"] == "unless-stopped"
    assert all(host[limit] > 0 for limit in ("Memory", "NanoCpus", "PidsLimit"))
    bindings = [binding for port in container["NetworkSettings"]["Ports"].values() for binding in port]
    assert {binding["HostIp"] for binding in bindings} == {"127.0.0.1"}


@pytest.mark.parametrize("service", SERVICES)
def test_nothing_of_the_program_can_be_changed_from_inside(stack: Stack, service: str) -> None:
    touch = run(*stack.compose, "exec", "--user", "root", service, "touch", "/opt/metronome/written")
    assert touch.returncode != 0
    assert "Read-only file system" in touch.stderr


def test_the_scheduler_has_no_torch(stack: Stack) -> None:
    find = "import importlib.util, sys; sys.exit(importlib.util.find_spec('torch') is not None)"
    stack("exec", "scheduler", "python", "-c", find)
