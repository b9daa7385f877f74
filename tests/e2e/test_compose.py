"""The stack of docker-compose.yml for real: images, containers, text through the published ports, and down again.

Needs a Docker engine and Compose v2. The images that the stack builds on are made of Debian's packages (mmdebstrap)
where no registry can be reached. Grafana is no Debian package and is left out. What the test made is removed:
containers, networks, volumes, and the images that were not there before.
"""

from __future__ import annotations

import json
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import cycle, islice

import grpc
import pytest

from metronome_client import Delta, Finished, FinishReason, GenerateOptions, InferenceClient
from support.images import ImageError, is_present, make_prometheus_image, make_python_image, pull
from support.services import wait_until
from support.stack import Stack, compose_command, images_removed, output, run

pytestmark = [pytest.mark.compose, pytest.mark.timeout(2400)]

SCHEDULERS = ("scheduler-1", "scheduler-2")
EXECUTORS = ("executor-1", "executor-2")
LEFT_OUT = {"grafana"}
UNPRIVILEGED_USERS = {"10001:10001", "65534:65534"}
NUM_STREAMS = 8
NUM_TOKENS = 60


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    if shutil.which("docker") is None or run("docker", "info").returncode != 0:
        pytest.skip("no Docker engine answers here")
    compose = compose_command()
    if compose is None:
        pytest.skip("Docker Compose v2 is not installed")
    config = json.loads(output(*compose, "config", "--format", "json"))["services"]
    base_image = config["executor-1"]["build"]["args"]["BASE_IMAGE"]
    stack = Stack(
        compose=compose,
        services=tuple(sorted(config.keys() - LEFT_OUT)),
        # Where no registry of images can be reached, torch comes from where pip finds all else.
        environment={} if pull(base_image) else {"TORCH_INDEX_URL": os.environ.get("TORCH_INDEX_URL", "")},
        certificates=tmp_path_factory.mktemp("certificates"),
    )
    with images_removed():
        provide(base_image, make_python_image)
        provide(config["prometheus"]["image"], make_prometheus_image)
        stack.down()
        try:
            # All at once, an engine without BuildKit would build an image for each service that has it.
            for service in ("scheduler-1", "executor-1"):
                stack.build(service)
            stack.up()
            yield stack
        finally:
            stack.down()


def provide(image: str, make: Callable[[str], None]) -> None:
    """See to it that the engine has an image: as it is here, pulled, or made."""
    if is_present(image) or pull(image):
        return
    try:
        make(image)
    except ImageError as error:
        pytest.skip(str(error))


def generate(client: InferenceClient, prompt: str, num_tokens: int, begun: Callable[[], None] = lambda: None) -> str:
    """The text of an answer of so many tokens; `begun` is called with its first one."""
    options = GenerateOptions(max_tokens=num_tokens, temperature=0.0, ignore_eos=True)
    texts = []
    for event in client.generate(prompt, options, timeout_s=600):
        if isinstance(event, Delta):
            if not texts:
                begun()
            texts.append(event.text)
    assert isinstance(event, Finished)
    assert event.reason is FinishReason.LENGTH
    return "".join(texts)


@pytest.mark.parametrize("service", EXECUTORS)
def test_each_executor_answers_by_the_plans_of_a_scheduler(stack: Stack, service: str) -> None:
    with stack.executor(service) as executor:
        assert "seven" in generate(executor, "one, two, three, four, five, six,", 4)
        counters = executor.state().counters
    assert counters.num_iterations > counters.num_safe_plans


@pytest.mark.parametrize("service", SCHEDULERS)
def test_each_scheduler_answers_who_shows_a_certificate_and_nobody_else(stack: Stack, service: str) -> None:
    with stack.scheduler(service) as scheduler:
        assert scheduler.list_profiles()
    with grpc.insecure_channel(stack.address(service, 50051)) as channel, pytest.raises(grpc.FutureTimeoutError):
        grpc.channel_ready_future(channel).result(timeout=3)


def test_a_scheduler_killed_under_load_costs_no_request(stack: Stack) -> None:
    begun = threading.Semaphore(0)
    with (
        stack.executor("executor-1") as first,
        stack.executor("executor-2") as second,
        ThreadPoolExecutor(2 * NUM_STREAMS) as pool,
    ):
        executors = list(islice(cycle((first, second)), NUM_STREAMS))
        streams = [
            pool.submit(generate, executor, f"Story {number}. Once upon a time", NUM_TOKENS, begun.release)
            for number, executor in enumerate(executors)
        ]
        for _ in streams:
            assert begun.acquire(timeout=300)
        assert not any(stream.done() for stream in streams)
        stack("kill", "scheduler-1")
        # Only the other scheduler is left to admit these.
        streams += [
            pool.submit(generate, executor, f"Letter {number}. Dear", 8) for number, executor in enumerate(executors)
        ]
        assert all(stream.result() for stream in streams)
    assert stack.inspect("scheduler-1")["State"]["Status"] == "exited"
    stack.up()


