"""Who is let in, on both services over the wire: every method, tokens and certificates, and what each may do."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from metronome.executor.v1 import executor_pb2
from metronome.inference.v1 import inference_pb2 as pb
from metronome.scheduler.v1 import scheduler_pb2
from metronome.scheduler.v1.scheduler_pb2_grpc import SchedulerServiceStub
from support.certificates import Authority, tls_flags
from support.scheduler_process import plan_request, scheduler_process
from support.services import (
    SCHEDULER,
    Service,
    executor_command,
    health_of,
    running_executor,
    started,
    wait_until,
    wait_until_healthy,
)
from support.wire import TIMEOUT_SECONDS, Client, Details, connected, details_of, greedy

Metadata = tuple[tuple[str, str], ...]

ACME, BETA, OPERATOR, WRONG = "token-of-acme", "token-of-beta", "token-of-an-operator", "token-of-nobody"
METHODS = [
    method.full_name
    for file in (scheduler_pb2, pb, executor_pb2)
    for service in file.DESCRIPTOR.services_by_name.values()
    for method in service.methods
]


def bearer(token: str) -> Metadata:
    return (("authorization", f"Bearer {token}"),)


def tokens(**tenants: str) -> str:
    """The table of an access file: tenant by token."""
    rows = (f'"{hashlib.sha256(token.encode()).hexdigest()}" = "{tenant}"\n' for token, tenant in tenants.items())
    return "[tokens]\n" + "".join(rows)


def access_file(directory: Path, name: str) -> Path:
    path = directory / f"access-{name}.toml"
    path.write_text(tokens(**{ACME: "acme", BETA: "beta", OPERATOR: "*"}))
    return path


def raw(channel: grpc.Channel, method: str, metadata: Metadata = ()) -> grpc.StatusCode:
    """The status of an empty message to a method, whatever its kind."""
    path = "/{}/{}".format(*method.rsplit(".", 1))
    try:
        if method.endswith("Stream"):
            list(channel.stream_stream(path)(iter([b""]), timeout=TIMEOUT_SECONDS, metadata=metadata))
        elif method.endswith(("Generate", "WatchState")):
            list(channel.unary_stream(path)(b"", timeout=TIMEOUT_SECONDS, metadata=metadata))
        else:
            channel.unary_unary(path)(b"", timeout=TIMEOUT_SECONDS, metadata=metadata)
    except grpc.RpcError as error:
        return details_of(error).code
    return grpc.StatusCode.OK


def refusal(call: Callable[[], object]) -> Details:
    with pytest.raises(grpc.RpcError) as caught:
        call()
    return details_of(caught.value)


@pytest.fixture(scope="module")
def guarded_scheduler(services_directory: Path) -> Iterator[Service]:
    command = [*SCHEDULER, "--port", "0", "--log-format", "json"]
    file = access_file(services_directory, "scheduler")
    with started(services_directory, [*command, "--access-file", str(file)]) as service:
        yield service


QUOTAS = """
[tenants.acme]
max_concurrent_requests = 2
[tenants.beta]
requests_per_second = 0.001
[tenants.gamma]
tokens_per_second = 0.5
"""


@pytest.fixture(scope="module")
def guarded_executor(services_directory: Path, tiny_model_directory: Path, scheduler: Service) -> Iterator[Service]:
    quotas = services_directory / "quotas.toml"
    quotas.write_text(QUOTAS)
    flags = ["--access-file", str(access_file(services_directory, "executor")), "--quota-file", str(quotas)]
    with running_executor(services_directory, tiny_model_directory, *flags, scheduler=[scheduler.address]) as service:
        yield service


@pytest.fixture
def guarded(guarded_executor: Service) -> Iterator[Client]:
    with connected(guarded_executor.address) as client:
        yield client
        operator = bearer(OPERATOR)
        wait_until(lambda: not client.control.GetState(executor_pb2.GetStateRequest(), metadata=operator).request_names)


def generate(client: Client, token: str, tenant: str = "", max_tokens: int = 3) -> list[int]:
    request = greedy("some text", max_tokens)
    request.tenant = tenant
    responses = client.inference.Generate(request, timeout=TIMEOUT_SECONDS, metadata=bearer(token))
    return [token_id for response in responses for token_id in response.delta.token_ids]


@pytest.mark.parametrize("method", METHODS)
def test_no_method_of_a_service_answers_somebody_whom_it_does_not_know(
    method: str, guarded_scheduler: Service, guarded_executor: Service
) -> None:
    address = (guarded_scheduler if "scheduler" in method else guarded_executor).address
    with grpc.insecure_channel(address) as channel:
        for metadata in ((), bearer(WRONG)):
            assert raw(channel, method, metadata) is grpc.StatusCode.UNAUTHENTICATED
        if not method.endswith(("Drain", "WatchState")):
            assert raw(channel, method, bearer(OPERATOR)) is not grpc.StatusCode.UNAUTHENTICATED


def test_health_and_reflection_are_for_everybody(guarded_scheduler: Service, guarded_executor: Service) -> None:
    """They tell who is well, and the contract, which are no secrets; probes and balancers have no token."""
    for service in (guarded_scheduler, guarded_executor):
        assert health_of(service.address) == health_pb2.HealthCheckResponse.SERVING
        with grpc.insecure_channel(service.address) as channel:
            watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest(), timeout=TIMEOUT_SECONDS)
            assert next(watch).status == health_pb2.HealthCheckResponse.SERVING
            stub = reflection_pb2_grpc.ServerReflectionStub(channel)
            ask = reflection_pb2.ServerReflectionRequest(list_services="")
            assert next(stub.ServerReflectionInfo(iter([ask]), timeout=TIMEOUT_SECONDS)).list_services_response.service


def test_a_scheduler_plans_for_whom_it_knows(guarded_scheduler: Service) -> None:
    with grpc.insecure_channel(guarded_scheduler.address) as channel:
        stub = SchedulerServiceStub(channel)
        for token in (ACME, OPERATOR):
            answer = stub.Plan(plan_request(), timeout=TIMEOUT_SECONDS, metadata=bearer(token))
            assert len(answer.plans) == 1
        refused = refusal(lambda: stub.Plan(plan_request(), timeout=TIMEOUT_SECONDS))
        assert (refused.code, refused.info.reason) == (grpc.StatusCode.UNAUTHENTICATED, "UNKNOWN_CALLER")
        assert refused.info.domain == "scheduler.metronome"
    assert '"reason": "UNKNOWN_CALLER"' in guarded_scheduler.log
    assert ACME not in guarded_scheduler.log


def test_a_request_is_of_its_callers_tenant_and_of_no_other(guarded: Client, guarded_executor: Service) -> None:
    assert len(generate(guarded, ACME)) == len(generate(guarded, ACME, "acme")) == 3
    assert len(generate(guarded, OPERATOR, "whoever")) == len(generate(guarded, OPERATOR)) == 3
    refused = refusal(lambda: generate(guarded, ACME, "beta"))
    assert (refused.code, refused.info.reason) == (grpc.StatusCode.PERMISSION_DENIED, "NOT_ALLOWED")
    assert refused.fields == ["tenant"]
    assert ACME not in guarded_executor.log


def test_the_tenant_of_a_token_is_whom_the_scheduler_hears_of(guarded: Client) -> None:
    stream = guarded.inference.Generate(greedy("long", 300), timeout=TIMEOUT_SECONDS, metadata=bearer(ACME))
    assert next(stream).HasField("started")
    books = guarded.control.GetState(executor_pb2.GetStateRequest(), metadata=bearer(OPERATOR)).state
    (tenant,) = books.executors[0].requests.tenant or [0]
    assert books.tenants.name[tenant] == "acme"
    stream.cancel()


def test_refusals_say_who_is_unknown(guarded: Client) -> None:
    refused = refusal(lambda: generate(guarded, WRONG))
    assert (refused.code, refused.info.reason) == (grpc.StatusCode.UNAUTHENTICATED, "UNKNOWN_CALLER")
    assert refused.info.domain == "executor.metronome"
    assert refused.retry is None


def test_a_tenant_cancels_its_own_requests_and_sees_nobody_elses(guarded: Client) -> None:
    request = greedy("long", 300, request_id="of acme")
    stream = guarded.inference.Generate(request, timeout=TIMEOUT_SECONDS, metadata=bearer(ACME))
    assert next(stream).HasField("started")

    def cancel(token: str) -> object:
        ask = pb.CancelRequest(request_id="of acme")
        return guarded.inference.Cancel(ask, timeout=TIMEOUT_SECONDS, metadata=bearer(token))

    assert refusal(lambda: cancel(BETA)).info.reason == "UNKNOWN_REQUEST_ID"
    cancel(ACME)
    assert refusal(lambda: list(stream)).info.reason == "CANCELLED"


@pytest.mark.parametrize("method", ["GetState", "WatchState", "Drain"])
def test_the_executor_as_a_whole_is_for_operators(guarded: Client, method: str) -> None:
    call = getattr(guarded.control, method)
    request = getattr(executor_pb2, f"{method}Request")()
    answered = call(request, timeout=TIMEOUT_SECONDS, metadata=bearer(ACME)) if method == "WatchState" else None
    refused = refusal(
        lambda: (
            list(answered) if answered is not None else call(request, timeout=TIMEOUT_SECONDS, metadata=bearer(ACME))
        )
    )
    assert (refused.code, refused.info.reason) == (grpc.StatusCode.PERMISSION_DENIED, "NOT_ALLOWED")
    assert len(generate(guarded, OPERATOR)) == 3


def test_a_tenant_over_its_limit_is_told_which_and_nobody_else_notices(guarded: Client) -> None:
    streams = []
    for _ in range(2):
        streams.append(guarded.inference.Generate(greedy("long", 200), timeout=TIMEOUT_SECONDS, metadata=bearer(ACME)))
        assert next(streams[-1]).HasField("started")
    refused = refusal(lambda: generate(guarded, ACME))
    assert (refused.code, refused.info.reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "TENANT_OVER_LIMIT")
    assert refused.over_quota == ["tenant:acme"]
    assert dict(refused.info.metadata) == {"limit": "max_concurrent_requests", "value": "2"}
    assert refused.retry is not None
    assert refused.retry.retry_delay.seconds == 1
    assert len(generate(guarded, BETA)) == 3
    assert [sum(len(response.delta.token_ids) for response in stream) for stream in streams] == [200, 200]
    assert len(generate(guarded, ACME)) == 3
    refused = refusal(lambda: generate(guarded, BETA))
    assert dict(refused.info.metadata) == {"limit": "requests_per_second", "value": "0.001"}
    assert refused.over_quota == ["tenant:beta"]
    assert refused.retry is not None
    assert 900 < refused.retry.retry_delay.seconds <= 1000


def test_tokens_of_prompt_and_answer_count(guarded: Client) -> None:
    assert len(generate(guarded, OPERATOR, "gamma", max_tokens=8)) == 8
    refused = refusal(lambda: generate(guarded, OPERATOR, "gamma"))
    assert dict(refused.info.metadata) == {"limit": "tokens_per_second", "value": "0.5"}
    assert refused.retry is not None
    assert refused.retry.retry_delay.seconds >= 10  # eight tokens and a prompt of nine, half a token a second


def test_who_is_known_may_change_while_a_service_runs(tmp_path: Path) -> None:
    file = access_file(tmp_path, "changing")
    with scheduler_process("--access-file", str(file)) as address, grpc.insecure_channel(address) as channel:
        method = "metronome.scheduler.v1.SchedulerService.ListProfiles"
        assert raw(channel, method, bearer(ACME)) is grpc.StatusCode.OK
        fresh = file.with_suffix(".new")
        fresh.write_text(tokens(another="acme"))
        fresh.replace(file)
        wait_until(lambda: raw(channel, method, bearer(ACME)) is grpc.StatusCode.UNAUTHENTICATED)
        assert raw(channel, method, bearer("another")) is grpc.StatusCode.OK


@pytest.mark.parametrize("module", ["scheduler_service", "executor_service"])
def test_an_access_file_that_cannot_be_used_ends_the_start(module: str, tmp_path: Path) -> None:
    file = tmp_path / "access.toml"
    file.write_text('[tokens]\n"plain secret" = "acme"\n')
    command = [sys.executable, "-m", module, "--port", "0", "--access-file", str(file)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 1
    assert f"--access-file {file} has entry 1 of [tokens], whose key is not the SHA-256 of a token" in ended.stderr
    assert "secret" not in ended.stderr


@contextmanager
def secure_scheduler(directory: Path, authority: Authority, access: str, *, mutual: bool) -> Iterator[Service]:
    file = directory / "access.toml"
    file.write_text(access)
    flags = tls_flags(authority.sign("scheduler"), client_ca=authority.ca if mutual else None)
    command = [*SCHEDULER, "--port", "0", "--log-format", "json", "--access-file", str(file), *flags]
    with started(directory, command) as service:
        yield service


def test_a_certificate_stands_for_whom_its_name_is_listed(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "authority")
    access = '[certificates]\n"executor.test" = "acme"\n' + tokens(**{ACME: "acme"})
    with secure_scheduler(tmp_path, authority, access, mutual=True) as service:
        method = "metronome.scheduler.v1.SchedulerService.ListProfiles"
        for name, metadata, expected in (
            ("executor.test", (), grpc.StatusCode.OK),
            ("stranger.test", (), grpc.StatusCode.UNAUTHENTICATED),
            ("stranger.test", bearer(ACME), grpc.StatusCode.OK),
            ("executor.test", bearer(WRONG), grpc.StatusCode.UNAUTHENTICATED),
        ):
            credentials = authority.credentials(authority.sign("client", name))
            with grpc.secure_channel(service.address, credentials) as channel:
                assert raw(channel, method, metadata) is expected


def test_an_executor_shows_its_token_to_schedulers_and_takes_up_a_new_one(
    tmp_path: Path, tiny_model_directory: Path
) -> None:
    authority, token = Authority(tmp_path / "authority"), tmp_path / "token"
    token.write_text(f"{WRONG}\n")
    with secure_scheduler(tmp_path, authority, tokens(**{ACME: "acme"}), mutual=False) as scheduler:
        flags = ["--scheduler-ca", str(authority.ca), "--scheduler-token-file", str(token)]
        command = executor_command(tiny_model_directory, *flags, scheduler=[scheduler.address])
        with started(tmp_path, command) as executor, connected(executor.address) as client:
            wait_until_healthy(executor)
            stream = client.open(greedy("waits for a token", 3))
            wait_until(lambda: "UNAUTHENTICATED" in client.books().planning_failure)
            fresh = token.with_suffix(".new")
            fresh.write_text(ACME)
            fresh.replace(token)
            assert sum(len(response.delta.token_ids) for response in stream) == 3
            assert "file_reloaded" in executor.log
            for service in (executor, scheduler):
                assert "token-of" not in service.log
