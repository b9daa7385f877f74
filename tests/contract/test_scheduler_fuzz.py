"""Whatever a caller sends, over the wire: a plan that keeps every invariant, or what is wrong and where.

Real states are spoiled: figures, columns, enum numbers, clocks, tenants, settings, then the bytes themselves. An answer
other than INVALID_ARGUMENT (or UNIMPLEMENTED, for what is not offered) is a fault, and so is a process that is gone.
`make fuzz` does the same for as many minutes as it is given.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

import grpc
import pytest
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError, Message
from hypothesis import event, example, given
from hypothesis import strategies as st

from metronome.scheduler.v1 import error_reason_pb2, scheduler_pb2, state_pb2
from scheduler_service.convert import cluster_from, plan_from, policy_from
from scheduler_service.core.state import COLUMN_NAMES
from scheduler_service.core.verify import verify
from scheduler_service.profiles import load_profiles
from support.messages import request_of
from support.random_states import random_executor, random_policy
from support.scheduler_process import plan_request, scheduler_process
from support.wire import Details, details_of

Request = scheduler_pb2.PlanRequest
Send = Callable[[bytes], bytes]

SERVICE = scheduler_pb2.DESCRIPTOR.services_by_name["SchedulerService"]
REASONS = {name.removeprefix("ERROR_REASON_") for name in error_reason_pb2.ErrorReason.DESCRIPTOR.values_by_name}
PLAN_SECONDS = 60  # a bound for a hang
INT32 = st.integers(-(2**31), 2**31 - 1)
INT64 = st.integers(-(2**63), 2**63 - 1)
SMALL = st.integers(-1, 3)


@pytest.fixture(scope="module")
def channel() -> Iterator[grpc.Channel]:
    with scheduler_process() as address, grpc.insecure_channel(address) as channel:
        yield channel


@pytest.fixture(scope="module")
def send(channel: grpc.Channel) -> Send:
    """Bytes in, bytes out: what a client in any language could send to `Plan`."""
    plan = channel.unary_unary(f"/{SERVICE.full_name}/Plan")
    return lambda data: plan(data, timeout=PLAN_SECONDS)


def check_answer(send: Send, data: bytes) -> None:
    """The answer to these bytes is a plan within the invariants, or an error that names what is there."""
    try:
        answer = scheduler_pb2.PlanResponse.FromString(send(data))
    except grpc.RpcError as error:
        check_error(details_of(error), data)
        return
    event("planned")
    request = Request.FromString(data)
    cluster = cluster_from(request.state, "state")
    # What has no policy of its own is planned by the default profile.
    policy = policy_from(request.policy, "policy") if request.HasField("policy") else load_profiles().default.policy
    assert len(answer.plans) == len(cluster.executors)
    for executor, message in zip(cluster.executors, answer.plans, strict=True):
        assert verify(executor, plan_from(message, "plan"), policy) == ()
        assert message.HasField("explanations") == request.explain
        if request.explain:
            assert sorted(message.explanations.id) == sorted(executor.requests.id.tolist())


def check_error(error: Details, data: bytes) -> None:
    assert error.code in (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.UNIMPLEMENTED), error
    assert error.info.reason in REASONS
    event(error.info.reason)
    if error.info.reason == "MALFORMED_MESSAGE":
        with pytest.raises(DecodeError):
            Request.FromString(data)
        return
    (field,) = error.fields or [error.info.metadata["field"]]
    assert field == error.info.metadata["field"]
    assert field in error.message
    named = named_by(field, Request.FromString(data))
    if error.info.reason in ("OUT_OF_RANGE", "UNKNOWN_VALUE", "DUPLICATE"):
        assert str(named).startswith(error.info.metadata["value"].removesuffix("…"))


def named_by(path: str, message: Any) -> Any:
    """What a path such as `state.executors[0].requests.id[3]` names in a message. Fails where there is nothing."""
    for name, row in re.findall(r"(\w+)(?:\[(\d+)\])?\.?", path):
        assert isinstance(message, Message), path
        assert name in message.DESCRIPTOR.fields_by_name, path
        table, message = message, getattr(message, name)
        if row and len(message) > 0:
            message = message[int(row)]
        elif row:
            # A column that is left out is 0 in every row that there is.
            assert int(row) < len(table.id)
            message = 0
    return message


@st.composite
def spoiled_requests(draw: st.DrawFn) -> Request:
    """A state as an executor may report it, with up to four things that are wrong, or odd."""
    random = Random(draw(st.integers(0, 2**32)))
    policy = random_policy(random)
    request = request_of(random_executor(random), policy, explain=draw(st.booleans()))
    for spoil in draw(st.lists(st.sampled_from(SPOILS), max_size=4)):
        spoil(draw, request)
    return request


def spoil_figure(draw: st.DrawFn, request: Request) -> None:
    """One figure of one row: too small, too large, or one that contradicts the others."""
    column = getattr(executor_in(draw, request).requests, draw(st.sampled_from(COLUMN_NAMES)))
    if len(column) > 0:
        column[draw(st.integers(0, len(column) - 1))] = draw(SMALL | number_for(column, request))


def spoil_column(draw: st.DrawFn, request: Request) -> None:
    """A column that is missing, too short, too long, or the same in each row."""
    column = getattr(executor_in(draw, request).requests, draw(st.sampled_from(COLUMN_NAMES)))
    values = list(column)
    ways: list[list[int]] = [[], values[1:], values * 2, values[:1] * len(values), values[::-1]]
    del column[:]
    column.extend(draw(st.sampled_from(ways)))


def spoil_scalar(draw: st.DrawFn, request: Request) -> None:
    """Any number anywhere outside of the columns: clocks, limits, free blocks, latency, settings of the policy."""
    executor = executor_in(draw, request)
    message = draw(st.sampled_from([request.state, executor, executor.limits, executor.latency, request.policy]))
    fields = [f for f in message.DESCRIPTOR.fields if not f.is_repeated and f.cpp_type in NUMBERS]
    field = draw(st.sampled_from(fields))
    setattr(message, field.name, draw(NUMBERS[field.cpp_type]))


def spoil_prefixes(draw: st.DrawFn, request: Request) -> None:
    """Parents that are none, circles, too many blocks, unequal columns; and requests that name what is not."""
    executor = executor_in(draw, request)
    table = executor.cached_prefixes
    column = draw(st.sampled_from([table.parent, table.num_free_blocks, executor.requests.cached_prefix]))
    if draw(st.booleans()) and len(column) > 0:
        column[draw(st.integers(0, len(column) - 1))] = draw(SMALL | number_for(column, request))
    else:
        column.append(draw(SMALL))


def spoil_tenants(draw: st.DrawFn, request: Request) -> None:
    """Weights that are no weights, names twice, columns that do not fit, or more tenants than there are."""
    tenants = request.state.tenants
    column = getattr(tenants, draw(st.sampled_from(["name", "weight", "service"])))
    if draw(st.booleans()) and len(column) > 0:
        del column[draw(st.integers(0, len(column) - 1))]
    else:
        column.append("a" if column is tenants.name else draw(st.floats()))


def spoil_structure(draw: st.DrawFn, request: Request) -> None:
    """An executor twice, none at all, a message left out, a name that is odd."""
    state, way = request.state, draw(st.integers(0, 5))
    if way == 0:
        state.executors.add().CopyFrom(state.executors[0]) if state.executors else state.executors.add()
    elif way == 1:
        del state.executors[:]
    elif way == 2:
        executor_in(draw, request).ClearField(draw(st.sampled_from(["limits", "latency", "requests", "executor_id"])))
    elif way == 3:
        executor_in(draw, request).executor_id = draw(st.text(max_size=300))
    elif way == 4:
        request.profile = draw(st.sampled_from(["", "fast", "fifo\x00", "vllm" * 1000]))
    else:
        request.ClearField("state")


def executor_in(draw: st.DrawFn, request: Request) -> state_pb2.ExecutorState:
    executors = request.state.executors
    return draw(st.sampled_from(list(executors))) if executors else executors.add()


def number_for(column: Any, request: Request) -> st.SearchStrategy[int]:
    wide = {"id", "arrival_time_us", "deadline_us", "last_run_iteration"}
    tables = [executor.requests for executor in request.state.executors]
    is_wide = any(column is getattr(table, name) for table in tables for name in wide)
    return INT64 | st.sampled_from([2**63 - 1, -(2**63)]) if is_wide else INT32 | st.just(2**31 - 1)


NUMBERS: dict[int, st.SearchStrategy[Any]] = {
    FieldDescriptor.CPPTYPE_INT32: SMALL | INT32 | st.just(2**31 - 1),
    FieldDescriptor.CPPTYPE_INT64: SMALL | INT64 | st.sampled_from([2**63 - 1, -(2**63)]),
    FieldDescriptor.CPPTYPE_DOUBLE: st.floats() | st.sampled_from([0.0, -1.0, 1e308, 5e-324]),
    FieldDescriptor.CPPTYPE_FLOAT: st.floats(width=32),
    FieldDescriptor.CPPTYPE_ENUM: st.integers(-1, 12) | INT32,
    FieldDescriptor.CPPTYPE_BOOL: st.booleans(),
}

SPOILS = [
    spoil_figure,
    spoil_figure,
    spoil_column,
    spoil_scalar,
    spoil_scalar,
    spoil_tenants,
    spoil_prefixes,
    spoil_structure,
]


@given(spoiled_requests())
@example(plan_request())
def test_a_spoiled_state_is_planned_or_refused_with_what_is_wrong(send: Send, request_: Request) -> None:
    check_answer(send, request_.SerializeToString())


@st.composite
def spoiled_bytes(draw: st.DrawFn) -> bytes:
    """The bytes of such a request, cut, doubled, or with some of them changed; or any bytes."""
    if draw(st.integers(0, 4)) == 0:
        return draw(st.binary(max_size=200))
    data = bytearray(draw(spoiled_requests()).SerializeToString())
    for _ in range(draw(st.integers(0, 4))):
        at = draw(st.integers(0, len(data)))
        match draw(st.integers(0, 3)):
            case 0:
                data[at : at + 1] = draw(st.binary(min_size=1, max_size=1))
            case 1:
                del data[at : at + draw(st.integers(1, 9))]
            case 2:
                data[at:at] = draw(st.binary(max_size=9))
            case _:
                data[at:at] = data[at : at + 40]
    return bytes(data)


@given(spoiled_bytes())
@example(b"")
@example(b"\xff\xff\xff")
def test_any_bytes_are_planned_or_refused_with_what_is_wrong(send: Send, data: bytes) -> None:
    check_answer(send, data)


@given(method=st.sampled_from(["Verify", "Place", "ListProfiles"]), data=spoiled_bytes())
def test_any_bytes_are_answered_or_refused_by_the_other_methods(
    channel: grpc.Channel, method: str, data: bytes
) -> None:
    try:
        channel.unary_unary(f"/{SERVICE.full_name}/{method}")(data, timeout=PLAN_SECONDS)
    except grpc.RpcError as error:
        details = details_of(error)
        event(f"{method}: {details.info.reason}")
        assert details.code in (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.UNIMPLEMENTED), details
        assert details.info.reason in REASONS


@given(spoiled_bytes())
def test_a_stream_ends_with_the_same_status_and_no_other_call_does(
    channel: grpc.Channel, send: Send, data: bytes
) -> None:
    good = plan_request().SerializeToString()
    answers = channel.stream_stream(f"/{SERVICE.full_name}/PlanStream")(iter([good, data]), timeout=PLAN_SECONDS)
    assert next(answers) == send(good)
    assert ending(lambda: next(answers)) == ending(lambda: send(data))


def ending(call: Callable[[], bytes]) -> bytes | Details:
    """What a call gives: its answer, or the error."""
    try:
        return call()
    except grpc.RpcError as error:
        return details_of(error)


def test_a_hundred_thousand_rows_are_planned_or_refused(channel: grpc.Channel, send: Send) -> None:
    request = plan_request()
    table, count = request.state.executors[0].requests, 100_000
    table.Clear()
    table.id.extend(range(1, count + 1))
    table.status.extend([state_pb2.REQUEST_STATUS_WAITING] * count)
    table.num_prompt_tokens.extend([16] * count)
    answer = scheduler_pb2.PlanResponse.FromString(send(request.SerializeToString()))
    assert list(answer.plans[0].admit.id) == [1, 2, 3, 4]
    table.id[count - 1] = 1
    with pytest.raises(grpc.RpcError) as caught:
        send(request.SerializeToString())
    assert details_of(caught.value).fields == [f"state.executors[0].requests.id[{count - 1}]"]
