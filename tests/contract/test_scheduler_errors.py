"""One row for every reason of error_reason.proto: status code, reason, and the path of the field at fault."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import grpc
import pytest
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from metronome.scheduler.v1 import error_reason_pb2, plan_pb2, policy_pb2, scheduler_pb2, scheduler_pb2_grpc, state_pb2
from scheduler_service.core.errors import ErrorReason
from support.scheduler_process import plan_request, scheduler_process
from support.wire import TIMEOUT_SECONDS

Request = scheduler_pb2.PlanRequest
Break = Callable[[Request], None]


@pytest.fixture(scope="module")
def channel() -> Iterator[grpc.Channel]:
    with scheduler_process() as address, grpc.insecure_channel(address) as channel:
        yield channel


def details(error: grpc.RpcError) -> tuple[error_details_pb2.ErrorInfo, list[str]]:
    """The ErrorInfo of a refused call, and the fields that its BadRequest names."""
    status = rpc_status.from_call(error)
    assert status is not None
    info, bad = error_details_pb2.ErrorInfo(), error_details_pb2.BadRequest()
    for detail in status.details:
        detail.Unpack(info)
        detail.Unpack(bad)
    return info, [violation.field for violation in bad.field_violations]


def executor(request: Request) -> state_pb2.ExecutorState:
    return request.state.executors[0]


def clear_clock(request: Request) -> None:
    request.state.now_us = 0


def clear_state(request: Request) -> None:
    request.ClearField("state")


def clear_limits(request: Request) -> None:
    executor(request).ClearField("limits")


def clear_status(request: Request) -> None:
    executor(request).requests.ClearField("status")


def clear_ids(request: Request) -> None:
    executor(request).requests.ClearField("id")


def shorten_column(request: Request) -> None:
    executor(request).requests.arrival_time_us.pop()


def shorten_weights(request: Request) -> None:
    request.state.tenants.name.extend(["a", "b"])
    request.state.tenants.weight.append(1.0)


def repeat_id(request: Request) -> None:
    executor(request).requests.id[1] = 1


def negative_prompt(request: Request) -> None:
    executor(request).requests.num_prompt_tokens[1] = -1


def zero_chunks(request: Request) -> None:
    request.policy.chunk_size_tokens = 0


def more_computed_than_there_is(request: Request) -> None:
    executor(request).requests.num_computed_tokens.extend([17, 0])


def more_free_than_there_is(request: Request) -> None:
    executor(request).requests.status[0] = state_pb2.REQUEST_STATUS_RUNNING
    executor(request).requests.num_blocks.extend([1, 0])


def unknown_status(request: Request) -> None:
    executor(request).requests.status[1] = 9  # type: ignore[call-overload]


def unspecified_status(request: Request) -> None:
    executor(request).requests.status[1] = state_pb2.REQUEST_STATUS_UNSPECIFIED


def unknown_ordering(request: Request) -> None:
    request.policy.ordering = 99  # type: ignore[assignment]


def unknown_profile(request: Request) -> None:
    request.profile = "fast"


def never_without_reserve(request: Request) -> None:
    request.policy.preemption = policy_pb2.PREEMPTION_NEVER


def for_priority_in_order_of_arrival(request: Request) -> None:
    request.policy.preemption = policy_pb2.PREEMPTION_FOR_PRIORITY


def charge_out_of_range(request: Request) -> None:
    request.policy.kv_residency_charge = 2e6


def shorten_hashes(request: Request) -> None:
    request.state.executors[0].requests.next_block_hash.append(7)


IN_EXECUTOR = "state.executors[0]."

ROWS = [
    (clear_clock, "MISSING_FIELD", "state.now_us"),
    (clear_state, "MISSING_FIELD", "state"),
    (clear_limits, "MISSING_FIELD", IN_EXECUTOR + "limits"),
    (clear_status, "MISSING_FIELD", IN_EXECUTOR + "requests.status"),
    (clear_ids, "MISSING_FIELD", IN_EXECUTOR + "requests.id"),
    (shorten_column, "COLUMN_LENGTH", IN_EXECUTOR + "requests.arrival_time_us"),
    (shorten_weights, "COLUMN_LENGTH", "state.tenants.weight"),
    (repeat_id, "DUPLICATE", IN_EXECUTOR + "requests.id[1]"),
    (negative_prompt, "OUT_OF_RANGE", IN_EXECUTOR + "requests.num_prompt_tokens[1]"),
    (zero_chunks, "OUT_OF_RANGE", "policy.chunk_size_tokens"),
    (more_computed_than_there_is, "INCONSISTENT", IN_EXECUTOR + "requests.num_computed_tokens[0]"),
    (more_free_than_there_is, "INCONSISTENT", IN_EXECUTOR + "num_free_blocks"),
    (unknown_status, "UNKNOWN_VALUE", IN_EXECUTOR + "requests.status[1]"),
    (unspecified_status, "UNKNOWN_VALUE", IN_EXECUTOR + "requests.status[1]"),
    (unknown_ordering, "UNKNOWN_VALUE", "policy.ordering"),
    (unknown_profile, "UNKNOWN_PROFILE", "profile"),
    (never_without_reserve, "POLICY_CONFLICT", "policy.preemption"),
    (for_priority_in_order_of_arrival, "POLICY_CONFLICT", "policy.preemption"),
    (charge_out_of_range, "OUT_OF_RANGE", "policy.kv_residency_charge"),
    (shorten_hashes, "COLUMN_LENGTH", IN_EXECUTOR + "requests.next_block_hash"),
]


@pytest.mark.parametrize(("break_request", "reason", "field"), ROWS, ids=[row[0].__name__ for row in ROWS])
def test_a_bad_request_is_refused_with_its_reason(
    channel: grpc.Channel, break_request: Break, reason: str, field: str
) -> None:
    request = plan_request()
    break_request(request)
    with pytest.raises(grpc.RpcError) as caught:
        scheduler_pb2_grpc.SchedulerServiceStub(channel).Plan(request, timeout=TIMEOUT_SECONDS)
    info, fields = details(caught.value)
    assert (info.reason, info.domain, info.metadata["field"]) == (reason, "scheduler.metronome", field)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert fields == [field]


def test_every_reason_has_a_row() -> None:
    sent_with_details = set(error_reason_pb2.ErrorReason.keys()) - {
        "ERROR_REASON_UNSPECIFIED",
        "ERROR_REASON_MESSAGE_TOO_LARGE",  # gRPC itself refuses such a message, before the service sees it
        "ERROR_REASON_SCHEDULER_FAILED",  # no request can cause it: see test_scheduler_crash.py
        "ERROR_REASON_MALFORMED_MESSAGE",  # no field is at fault: see below
        "ERROR_REASON_UNKNOWN_CALLER",  # no request can cause it, but who sends it: see test_access.py
        "ERROR_REASON_DRAINING",  # likewise, but a service that ends: see test_scheduler_life.py
        "ERROR_REASON_NOT_OFFERED",  # there is nothing in the contract that this service does not offer
    }
    assert {f"ERROR_REASON_{reason}" for _, reason, _ in ROWS} == sent_with_details
    assert {f"ERROR_REASON_{reason.name}" for reason in ErrorReason} == sent_with_details


def test_a_message_above_the_limit_is_refused_and_the_service_goes_on() -> None:
    with scheduler_process("--max-message-bytes", "4096") as address, grpc.insecure_channel(address) as channel:
        stub = scheduler_pb2_grpc.SchedulerServiceStub(channel)
        request = plan_request()
        request.state.executors[0].requests.id.extend(range(100, 1000))
        with pytest.raises(grpc.RpcError) as caught:
            stub.Plan(request, timeout=TIMEOUT_SECONDS)
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert len(stub.Plan(plan_request(), timeout=TIMEOUT_SECONDS).plans) == 1


@pytest.mark.parametrize("method", ["Plan", "Verify", "Place", "ListProfiles"])
def test_bytes_that_are_no_message_are_the_callers_fault(channel: grpc.Channel, method: str) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        channel.unary_unary(f"/metronome.scheduler.v1.SchedulerService/{method}")(b"\xff\xff", timeout=TIMEOUT_SECONDS)
    info, fields = details(caught.value)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert (info.reason, info.domain, fields) == ("MALFORMED_MESSAGE", "scheduler.metronome", [])


@pytest.mark.parametrize("name", ["fast" * 10_000, "\U0001f422" * 10_000])
def test_an_error_does_not_repeat_all_of_a_long_value(channel: grpc.Channel, name: str) -> None:
    request = plan_request()
    request.profile = name
    with pytest.raises(grpc.RpcError) as caught:
        scheduler_pb2_grpc.SchedulerServiceStub(channel).Plan(request, timeout=TIMEOUT_SECONDS)
    info, fields = details(caught.value)
    assert (info.reason, fields) == ("UNKNOWN_PROFILE", ["profile"])
    assert name.startswith(info.metadata["value"].removesuffix("…"))


def place_request() -> scheduler_pb2.PlaceRequest:
    request = scheduler_pb2.PlaceRequest(state=plan_request().state)
    request.requests.id.append(9)
    request.requests.status.append(state_pb2.REQUEST_STATUS_WAITING)
    request.requests.num_prompt_tokens.append(16)
    return request


def unknown_placement(request: scheduler_pb2.PlaceRequest) -> None:
    request.placement = 99  # type: ignore[assignment]


def too_few_cached_tokens(request: scheduler_pb2.PlaceRequest) -> None:
    request.num_cached_tokens.extend([0, 0])


def negative_cached_tokens(request: scheduler_pb2.PlaceRequest) -> None:
    request.num_cached_tokens.append(-1)


def placed_already(request: scheduler_pb2.PlaceRequest) -> None:
    request.requests.status[0] = state_pb2.REQUEST_STATUS_RUNNING


def foreign_tenant(request: scheduler_pb2.PlaceRequest) -> None:
    request.requests.tenant.append(7)


@pytest.mark.parametrize(
    ("break_request", "reason", "field"),
    [
        (unknown_placement, "UNKNOWN_VALUE", "placement"),
        (too_few_cached_tokens, "COLUMN_LENGTH", "num_cached_tokens"),
        (negative_cached_tokens, "OUT_OF_RANGE", "num_cached_tokens[0]"),
        (placed_already, "INCONSISTENT", "requests.status[0]"),
        (foreign_tenant, "OUT_OF_RANGE", "requests.tenant[0]"),
    ],
)
def test_a_bad_request_to_place_is_refused_with_its_reason(
    channel: grpc.Channel, break_request: Callable[[scheduler_pb2.PlaceRequest], None], reason: str, field: str
) -> None:
    request = place_request()
    break_request(request)
    with pytest.raises(grpc.RpcError) as caught:
        scheduler_pb2_grpc.SchedulerServiceStub(channel).Place(request, timeout=TIMEOUT_SECONDS)
    info, fields = details(caught.value)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert (info.reason, fields) == (reason, [field])


def break_count(request: scheduler_pb2.VerifyRequest) -> None:
    request.plans.append(plan_pb2.ExecutorPlan())


def break_length(request: scheduler_pb2.VerifyRequest) -> None:
    request.plans[0].scheduled.num_tokens.append(1)


def break_mode(request: scheduler_pb2.VerifyRequest) -> None:
    request.plans[0].evict.id.append(1)
    request.plans[0].evict.mode.append(plan_pb2.EVICT_MODE_UNSPECIFIED)


@pytest.mark.parametrize(
    ("break_request", "reason", "field"),
    [
        (break_count, "INCONSISTENT", "plans"),
        (break_length, "COLUMN_LENGTH", "plans[0].scheduled.num_tokens"),
        (break_mode, "UNKNOWN_VALUE", "plans[0].evict.mode[0]"),
    ],
)
def test_a_plan_that_makes_no_sense_cannot_be_verified(
    channel: grpc.Channel, break_request: Callable[[scheduler_pb2.VerifyRequest], None], reason: str, field: str
) -> None:
    stub = scheduler_pb2_grpc.SchedulerServiceStub(channel)
    state = plan_request().state
    request = scheduler_pb2.VerifyRequest(state=state, plans=stub.Plan(plan_request(), timeout=TIMEOUT_SECONDS).plans)
    break_request(request)
    with pytest.raises(grpc.RpcError) as caught:
        stub.Verify(request, timeout=TIMEOUT_SECONDS)
    info, fields = details(caught.value)
    assert (info.reason, fields) == (reason, [field])
