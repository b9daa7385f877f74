"""The scheduler service over the wire: what it answers, and how it starts and ends."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from metronome.scheduler.v1 import plan_pb2, policy_pb2, scheduler_pb2, scheduler_pb2_grpc, state_pb2
from scheduler_service.convert import POLICY_ENUMS
from scheduler_service.core.executor_plan import EvictMode, Reason
from scheduler_service.core.state import COLUMN_NAMES, RequestStatus
from scheduler_service.core.verify import Invariant
from support.scheduler_process import COMMAND, START_SECONDS, plan_request, scheduler_process, wait_for_address
from support.wire import TIMEOUT_SECONDS

SERVICE = "metronome.scheduler.v1.SchedulerService"


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with scheduler_process() as address:
        yield address


@pytest.fixture(scope="module")
def channel(address: str) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(address) as channel:
        yield channel


@pytest.fixture
def stub(channel: grpc.Channel) -> scheduler_pb2_grpc.SchedulerServiceStub:
    return scheduler_pb2_grpc.SchedulerServiceStub(channel)


def test_a_state_is_planned(stub: scheduler_pb2_grpc.SchedulerServiceStub) -> None:
    (plan,) = stub.Plan(plan_request(), timeout=TIMEOUT_SECONDS).plans
    assert (plan.executor_id, plan.iteration) == ("executor-0", 1)
    assert list(plan.scheduled.id) == [1, 2]
    assert list(plan.scheduled.num_tokens) == [16, 16]
    assert list(plan.scheduled.reason) == [plan_pb2.REASON_PREFILL] * 2
    assert list(plan.admit.id) == [1, 2]
    assert plan.composition.num_prefill_tokens == 32
    assert plan.digest != 0
    assert not plan.HasField("shortfall")
    assert not plan.HasField("explanations")


def test_the_same_bytes_give_the_same_bytes_on_any_replica(stub: scheduler_pb2_grpc.SchedulerServiceStub) -> None:
    request = plan_request()
    with scheduler_process() as other, grpc.insecure_channel(other) as channel:
        again = scheduler_pb2_grpc.SchedulerServiceStub(channel).Plan(request, timeout=TIMEOUT_SECONDS)
    assert stub.Plan(request, timeout=TIMEOUT_SECONDS).SerializeToString() == again.SerializeToString()


def test_explain_gives_every_request_its_reason(stub: scheduler_pb2_grpc.SchedulerServiceStub) -> None:
    request = plan_request()
    request.explain = True
    request.state.executors[0].limits.max_num_seqs = 1
    (plan,) = stub.Plan(request, timeout=TIMEOUT_SECONDS).plans
    assert list(plan.explanations.id) == [1, 2]
    assert list(plan.explanations.reason) == [plan_pb2.REASON_PREFILL, plan_pb2.REASON_WAITING_FOR_SEQS]
    assert plan.shortfall == plan_pb2.Shortfall(id=2, reason=plan_pb2.REASON_WAITING_FOR_SEQS, needed=1, available=0)


def test_requests_are_placed(stub: scheduler_pb2_grpc.SchedulerServiceStub) -> None:
    request = scheduler_pb2.PlaceRequest(state=plan_request().state)
    request.requests.id.extend([8, 9])
    request.requests.status.extend([state_pb2.REQUEST_STATUS_WAITING] * 2)
    request.requests.num_prompt_tokens.extend([16, 200])
    placed, refused = stub.Place(request, timeout=TIMEOUT_SECONDS).assignments
    assert (placed.id, placed.executor_id, placed.reason) == (8, "executor-0", plan_pb2.REASON_UNSPECIFIED)
    assert (refused.id, refused.executor_id) == (9, "")
    assert refused.reason == plan_pb2.REASON_REJECTED_EXCEEDS_MODEL_LEN


def test_a_policy_in_the_request_is_obeyed(stub: scheduler_pb2_grpc.SchedulerServiceStub) -> None:
    request = plan_request()
    request.policy.chunk_size_tokens = 5
    (plan,) = stub.Plan(request, timeout=TIMEOUT_SECONDS).plans
    assert list(plan.scheduled.num_tokens) == [5, 5]


def test_one_that_would_compute_the_same_block_is_held_for_the_other(
    stub: scheduler_pb2_grpc.SchedulerServiceStub,
) -> None:
    request = plan_request()
    request.explain = True
    request.state.executors[0].requests.next_block_hash.extend([-(2**63), -(2**63)])
    (plan,) = stub.Plan(request, timeout=TIMEOUT_SECONDS).plans
    assert list(plan.scheduled.id) == [1, 2]
    request.policy.hold_for_shared_prefix = True
    (plan,) = stub.Plan(request, timeout=TIMEOUT_SECONDS).plans
    assert list(plan.scheduled.id) == [1]
    assert plan.shortfall == plan_pb2.Shortfall(id=2, reason=plan_pb2.REASON_WAITING_FOR_SHARED_PREFIX)
    assert list(plan.explanations.behind_id) == [0, 1]


def test_a_plan_tells_the_executor_what_a_block_held_costs(stub: scheduler_pb2_grpc.SchedulerServiceStub) -> None:
    request = plan_request()
    request.policy.ordering = policy_pb2.ORDERING_FAIR
    request.policy.kv_residency_charge = 0.25
    (plan,) = stub.Plan(request, timeout=TIMEOUT_SECONDS).plans
    assert plan.kv_residency_charge == 0.25
    verify = scheduler_pb2.VerifyRequest(state=request.state, plans=[plan], policy=request.policy)
    assert not stub.Verify(verify, timeout=TIMEOUT_SECONDS).violations
    verify.plans[0].kv_residency_charge = 0
    (violation,) = stub.Verify(verify, timeout=TIMEOUT_SECONDS).violations
    assert violation.invariant == scheduler_pb2.INVARIANT_NO_STARVATION


def test_a_prompt_that_is_cached_whole_computes_its_last_token(stub: scheduler_pb2_grpc.SchedulerServiceStub) -> None:
    request = plan_request()
    table = request.state.executors[0].requests
    table.num_computed_tokens.extend([16, 0])
    table.num_blocks.extend([1, 0])
    (plan,) = stub.Plan(request, timeout=TIMEOUT_SECONDS).plans
    assert list(plan.scheduled.num_tokens) == [1, 16]


def test_each_executor_gets_its_plan_in_order(stub: scheduler_pb2_grpc.SchedulerServiceStub) -> None:
    request = plan_request()
    request.state.executors.add().CopyFrom(request.state.executors[0])
    request.state.executors[1].executor_id = "another"
    assert [plan.executor_id for plan in stub.Plan(request, timeout=TIMEOUT_SECONDS).plans] == ["executor-0", "another"]


def test_a_stream_answers_in_order(stub: scheduler_pb2_grpc.SchedulerServiceStub) -> None:
    requests = []
    for iteration in range(1, 20):
        requests.append(plan_request())
        requests[-1].state.executors[0].iteration = iteration
    answers = stub.PlanStream(iter(requests), timeout=TIMEOUT_SECONDS)
    assert [answer.plans[0].iteration for answer in answers] == list(range(1, 20))


def test_the_first_bad_message_ends_a_stream(stub: scheduler_pb2_grpc.SchedulerServiceStub) -> None:
    bad = plan_request()
    bad.state.now_us = 0
    answers = stub.PlanStream(iter([plan_request(), bad, plan_request()]), timeout=TIMEOUT_SECONDS)
    assert len(next(answers).plans) == 1
    with pytest.raises(grpc.RpcError) as caught:
        next(answers)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


def test_a_plan_is_verified(stub: scheduler_pb2_grpc.SchedulerServiceStub) -> None:
    state = plan_request().state
    plans = stub.Plan(plan_request(), timeout=TIMEOUT_SECONDS).plans
    assert not stub.Verify(scheduler_pb2.VerifyRequest(state=state, plans=plans), timeout=TIMEOUT_SECONDS).violations
    plans[0].scheduled.num_tokens[1] = 17
    violations = stub.Verify(scheduler_pb2.VerifyRequest(state=state, plans=plans), timeout=TIMEOUT_SECONDS).violations
    assert scheduler_pb2.INVARIANT_TOKENS in [violation.invariant for violation in violations]
    assert all(violation.executor_id == "executor-0" for violation in violations)


def test_profiles_are_listed(stub: scheduler_pb2_grpc.SchedulerServiceStub) -> None:
    answer = stub.ListProfiles(scheduler_pb2.ListProfilesRequest(), timeout=TIMEOUT_SECONDS)
    assert [profile.name for profile in answer.profiles if profile.is_default] == ["metronome"]
    assert answer.next_page_token == ""
    fifo = next(profile for profile in answer.profiles if profile.name == "fifo")
    assert fifo.policy.ordering == policy_pb2.ORDERING_FIFO
    assert fifo.policy.chunk_size_tokens == 512
    request = plan_request()
    request.profile = "fifo"
    assert len(stub.Plan(request, timeout=TIMEOUT_SECONDS).plans) == 1
    rest = stub.ListProfiles(
        scheduler_pb2.ListProfilesRequest(page_token=answer.profiles[-1].name), timeout=TIMEOUT_SECONDS
    )
    assert not rest.profiles


@pytest.mark.parametrize("service", ["", SERVICE])
def test_health_is_serving(channel: grpc.Channel, service: str) -> None:
    answer = health_pb2_grpc.HealthStub(channel).Check(
        health_pb2.HealthCheckRequest(service=service), timeout=TIMEOUT_SECONDS
    )
    assert answer.status == health_pb2.HealthCheckResponse.SERVING


def test_reflection_lists_the_service(channel: grpc.Channel) -> None:
    request = reflection_pb2.ServerReflectionRequest(list_services="")
    stub = reflection_pb2_grpc.ServerReflectionStub(channel)
    (answer,) = stub.ServerReflectionInfo(iter([request]), timeout=TIMEOUT_SECONDS)
    assert SERVICE in [service.name for service in answer.list_services_response.service]


def test_a_message_may_be_larger_than_the_default_limit_of_grpc(stub: scheduler_pb2_grpc.SchedulerServiceStub) -> None:
    request = plan_request()
    table = request.state.executors[0].requests
    num_requests = 60_000
    for name in COLUMN_NAMES:
        table.ClearField(name)
        getattr(table, name).extend([0] * num_requests)
    table.id[:] = range(1, num_requests + 1)
    table.status[:] = [state_pb2.REQUEST_STATUS_WAITING] * num_requests
    table.num_prompt_tokens[:] = [10] * num_requests
    assert 4 * 1024 * 1024 < request.ByteSize() < 100 * num_requests
    (plan,) = stub.Plan(request, timeout=TIMEOUT_SECONDS).plans
    assert list(plan.scheduled.id) == [1, 2, 3, 4]


def test_a_port_that_is_taken_is_one_clear_line(address: str) -> None:
    port = address.rsplit(":", 1)[1]
    run = subprocess.run([*COMMAND, "--port", port], capture_output=True, text=True, timeout=START_SECONDS)
    assert run.returncode == 1
    assert run.stderr == (f"metronome-scheduler: port {port} on 127.0.0.1 is taken; choose another with --port\n")


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (["--profile", "nope"], 1, "no profile is named 'nope'; choose one of fifo"),
        (["--port", "99999"], 2, "'99999' is not a port, 0 to 65535"),
        (["--max-message-bytes", "many"], 2, "'many' is not a size, such as 512MiB"),
        (["--log-format", "xml"], 2, "argument --log-format (flag): 'xml' is none of console, json"),
        (["--port", "0", "--address-file", "/nonexistent/x"], 1, "cannot write --address-file /nonexistent/x: No such"),
    ],
)
def test_a_setting_that_cannot_be_ends_the_start(arguments: list[str], status: int, said: str) -> None:
    run = subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, timeout=START_SECONDS)
    assert run.returncode == status
    assert said in run.stderr
    assert "Traceback" not in run.stderr


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_service_in_order(tmp_path: Path, number: signal.Signals) -> None:
    address_file = tmp_path / "address"
    command = [*COMMAND, "--port", "0", "--address-file", str(address_file), "--log-format", "json"]
    with subprocess.Popen(command, stderr=subprocess.PIPE) as process:
        address = wait_for_address(process, address_file)
        process.send_signal(number)
        _, log = process.communicate(timeout=START_SECONDS)
    assert process.returncode == 0
    assert f'"address": "{address}"' in log.decode()
    assert '"event": "scheduler_stopped"' in log.decode()


def test_the_service_starts_where_torch_cannot_be_imported(tmp_path: Path) -> None:
    address_file = tmp_path / "address"
    program = (
        "import sys; sys.modules['torch'] = None; sys.modules['transformers'] = None\n"
        f"sys.argv = ['metronome-scheduler', '--port', '0', '--address-file', {str(address_file)!r}]\n"
        "from scheduler_service.__main__ import main; main()"
    )
    with subprocess.Popen([sys.executable, "-c", program], stderr=subprocess.DEVNULL) as process:
        try:
            with grpc.insecure_channel(wait_for_address(process, address_file)) as channel:
                stub = scheduler_pb2_grpc.SchedulerServiceStub(channel)
                assert len(stub.Plan(plan_request(), timeout=TIMEOUT_SECONDS).plans) == 1
        finally:
            process.terminate()


def test_the_core_has_the_names_and_numbers_of_the_contract() -> None:
    assert tuple(field.name for field in state_pb2.RequestTable.DESCRIPTOR.fields) == COLUMN_NAMES
    pairs = [
        (RequestStatus, state_pb2.RequestStatus, "REQUEST_STATUS_"),
        (EvictMode, plan_pb2.EvictMode, "EVICT_MODE_"),
        (Reason, plan_pb2.Reason, "REASON_"),
        (Invariant, scheduler_pb2.Invariant, "INVARIANT_"),
    ]
    for name, enum in POLICY_ENUMS.items():
        pairs.append((enum, policy_pb2.Policy.DESCRIPTOR.fields_by_name[name].enum_type, ""))
    for core, contract, prefix in pairs:
        if prefix:
            numbers = {name.removeprefix(prefix): number for name, number in contract.items()}
        else:
            values = contract.values
            prefix = values[0].name.removesuffix("UNSPECIFIED")
            numbers = {value.name.removeprefix(prefix): value.number for value in values}
        numbers.pop("UNSPECIFIED")
        assert {member.name: member.value for member in core} == numbers
