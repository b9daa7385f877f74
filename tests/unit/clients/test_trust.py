"""Commands over TLS, with a token and with a certificate; and what is said where these make no sense."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc
import pytest

from metronome.scheduler.v1 import plan_pb2, scheduler_pb2
from metronome_cli.main import run_command
from support.certificates import Authority
from support.fake_services import FakeExecutor, FakeScheduler, serving

pytestmark = pytest.mark.usefixtures("nothing_from_outside")

EXAMPLE_STATE = Path(__file__).parents[3] / "docs" / "examples" / "state.json"
TOKEN = "token-of-acme"
PLANNED = scheduler_pb2.PlanResponse(plans=[plan_pb2.ExecutorPlan(executor_id="executor-0")])


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    path = tmp_path / "token"
    path.write_text(f"{TOKEN}\n")
    return path


class TokenHeard(grpc.ServerInterceptor):  # type: ignore[type-arg]
    """Notes who calls, by the token of each call."""

    def __init__(self) -> None:
        self.authorizations: list[str | bytes] = []

    def intercept_service(self, continuation, details):  # type: ignore[no-untyped-def]
        self.authorizations += [value for key, value in details.invocation_metadata if key == "authorization"]
        return continuation(details)


@contextmanager
def secure(
    authority: Authority, service: FakeExecutor | FakeScheduler, *, mutual: bool = False
) -> Iterator[tuple[str, TokenHeard]]:
    """Serve with TLS; `mutual`: to those alone who show a certificate of the authority."""
    own, heard = authority.sign("service"), TokenHeard()
    pair = (own.key.read_bytes(), own.certificate.read_bytes())
    credentials = grpc.ssl_server_credentials(
        [pair], root_certificates=authority.ca.read_bytes(), require_client_auth=mutual
    )
    with serving(service, credentials=credentials, interceptors=[heard]) as address:
        yield address, heard


def run(*arguments: object) -> int:
    return run_command([str(argument) for argument in arguments])


@pytest.mark.parametrize(
    "command",
    [
        ["generate", "Tell me", "--executor"],
        ["state", "--executor"],
        ["plan", EXAMPLE_STATE, "--scheduler"],
        ["explain", EXAMPLE_STATE, "--scheduler"],
    ],
    ids=["generate", "state", "plan", "explain"],
)
def test_a_command_connects_with_tls_and_shows_its_token(
    command: list[object], authority: Authority, token_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    service = FakeExecutor() if "--executor" in command else FakeScheduler(PLANNED)
    with secure(authority, service) as (address, heard):
        assert run(*command, address, "--tls-ca", authority.ca, "--token-file", token_file) == 0
        assert set(heard.authorizations) == {f"Bearer {TOKEN}"}
        assert run(*command, address) == 1
        assert "speaks TLS, and the connection broke; check --tls-ca" in capsys.readouterr().err


def test_the_environment_says_it_too(authority: Authority, token_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("METRONOME_TLS_CA", str(authority.ca))
    monkeypatch.setenv("METRONOME_TOKEN_FILE", str(token_file))
    with secure(authority, FakeExecutor()) as (address, heard):
        assert run("state", "--executor", address) == 0
    assert heard.authorizations == [f"Bearer {TOKEN}"]


def test_a_certificate_is_shown_to_who_asks_for_one(authority: Authority) -> None:
    own = authority.sign("client")
    shown = ("--tls-certificate", own.certificate, "--tls-key", own.key)
    with secure(authority, FakeExecutor(), mutual=True) as (address, heard):
        assert run("state", "--executor", address, "--tls-ca", authority.ca, *shown) == 0
        assert run("state", "--executor", address, "--tls-ca", authority.ca) == 1
    assert heard.authorizations == []


@pytest.mark.parametrize(
    ("options", "status", "said"),
    [
        (["--token-file", "TOKEN"], 2, "--tls-certificate and --token-file are for TLS: give --tls-ca, or --tls."),
        (["--tls-ca", "CA", "--tls-key", "TOKEN"], 2, "--tls-certificate and --tls-key need each other."),
        (["--tls-ca", "MISSING"], 1, "cannot read --tls-ca MISSING: No such file or directory"),
        (["--tls", "--token-file", "EMPTY"], 1, "--token-file EMPTY holds no token; give a file with one word"),
    ],
    ids=["token without TLS", "key alone", "no such file", "no token"],
)
def test_what_makes_no_sense_is_one_line(
    options: list[str],
    status: int,
    said: str,
    authority: Authority,
    token_file: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    empty = tmp_path / "empty"
    empty.write_text(" \n")
    names = {"TOKEN": token_file, "CA": authority.ca, "MISSING": tmp_path / "missing", "EMPTY": empty}
    for name, path in names.items():
        said = said.replace(name, str(path)) if status == 1 else said
    assert run("state", "--executor", "127.0.0.1:1", *(names.get(option, option) for option in options)) == status
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert said in error
