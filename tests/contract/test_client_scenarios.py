"""The kit's servers that go wrong, met by both Python clients, which hold, and by crooked ones, which it must catch.

The same scenarios meet the TypeScript client in test_typescript.py.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc
import pytest

from metronome_cli.main import run_command
from metronome_conformance import Result, Verdict, client_kit, driver, load_scenarios
from metronome_conformance.client_kit import run_client_scenarios
from metronome_conformance.driver import ProcessDriver
from metronome_conformance.pings import ping_fault
from support.services import Service

DRIVERS = Path(__file__).parents[2] / "clients" / "python" / "conformance"


@contextmanager
def started(*command: str) -> Iterator[ProcessDriver]:
    process = ProcessDriver([sys.executable, "-W", "error", *command])
    try:
        yield process
    finally:
        process.close()


def broken(results: Iterator[Result]) -> dict[str, tuple[str, ...]]:
    """Findings by scenario."""
    return {result.scenario.name: result.findings for result in results if result.verdict is not Verdict.HOLDS}


@pytest.mark.parametrize("program", ["sync_driver.py", "async_driver.py"])
def test_the_python_clients_meet_every_fault(program: str) -> None:
    with started(str(DRIVERS / program)) as process:
        assert broken(run_client_scenarios(process, load_scenarios("client"))) == {}


CROOKED = f"""
import runpy, sys
sys.path.insert(0, {str(DRIVERS)!r})
import metronome_client.errors, metronome_client.retry
metronome_client.retry._may_be_retried = lambda error: True
metronome_client.errors._BY_REASON.clear()
runpy.run_path({str(DRIVERS / "sync_driver.py")!r})
"""


def test_a_client_that_tries_what_it_must_not_and_one_without_classes_are_caught() -> None:
    with started("-c", CROOKED) as process:
        names = ("failure_of_the_service", "rejected_for_good", "draining", "absent_is_passed_over")
        findings = broken(run_client_scenarios(process, load_scenarios("client", only=names)))
    assert set(findings) == {"failure_of_the_service", "rejected_for_good", "draining"}
    assert "it must be RejectedBySchedulerError" in findings["rejected_for_good"][0]


HANGS = """
import json, sys
for line in sys.stdin:
    order = json.loads(line)
    if "client" in order:
        print(json.dumps({"id": order["id"], "end": {"code": "OK"}}), flush=True)
"""


def test_a_client_that_hangs_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_kit, "HANG_S", 0.2)
    monkeypatch.setattr(driver, "SLACK_S", 2.0)
    with started("-c", HANGS) as process:
        findings = broken(run_client_scenarios(process, load_scenarios("client", only=["nobody_listens"])))
    assert "hangs" in findings["nobody_listens"][0]


def test_the_command_prints_a_row_for_each_scenario(capsys: pytest.CaptureFixture[str]) -> None:
    command = f"{sys.executable} {DRIVERS / 'sync_driver.py'}"
    assert run_command(["conformance", "client", command, "--only", "nobody_listens", "--only", "draining"]) == 0
    table = capsys.readouterr().out
    assert all(name in table for name in ("nobody_listens", "draining", "2 holds"))


def test_case_45_who_pings_too_often_is_told_so_and_the_kit_says_it(scheduler: Service) -> None:
    """The services allow a ping each 5 s; the kit's slow scenario asks for one each 10 s."""
    assert ping_fault(scheduler.address, every_s=0, times=1) is None
    fault = ping_fault(scheduler.address, every_s=0.01, times=10)
    assert fault is not None
    assert "too_many_pings" in fault


def test_case_45_pings_at_an_interval_that_is_allowed_are_answered_without_a_call() -> None:
    """As both services and `SERVER_OPTIONS` set it, but in less time: the same options with a shorter interval."""
    from metronome_client.serving import SERVER_OPTIONS

    options = dict(SERVER_OPTIONS)
    assert options["grpc.http2.min_ping_interval_without_data_ms"] < 10_000
    options["grpc.http2.min_ping_interval_without_data_ms"] = 50
    server = grpc.server(None, options=list(options.items()))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    assert ping_fault(f"127.0.0.1:{port}", every_s=0.1, times=6) is None
    server.stop(None).wait()


@pytest.mark.soak
@pytest.mark.parametrize("program", ["sync_driver.py", "async_driver.py"])
def test_silence_is_no_fault_and_a_peer_that_vanishes_is_noticed(program: str) -> None:
    slow = [scenario for scenario in load_scenarios("client", slow=True) if scenario.slow]
    with started(str(DRIVERS / program)) as process:
        assert broken(run_client_scenarios(process, slow)) == {}


@pytest.mark.soak
def test_case_45_our_services_allow_a_ping_each_ten_seconds(scheduler: Service, executor: Service) -> None:
    for kind, service in (("scheduler", scheduler), ("executor", executor)):
        (scenario,) = load_scenarios(kind, only=["keepalive"])
        assert ping_fault(service.address, **scenario.steps[0]["pings"]) is None
