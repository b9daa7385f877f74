"""The parts of the local stack: identities, logs, the record, stopping, and services that die (scripts here)."""

from __future__ import annotations

import io
import json
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import grpc
import pytest

from executor_service.config import parse_config
from metronome.scheduler.v1 import scheduler_pb2
from metronome_cli.errors import CommandError, explain
from metronome_cli.main import run_command
from metronome_cli.run.directory import run_directory
from metronome_cli.stack.home import StackHome
from metronome_cli.stack.identity import identify
from metronome_cli.stack.local import StackSettings, start_stack
from metronome_cli.stack.logs import ProgressReader, reason_of_death
from metronome_cli.stack.services import ExecutorSettings, executor_command
from metronome_cli.stack.start import Lifetime, Service, launch, wait_until_serving
from metronome_cli.stack.stop import GRACE_S, stop_all
from metronome_cli.trust import NO_TLS, Trust
from metronome_client import MetronomeError, Tls
from support.fake_services import FakeExecutor, FakeScheduler, serving

SLEEP = "import time; time.sleep(60)"
STUBBORN = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(60)"


@pytest.fixture
def sleeper():
    with subprocess.Popen([sys.executable, "-c", SLEEP]) as process:
        yield process
        process.kill()


def service(process, directory: Path) -> Service:
    identity = identify(process.pid)
    return Service(name="executor", process=identity, address_file=directory / "a", log=directory / "executor.log")


def script(directory: Path, monkeypatch: pytest.MonkeyPatch, code: str) -> list[str]:
    """A service whose module holds `code`, and the command line that starts it."""
    (directory / "scripted_service.py").write_text(code)
    monkeypatch.setenv("PYTHONPATH", str(directory))
    return ["scripted_service"]


def test_a_process_is_alive_until_it_has_ended(sleeper):
    identity = identify(sleeper.pid)
    assert identity.is_alive()

    sleeper.kill()
    deadline = time.monotonic() + 60
    while identity.is_alive() and time.monotonic() < deadline:
        time.sleep(0.01)

    assert not identity.is_alive()  # although nobody has waited for it yet
    assert identify(sleeper.pid) is None


def test_a_number_that_another_process_got_is_left_alone(sleeper):
    before = replace(identify(sleeper.pid), started="earlier")

    assert not before.is_alive()
    before.send_signal(signal.SIGKILL)
    assert sleeper.poll() is None


