"""docker-compose.yml and its override for NVIDIA as Compose reads them. No engine is asked."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.stack import docker_compose

ROOT = Path(__file__).parents[2]
EXECUTORS = ("executor-1", "executor-2")
# A name of Docker Hub with a version of three numbers, or built here.
PINNED = re.compile(r"[a-z/-]+:v?\d+\.\d+\.\d+[\w.-]*|metronome-(scheduler|executor)")


def services_of(*files: str) -> dict[str, Any]:
    compose = docker_compose()
    if shutil.which(compose) is None:
        pytest.skip("docker-compose is not installed")
    command = [compose, *(part for file in files for part in ("--file", file)), "config", "--format", "json"]
    # Nothing of this machine's environment is in the answer.
    result = subprocess.run(command, cwd=ROOT, env={"HOME": "/nonexistent"}, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert not result.stderr, "warnings"
    services: dict[str, Any] = json.loads(result.stdout)["services"]
    return services


def read_yaml(path: str) -> Any:
    return yaml.safe_load((ROOT / path).read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def services() -> dict[str, Any]:
    return services_of("docker-compose.yml")


def test_two_schedulers_two_executors_and_each_executor_asks_both(services: dict[str, Any]) -> None:
    schedulers = {f"{name}:50051" for name in services if name.startswith("scheduler-")}
    asked = [services[name]["environment"]["METRONOME_EXECUTOR_SCHEDULER"].split(",") for name in EXECUTORS]
    assert [set(addresses) for addresses in asked] == [schedulers, schedulers]
    assert {addresses[0] for addresses in asked} == schedulers, "all executors ask the same one first"


def test_every_service_is_confined_limited_and_pinned(services: dict[str, Any]) -> None:
    for name, service in services.items():
        assert service["read_only"], name
        assert service["cap_drop"] == ["ALL"], name
        assert "cap_add" not in service, name
        assert not service.get("privileged"), name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        assert service["restart"] == ("no" if name == "certificates" else "unless-stopped"), name
        assert service["deploy"]["resources"]["limits"].keys() == {"cpus", "memory", "pids"}, name
        assert PINNED.fullmatch(service["image"]), name
        assert all(port["host_ip"] == "127.0.0.1" for port in service.get("ports", ())), name
        assert service["healthcheck"], name


def test_no_two_services_want_the_same_port(services: dict[str, Any]) -> None:
    published = [port["published"] for service in services.values() for port in service.get("ports", ())]
    assert len(published) == len(set(published)) > 0


def test_every_file_of_this_repository_that_a_service_reads_is_there(services: dict[str, Any]) -> None:
    # The engine would make an empty directory of one that is not.
    sources = {
        Path(mount["source"])
        for service in services.values()
        for mount in service["volumes"]
        if mount["type"] == "bind"
    }
    assert len(sources) == 4
    assert all(source.exists() for source in sources)


def test_prometheus_asks_for_the_metrics_of_every_scheduler_and_executor(services: dict[str, Any]) -> None:
    jobs = read_yaml("deploy/prometheus/prometheus.yml")["scrape_configs"]
    asked = {target for job in jobs for configuration in job["static_configs"] for target in configuration["targets"]}
    served = {
        f"{name}:{value.rpartition(':')[2]}"
        for name, service in services.items()
        for variable, value in service.get("environment", {}).items()
        if variable.endswith("_METRICS_ADDRESS")
    }
    assert len(served) == 4
    assert asked == served


def test_grafana_finds_the_dashboards_and_prometheus(services: dict[str, Any]) -> None:
    (provider,) = read_yaml("deploy/grafana/provisioning/dashboards/metronome.yml")["providers"]
    mounts = {mount["target"]: mount["source"] for mount in services["grafana"]["volumes"]}
    assert mounts[provider["options"]["path"]] == str(ROOT / "deploy/grafana/dashboards")
    home = services["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
    assert (ROOT / "deploy/grafana/dashboards" / Path(home).relative_to(provider["options"]["path"])).exists()
    (source,) = read_yaml("deploy/grafana/provisioning/datasources/prometheus.yml")["datasources"]
    assert source["url"] == f"http://prometheus:{services['prometheus']['ports'][0]['target']}"


def test_with_the_override_executors_compute_on_nvidia_devices_and_nothing_else_changes(
    services: dict[str, Any],
) -> None:
    changed = services_of("docker-compose.yml", "docker-compose.gpu.yml")
    assert {name for name in services if changed[name] != services[name]} == set(EXECUTORS)
    for name in EXECUTORS:
        (device,) = changed[name]["deploy"]["resources"]["reservations"]["devices"]
        assert device["driver"] == "nvidia"
        assert changed[name]["environment"]["METRONOME_EXECUTOR_DEVICE"] == "cuda"
        assert changed[name]["environment"].items() > services[name]["environment"].items()


@pytest.mark.parametrize("service", ["scheduler", "executor"])
def test_dockerfiles_run_as_nobody_in_particular_and_build_on_what_compose_says(
    services: dict[str, Any], service: str
) -> None:
    lines = (ROOT / "deploy" / f"{service}.Dockerfile").read_text(encoding="utf-8").splitlines()
    base_image = services[f"{service}-1"]["build"]["args"]["BASE_IMAGE"]
    assert PINNED.fullmatch(base_image)
    assert f"ARG BASE_IMAGE={base_image}" in lines
    assert "USER 10001:10001" in lines


def test_what_the_images_copy_is_sent_to_the_engine() -> None:
    """`.dockerignore` leaves out all but what it names."""
    sent = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    copied = {
        source
        for dockerfile in (ROOT / "deploy").glob("*.Dockerfile")
        for line in dockerfile.read_text().splitlines()
        if line.startswith("COPY ") and "--from" not in line
        for source in line.split()[1:-1]
    }
    assert {"scheduler_service", "executor_service", "service_shell"} <= copied
    assert copied <= sent
