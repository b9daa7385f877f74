"""Both services with TLS on their port, and an executor that asks its scheduler with it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import grpc
import pytest

from metronome.inference.v1 import inference_pb2
from metronome.inference.v1.inference_pb2_grpc import InferenceServiceStub
from metronome.scheduler.v1 import scheduler_pb2
from metronome.scheduler.v1.scheduler_pb2_grpc import SchedulerServiceStub
from support.certificates import Authority, tls_flags
from support.scheduler_process import plan_request, scheduler_process
from support.scraping import metrics_address, scrape
from support.services import SCHEDULER, START_SECONDS, Service, executor_command, started, wait_until

TIMEOUT_S = 10


@contextmanager
def schedulers_stub(address: str, credentials: grpc.ChannelCredentials | None) -> Iterator[SchedulerServiceStub]:
    with (
        grpc.insecure_channel(address) if credentials is None else grpc.secure_channel(address, credentials) as channel
    ):
        yield SchedulerServiceStub(channel)


def num_plans(address: str, credentials: grpc.ChannelCredentials | None) -> int:
    with schedulers_stub(address, credentials) as stub:
        return len(stub.Plan(plan_request(), timeout=TIMEOUT_S).plans)


def refusal(address: str, credentials: grpc.ChannelCredentials | None) -> grpc.StatusCode:
    with schedulers_stub(address, credentials) as stub, pytest.raises(grpc.RpcError) as caught:
        stub.Plan(plan_request(), timeout=TIMEOUT_S)
    assert isinstance(caught.value, grpc.Call)
    return caught.value.code()


def test_who_trusts_the_authority_is_served_and_nobody_else(authority: Authority, tmp_path: Path) -> None:
    stranger = Authority(tmp_path / "theirs")
    with scheduler_process(*tls_flags(authority.sign("scheduler"))) as address:
        assert num_plans(address, authority.credentials()) == 1
        assert refusal(address, stranger.credentials()) is grpc.StatusCode.UNAVAILABLE
        assert refusal(address, None) is grpc.StatusCode.UNAVAILABLE
        assert num_plans(address, authority.credentials()) == 1


def test_a_client_must_show_a_certificate_where_that_is_asked_for(authority: Authority, tmp_path: Path) -> None:
    stranger = Authority(tmp_path / "theirs")
    flags = tls_flags(authority.sign("scheduler"), client_ca=authority.ca)
    with scheduler_process(*flags) as address:
        assert num_plans(address, authority.credentials(authority.sign("executor"))) == 1
        assert refusal(address, authority.credentials()) is grpc.StatusCode.UNAVAILABLE
        assert refusal(address, authority.credentials(stranger.sign("executor"))) is grpc.StatusCode.UNAVAILABLE


def test_a_renewed_certificate_counts_from_the_next_connection_on(authority: Authority, tmp_path: Path) -> None:
    """Those who are connected stay so; files that cannot be used change nothing."""
    identity, renewed = authority.sign("scheduler"), Authority(tmp_path / "renewed")
    command = [*SCHEDULER, "--port", "0", "--log-format", "json", *tls_flags(identity)]
    with (
        started(tmp_path, command) as service,
        schedulers_stub(service.address, authority.credentials()) as connected,
    ):
        connected.Plan(plan_request(), timeout=TIMEOUT_S)
        for spoil in (lambda: identity.key.write_text("no key"), identity.key.unlink):
            before = service.log.count("tls_files_refused")
            spoil()
            for _ in range(3):
                assert num_plans(service.address, authority.credentials()) == 1
            assert service.log.count("tls_files_refused") == before + 1
        fresh = renewed.sign("scheduler")
        identity.key.write_bytes(fresh.key.read_bytes())
        identity.certificate.write_bytes(fresh.certificate.read_bytes())
        assert num_plans(service.address, renewed.credentials()) == 1
        assert refusal(service.address, authority.credentials()) is grpc.StatusCode.UNAVAILABLE
        connected.Plan(plan_request(), timeout=TIMEOUT_S)
        assert "tls_files_reloaded" in service.log


@pytest.mark.parametrize("module", ["scheduler_service", "executor_service"])
@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda identity: identity.key.unlink(), "cannot read --tls-key"),
        (lambda identity: identity.certificate.write_text("none"), "holds no certificate"),
    ],
    ids=["gone", "no certificate"],
)
def test_files_that_cannot_be_used_are_said_at_the_start(
    authority: Authority, module: str, spoil: object, message: str
) -> None:
    identity = authority.sign("service")
    assert callable(spoil)
    spoil(identity)
    command = [sys.executable, "-m", module, "--port", "0", *tls_flags(identity)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (ended.returncode, message in ended.stderr) == (1, True), ended.stderr


@pytest.mark.parametrize("service", ["scheduler", "executor"])
def test_metrics_say_when_the_certificate_expires(
    authority: Authority, services_directory: Path, tiny_model_directory: Path, service: str
) -> None:
    expires = datetime(2099, 12, 31, tzinfo=UTC)
    flags = [*tls_flags(authority.sign("service", expires=expires)), "--metrics-address", "0"]
    scheduler = [*SCHEDULER, "--port", "0", *flags]
    command = scheduler if service == "scheduler" else executor_command(tiny_model_directory, *flags)
    with started(services_directory, command) as running:
        told = scrape(metrics_address(running)).value("metronome_tls_certificate_expiry_timestamp_seconds")
        assert told == expires.timestamp()


@contextmanager
def secure_stack(authority: Authority, directory: Path, model: Path) -> Iterator[tuple[Service, Service]]:
    """A scheduler that asks for certificates, and an executor with one that serves with TLS."""
    identity = authority.sign("executor")
    scheduler_flags = tls_flags(authority.sign("scheduler"), client_ca=authority.ca)
    asking = ["--scheduler-ca", str(authority.ca), "--scheduler-certificate", str(identity.certificate)]
    asking += ["--scheduler-key", str(identity.key)]
    with started(directory, [*SCHEDULER, "--port", "0", *scheduler_flags]) as scheduler:
        command = executor_command(model, *tls_flags(identity), *asking, scheduler=[scheduler.address])
        with started(directory, command) as executor:
            wait_until(lambda: executor.process.poll() is not None or "executor_serving" in executor.log, START_SECONDS)
            assert executor.process.poll() is None, executor.log
            yield scheduler, executor


def test_a_stack_with_mutual_tls_generates(
    authority: Authority, services_directory: Path, tiny_model_directory: Path
) -> None:
    with (
        secure_stack(authority, services_directory, tiny_model_directory) as (_, executor),
        grpc.secure_channel(executor.address, authority.credentials()) as channel,
    ):
        request = inference_pb2.GenerateRequest(token_ids=inference_pb2.TokenIds(ids=[5, 6, 7]))
        request.stopping.max_tokens = 4
        events = list(InferenceServiceStub(channel).Generate(request, timeout=60))
        assert sum(len(event.delta.token_ids) for event in events) == 4
        assert '"tls": "on"' in executor.log


def test_the_plans_are_those_of_a_scheduler_without_tls(authority: Authority) -> None:
    with scheduler_process() as plain, scheduler_process(*tls_flags(authority.sign("scheduler"))) as secure:
        answers: list[scheduler_pb2.PlanResponse] = []
        for address, credentials in ((plain, None), (secure, authority.credentials())):
            with schedulers_stub(address, credentials) as stub:
                answers.append(stub.Plan(plan_request(), timeout=TIMEOUT_S))
        assert answers[0] == answers[1]
