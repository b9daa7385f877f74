"""The commands that open channels of their own, against real services that want TLS and a token."""

from __future__ import annotations

import hashlib
import ssl
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from metronome_cli.main import run_command
from metronome_conformance.pings import ping_fault
from metronome_conformance.wire import Secured
from support.certificates import Authority, tls_flags
from support.services import SCHEDULER, START_SECONDS, Service, executor_command, free_port, started, wait_until

pytestmark = pytest.mark.usefixtures("nothing_from_outside")

EXAMPLE_STATE = Path(__file__).parents[2] / "docs" / "examples" / "state.json"
TOKEN = "token-of-an-operator"
SIZES = ("--num-blocks", "32", "--num-swap-blocks", "8", "--max-num-seqs", "8", "--max-num-waiting", "4")


@pytest.fixture
def access_file(tmp_path: Path) -> Path:
    path = tmp_path / "access.toml"
    path.write_text(f'[tokens]\n"{hashlib.sha256(TOKEN.encode()).hexdigest()}" = "*"\n')
    return path


@pytest.fixture
def trust(authority: Authority, tmp_path: Path) -> list[str]:
    """What tells a command to trust the authority, and who it is."""
    token = tmp_path / "token"
    token.write_text(f"{TOKEN}\n")
    return ["--tls-ca", str(authority.ca), "--token-file", str(token)]


@contextmanager
def secure_scheduler(directory: Path, authority: Authority, access_file: Path) -> Iterator[Service]:
    flags = [*tls_flags(authority.sign("scheduler")), "--access-file", str(access_file)]
    with started(directory, [*SCHEDULER, "--port", "0", *flags]) as service:
        yield service


def test_the_conformance_kit_asks_a_scheduler(
    tmp_path: Path, authority: Authority, access_file: Path, trust: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with secure_scheduler(tmp_path, authority, access_file) as scheduler:
        command = ["conformance", "scheduler", scheduler.address, "--only", "plan_of_a_small_state"]
        assert run_command([*command, *trust]) == 0
        assert run_command([*command, *trust[:2]]) == 1  # who it is was not said
        assert "UNAUTHENTICATED" in capsys.readouterr().out
        assert run_command(command) == 1
        assert f"what listens at {scheduler.address} speaks TLS" in capsys.readouterr().err


def test_who_shows_no_certificate_is_told_that_one_is_asked_for(
    tmp_path: Path, authority: Authority, trust: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    flags = tls_flags(authority.sign("scheduler"), client_ca=authority.ca)
    with started(tmp_path, [*SCHEDULER, "--port", "0", *flags]) as scheduler:
        own = authority.sign("client")
        shown = ["--tls-certificate", str(own.certificate), "--tls-key", str(own.key)]
        command = ["plan", str(EXAMPLE_STATE), "--scheduler", scheduler.address]
        assert run_command([*command, *trust, *shown]) == 0
        assert run_command([*command, *trust]) == 1
        assert "--tls-certificate with --tls-key if it asks who you are" in capsys.readouterr().err


def test_what_the_core_of_grpc_says_of_a_handshake_is_not_among_the_words_of_a_command(
    tmp_path: Path, authority: Authority
) -> None:
    stranger = Authority(tmp_path / "theirs")
    with started(tmp_path, [*SCHEDULER, "--port", "0", *tls_flags(authority.sign("scheduler"))]) as scheduler:
        command = ["plan", str(EXAMPLE_STATE), "--scheduler", scheduler.address, "--tls-ca", str(stranger.ca)]
        done = subprocess.run(
            [sys.executable, "-m", "metronome_cli", *command], capture_output=True, text=True, timeout=START_SECONDS
        )
    assert (done.returncode, done.stdout) == (1, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"error: what listens at {scheduler.address} speaks TLS")


def test_the_conformance_kit_pings_over_tls(tmp_path: Path, authority: Authority, access_file: Path) -> None:
    context = ssl.create_default_context(cafile=authority.ca)
    context.set_alpn_protocols(["h2"])
    secured = Secured(credentials=authority.credentials(), context=context)
    with secure_scheduler(tmp_path, authority, access_file) as scheduler:
        assert ping_fault(scheduler.address, secured, every_s=0, times=1) is None
        assert "ping 1 of 1" in (ping_fault(scheduler.address, every_s=0, times=1) or "")


def test_the_conformance_kit_asks_an_executor(
    tmp_path: Path, tiny_model_directory: Path, authority: Authority, access_file: Path, trust: list[str]
) -> None:
    kit = f"127.0.0.1:{free_port()}"
    flags = [*tls_flags(authority.sign("executor")), "--access-file", str(access_file), *SIZES]
    with started(tmp_path, executor_command(tiny_model_directory, *flags, scheduler=[kit])) as executor:
        wait_until(lambda: "executor_serving" in executor.log, START_SECONDS)
        command = ["conformance", "executor", executor.address, "--scheduler-listen", kit]
        assert run_command([*command, "--only", "stream_of_an_answer", "--only", "health_by_name", *trust]) == 0


def test_a_local_stack_serves_with_tls(
    tmp_path: Path,
    tiny_model_directory: Path,
    authority: Authority,
    access_file: Path,
    trust: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Both services are told to by their environment; the executor shows the command's token to the scheduler."""
    monkeypatch.setenv("METRONOME_HOME", str(tmp_path / "home"))
    for service in ("scheduler", "executor"):
        identity = authority.sign(service)
        for name, path in (
            ("TLS_CERTIFICATE", identity.certificate),
            ("TLS_KEY", identity.key),
            ("ACCESS_FILE", access_file),
        ):
            monkeypatch.setenv(f"METRONOME_{service.upper()}_{name}", str(path))
    up = ["up", "--model", str(tiny_model_directory), "--scheduler-port", "0", "--executor-port", "0"]

    assert run_command(up) == 1
    assert "wants TLS; give --tls-ca, or --tls" in capsys.readouterr().err
    assert run_command([*up, *trust]) == 0
    try:
        executor = capsys.readouterr().out.partition(", executor ")[2].split()[0]
        assert run_command(["status", *trust]) == 0
        told = capsys.readouterr().out
        assert told.count("ready") == 2
        assert "gets no plans" not in told
        generate = ["generate", "Once", "--max-tokens", "3", "--ignore-eos", "--executor", executor]
        assert run_command([*generate, *trust]) == 0
        assert run_command(["status"]) == 1
        assert "wants TLS" in capsys.readouterr().err
    finally:
        assert run_command(["down"]) == 0
