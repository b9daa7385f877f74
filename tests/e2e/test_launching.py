"""A process that talks gRPC starts services: they are fresh processes, and end with it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import psutil

from support.services import Service, is_alive, is_healthy, wait_until

NUM_STARTS = 20

LAUNCHER = """
import json, sys, time
from pathlib import Path

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from metronome_cli.stack.start import Lifetime, launch, wait_until_serving

address, model, directory = sys.argv[1], sys.argv[2], Path(sys.argv[3])
channel = grpc.insecure_channel(address)
health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=60)

def start(name, *command):
    return launch(name, list(command), directory, Lifetime.WITH_PARENT)

many = [start(f"start-{number}", "scheduler_service", "--print-config") for number in range(int(sys.argv[4]))]
port = ["--port", "0"]
executor = ["executor_service", *port, "--model", model, "--dtype", "float32", "--threads", "1", "--num-blocks", "8"]
services = [start("scheduler", "scheduler_service", *port), start("one", *executor), start("other", *executor)]
addresses = [wait_until_serving(service, timeout_s=180, on_progress=lambda _: None) for service in services]
health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=60)
while any(each.process.is_alive() for each in many):
    time.sleep(0.01)
printed = [each.log.read_text().startswith("# The settings of metronome-scheduler") for each in many]
print(json.dumps([addresses, [each.process.pid for each in services], printed]), flush=True)
time.sleep(600)
"""


def test_case_49_services_started_beside_an_open_channel_serve_and_end_with_who_started_them(
    tmp_path: Path, tiny_model_directory: Path, scheduler: Service
) -> None:
    arguments = [scheduler.address, str(tiny_model_directory), str(tmp_path), str(NUM_STARTS)]
    with subprocess.Popen([sys.executable, "-c", LAUNCHER, *arguments], stdout=subprocess.PIPE) as launcher:
        try:
            assert launcher.stdout is not None
            addresses, pids, printed = json.loads(launcher.stdout.readline())
            services = [psutil.Process(pid) for pid in pids]
            assert [is_healthy(address) for address in addresses] == [True] * 3
            assert printed == [True] * NUM_STARTS
        finally:
            launcher.kill()
    wait_until(lambda: not any(is_alive(service) for service in services), 60)