def test_what_ignores_sigterm_is_killed_after_the_grace():
    with subprocess.Popen([sys.executable, "-c", STUBBORN], stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        stop_all([identify(process.pid)], grace_s=0.2)
        assert process.wait(10) == -signal.SIGKILL


def test_progress_is_read_once_and_only_when_the_line_is_complete():
    log = io.BytesIO()

    def write(content: bytes) -> None:
        position = log.tell()
        log.seek(0, io.SEEK_END)
        log.write(content)
        log.seek(position)

    reader = ProgressReader(log)
    write(
        b'a plain line\n{"event": "listening"}\n{"event": "model_progress", "message": "reading"}\n{"event": "model_pro'
    )
    assert list(reader.new_messages()) == ["reading"]
    write(b'gress", "message": "ready"}\n')
    assert list(reader.new_messages()) == ["ready"]
    assert list(reader.new_messages()) == []


@pytest.mark.parametrize(
    ("log", "reason"),
    [
        ('{"event": "starting"}\nerror: the port 1 is taken\n{"event": "stopped"}\n', "the port 1 is taken"),
        ('Traceback\n{"event": "failed", "error": "out of memory"}\n', "failed out of memory"),
        ("Killed\n\n", "Killed"),
        ("", "it said nothing"),
    ],
)
def test_the_reason_of_death_is_the_line_that_says_most(log, reason, tmp_path):
    (tmp_path / "log").write_text(log)

    assert reason_of_death(tmp_path / "log") == reason


def test_settings_that_are_not_given_are_left_to_the_executor():
    command = executor_command(0, "127.0.0.1:9", ExecutorSettings(model="m", num_blocks=64))

    assert command[-6:] == ["--scheduler", "127.0.0.1:9", "--model", "m", "--num-blocks", "64"]


def test_a_recorded_service_is_found_while_it_runs(sleeper, tmp_path):
    home = StackHome(tmp_path)
    home.record([service(sleeper, tmp_path)], ["127.0.0.1:9"])
    (found,) = home.running()
    assert (found.name, found.process.pid, found.address) == ("executor", sleeper.pid, "127.0.0.1:9")

    sleeper.kill()
    sleeper.wait()
    assert home.running() == ()


def test_a_damaged_record_is_an_error(tmp_path):
    (tmp_path / "stack.json").write_text("{")

    with pytest.raises(CommandError, match="damaged"):
        StackHome(tmp_path).running()


@pytest.mark.parametrize("record", ['[{"name": "x"}]', "7", '{"a": 1}', '[{"name": "x", "process": {"pid": 1}}]'])
def test_a_record_that_is_none_is_damaged_too(record, tmp_path):
    (tmp_path / "stack.json").write_text(record)

    with pytest.raises(CommandError, match="damaged"):
        StackHome(tmp_path).running()


def test_the_log_of_a_service_is_known_after_its_death(sleeper, tmp_path, monkeypatch):
    monkeypatch.setenv("METRONOME_HOME", str(tmp_path))
    StackHome(tmp_path).record([service(sleeper, tmp_path)], ["127.0.0.1:9"])
    sleeper.kill()
    sleeper.wait()

    error = explain(MetronomeError(grpc.StatusCode.UNAVAILABLE, "", "Socket closed", {}), "executor", "127.0.0.1:9")
    assert str(error) == f"the executor at 127.0.0.1:9 went away; its log is {tmp_path / 'executor.log'}"


def test_status_names_the_directory_and_the_whole_log_and_why_no_plans_come(sleeper, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("METRONOME_HOME", str(tmp_path))
    monkeypatch.setattr("metronome_cli.commands.stack.is_serving", lambda address, trust: True)
    with serving(FakeExecutor(planning_failure="no scheduler answers at here")) as address:
        StackHome(tmp_path).record([service(sleeper, tmp_path)], [address])
        assert run_command(["status"]) == 0

    shown = capsys.readouterr().out
    assert f"The stack of {tmp_path}\n" in shown
    assert f"{tmp_path / 'executor.log'}\n" in shown
    assert "no scheduler answers at here; waiting requests stay\n" in shown


def test_down_waits_longer_than_an_executor_may_take_to_drain():
    executor = parse_config([], {})  # `metronome up` leaves its --grace-s alone

    assert executor.grace_s + 10 <= GRACE_S


def test_down_leaves_no_address_behind(tmp_path, monkeypatch):
    monkeypatch.setenv("METRONOME_HOME", str(tmp_path))
    (tmp_path / "executor.address").write_text("127.0.0.1:9")

    run_command(["down"])

    assert not (tmp_path / "executor.address").exists()


def start_executor_of(scheduler_address: str, profile: str | None, directory: Path) -> None:
    settings = StackSettings(executor=ExecutorSettings(profile=profile), scheduler_address=scheduler_address)
    start_stack(
        settings,
        directory,
        Lifetime.WITH_PARENT,
        on_progress=lambda message: None,
        on_launch=lambda services: pytest.fail("it was started all the same"),
    )


def test_a_profile_that_the_scheduler_lacks_is_refused_before_an_executor_starts(tmp_path):
    with (
        serving(FakeScheduler(scheduler_pb2.PlanResponse())) as address,
        pytest.raises(CommandError, match="has no profile 'nope'; there are fifo"),
    ):
        start_executor_of(address, "nope", tmp_path)


def test_a_scheduler_that_does_not_answer_is_refused_before_an_executor_starts(tmp_path):
    with pytest.raises(CommandError, match="no scheduler answers"):
        start_executor_of("127.0.0.1:1", None, tmp_path)


def test_a_port_that_is_taken_names_the_flag_of_up(tmp_path, monkeypatch):
    code = "import sys; sys.exit('error: port 1 is taken; choose another with --port')"
    launched = launch("executor", script(tmp_path, monkeypatch, code), tmp_path, Lifetime.DETACHED)

    with pytest.raises(CommandError, match="choose another with --executor-port"):
        wait_until_serving(launched, timeout_s=30, on_progress=lambda message: None)


def test_a_run_that_went_well_leaves_nothing(tmp_path):
    with run_directory(tmp_path) as directory:
        assert directory.path.is_dir()
    assert list(tmp_path.iterdir()) == []


def test_a_run_that_failed_leaves_its_logs_until_the_next(tmp_path):
    def fail() -> None:
        with run_directory(tmp_path) as directory:
            directory.executor_log.touch()
            raise CommandError("it failed")

    with pytest.raises(CommandError):
        fail()
    (failed,) = tmp_path.iterdir()

    with run_directory(tmp_path):
        assert not failed.exists()


def test_the_directory_of_a_run_that_goes_on_is_left_alone(tmp_path):
    with run_directory(tmp_path) as first:
        with run_directory(tmp_path):
            pass
        assert first.path.is_dir()


def test_what_a_killed_run_left_is_removed_by_the_next(tmp_path):
    code = f"""
import os, signal
from pathlib import Path
from metronome_cli.run.directory import run_directory
with run_directory(Path({str(tmp_path)!r})):
    os.kill(os.getpid(), signal.SIGKILL)
"""
    subprocess.run([sys.executable, "-c", code], timeout=60)
    assert len(list(tmp_path.glob("run-*"))) == 1

    with run_directory(tmp_path):
        pass
    assert list(tmp_path.iterdir()) == []


def test_two_commands_do_not_work_on_one_stack_at_once(tmp_path):
    home = StackHome(tmp_path)

    with home.locked(), pytest.raises(CommandError, match="another command works on"), home.locked():
        pass


def test_up_refuses_while_a_stack_runs_and_down_stops_it(sleeper, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("METRONOME_HOME", str(tmp_path))
    StackHome(tmp_path).record([service(sleeper, tmp_path)], ["127.0.0.1:9"])

    assert run_command(["up"]) == 1
    assert "runs already; see `metronome status`" in capsys.readouterr().err
    assert run_command(["down"]) == 0
    assert sleeper.wait(10) == -signal.SIGTERM
    assert run_command(["down"]) == 0
    assert capsys.readouterr().out == f"stopped executor\nno stack of {tmp_path} runs\n"


def test_a_service_that_dies_while_starting_gives_its_last_words(tmp_path, monkeypatch):
    command = script(tmp_path, monkeypatch, "import sys; sys.exit('error: no model of that name')")
    service = launch("executor", command, tmp_path, Lifetime.DETACHED)

    with pytest.raises(CommandError, match="the executor stopped while starting: no model of that name; its log is"):
        wait_until_serving(service, timeout_s=30, on_progress=lambda message: None)


def test_a_service_that_is_never_ready_is_an_error_in_time(tmp_path, monkeypatch):
    service = launch("executor", script(tmp_path, monkeypatch, SLEEP), tmp_path, Lifetime.DETACHED)

    with pytest.raises(CommandError, match="not ready after 0 s"):
        wait_until_serving(service, timeout_s=0.2, on_progress=lambda message: None)
    stop_all([service.process])


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a process of its parent's death")
def test_a_bound_service_ends_with_its_parent_even_by_sigkill(tmp_path, monkeypatch):
    command = script(tmp_path, monkeypatch, "import time; print('up', flush=True); time.sleep(60)")
    parent_code = f"""
import time
from pathlib import Path
from metronome_cli.stack.start import Lifetime, launch
service = launch("executor", {command!r}, Path({str(tmp_path)!r}), Lifetime.WITH_PARENT)
while b"up" not in service.log.read_bytes():
    time.sleep(0.01)
print(service.process.pid, flush=True)
time.sleep(60)
"""
    with subprocess.Popen([sys.executable, "-c", parent_code], stdout=subprocess.PIPE) as parent:
        child = identify(int(parent.stdout.readline()))
        assert child.is_alive()
        parent.kill()

    deadline = time.monotonic() + 60
    while child.is_alive() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not child.is_alive()


def test_the_record_is_plain_json(sleeper, tmp_path):
    StackHome(tmp_path).record([service(sleeper, tmp_path)], [])

    (entry,) = json.loads((tmp_path / "stack.json").read_text())
    assert entry["process"]["pid"] == sleeper.pid
    assert entry["address"] == ""


@pytest.mark.parametrize(
    ("trust", "order"),
    [
        (NO_TLS, ["launch scheduler", "launch executor", "wait for scheduler", "wait for executor"]),
        (Trust(tls=Tls()), ["launch scheduler", "wait for scheduler", "launch executor", "wait for executor"]),
    ],
)
def test_both_start_side_by_side_unless_the_executor_has_to_know_how_the_scheduler_is_asked(
    trust, order, sleeper, tmp_path, monkeypatch
):
    heard = []

    def record_launch(name, command, directory, lifetime):
        heard.append(f"launch {name}")
        if name == "executor":
            assert command[command.index("--scheduler") + 1] == address
        return replace(service(sleeper, tmp_path), name=name)

    def record_wait(launched, **_):
        heard.append(f"wait for {launched.name}")
        return address

    with serving(FakeScheduler(scheduler_pb2.PlanResponse())) as address:
        monkeypatch.setattr("metronome_cli.stack.local.launch", record_launch)
        monkeypatch.setattr("metronome_cli.stack.local.wait_until_serving", record_wait)
        port = int(address.rpartition(":")[2])
        settings = StackSettings(executor=ExecutorSettings(), scheduler_port=port, trust=trust)
        start_stack(
            settings, tmp_path, Lifetime.WITH_PARENT, on_progress=lambda message: None, on_launch=lambda services: None
        )

    assert heard == order