@pytest.mark.parametrize("service", ["scheduler-2", "executor-2"])
def test_what_dies_is_started_again(stack: Stack, service: str) -> None:
    before = stack.inspect(service)["RestartCount"]
    stack.crash(service)
    wait_until(lambda: stack.inspect(service)["RestartCount"] > before, seconds=120)
    stack.up()
    with stack.executor("executor-2") as executor:
        assert generate(executor, "Once upon a time", 4)


def test_a_restarted_executor_drains_and_finds_its_converted_model(stack: Stack) -> None:
    logs = [stack("logs", "--no-color", executor) for executor in EXECUTORS]
    assert sum("kept the converted model" in log for log in logs) == 1
    stack("stop", "executor-1")
    assert stack.inspect("executor-1")["State"]["ExitCode"] == 0, "it was killed"
    stack("rm", "--force", "executor-1")
    stack.up()
    log = stack("logs", "--no-color", "executor-1")
    assert "converting" not in log
    assert "compiling kernels" not in log
    with stack.executor("executor-1") as executor:
        assert "seven" in generate(executor, "one, two, three, four, five, six,", 4)


def test_the_certificates_that_there_are_stay(stack: Stack) -> None:
    stack.up()
    log = stack("logs", "--no-color", "certificates")
    assert log.count("certificates: made") == 1
    assert "certificates: kept" in log


def test_prometheus_hears_of_every_service_and_knows_the_alerts(stack: Stack) -> None:
    def targets() -> dict[str, str]:
        return {target["labels"]["instance"]: target["health"] for target in stack.metrics("targets")["activeTargets"]}

    def executors() -> set[str]:
        series = stack.metrics("query?query=metronome_executor_info")["result"]
        return {one["metric"]["executor_id"] for one in series}

    services = {*(f"{name}:9101" for name in SCHEDULERS), *(f"{name}:9102" for name in EXECUTORS)}
    wait_until(lambda: targets() == dict.fromkeys(services, "up"), seconds=60)
    assert stack.metrics("rules")["groups"]
    # An executor tells what it is once its model is loaded: one that was started again, with the next scrape.
    wait_until(lambda: executors() == set(EXECUTORS), seconds=60)


@pytest.mark.parametrize("service", [*SCHEDULERS, *EXECUTORS, "certificates", "prometheus"])
def test_a_container_holds_no_privileges_and_is_limited(stack: Stack, service: str) -> None:
    container = stack.inspect(service)
    host = container["HostConfig"]
    assert container["Config"]["User"] in UNPRIVILEGED_USERS
    assert host["ReadonlyRootfs"]
    assert not host["Privileged"]
    assert host["CapDrop"] == ["ALL"]
    assert not host["CapAdd"]
    assert "no-new-privileges:true" in host["SecurityOpt"]
    assert all(host[limit] > 0 for limit in ("Memory", "NanoCpus", "PidsLimit"))
    bindings = [binding for port in container["NetworkSettings"]["Ports"].values() for binding in port or ()]
    assert {binding["HostIp"] for binding in bindings} <= {"127.0.0.1"}


@pytest.mark.parametrize("service", [*SCHEDULERS, *EXECUTORS])
def test_nothing_of_the_program_can_be_changed_from_inside(stack: Stack, service: str) -> None:
    assert stack.inspect(service)["HostConfig"]["RestartPolicy"]["Name"] == "unless-stopped"
    for file in ("/opt/metronome/written", "/certificates/written"):
        touch = run(*stack.compose, "exec", "-T", "--user", "root", service, "touch", file)
        assert touch.returncode != 0
        assert "Read-only file system" in touch.stderr


def test_the_scheduler_has_no_torch_and_its_core_is_compiled_before(stack: Stack) -> None:
    find = "import importlib.util, sys; sys.exit(importlib.util.find_spec('torch') is not None)"
    stack("exec", "-T", "scheduler-1", "python", "-c", find)
    assert '"kept_in": "/opt/metronome/' in stack("logs", "--no-color", "scheduler-1")


def test_the_executors_run_compiled_kernels(stack: Stack) -> None:
    logs = stack("logs", "--no-color", *EXECUTORS)
    assert "torch's own operations" not in logs
