"""The parts of the Python client that faults go through; the faults themselves are scenarios of the conformance kit."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator

import grpc
import numpy as np
import pytest
from google.protobuf.any_pb2 import Any
from google.protobuf.duration_pb2 import Duration
from google.rpc import error_details_pb2, status_pb2

import metronome_client as api
from metronome.inference.v1 import error_reason_pb2 as inference_reasons
from metronome.scheduler.v1 import error_reason_pb2 as scheduler_reasons
from metronome.scheduler.v1 import plan_pb2, scheduler_pb2, state_pb2
from metronome_client.channels import CHANNEL_OPTIONS
from metronome_client.errors import error_from_status
from metronome_client.retry import Attempts
from metronome_conformance.fault_server import FaultServer
from support.fake_services import FakeExecutor
from support.fake_services import serving as serving_fake

FAST = api.RetryPolicy(initial_backoff_s=0.01, max_backoff_s=0.05)


def test_calls_go_round():
    first, second = FaultServer({}), FaultServer({})
    deadline = time.monotonic() + 60
    with api.InferenceClient([first.address, second.address]) as client:
        while min(len(first.calls), len(second.calls)) < 2:
            client.tokenize("x")
            assert time.monotonic() < deadline
        num_first = len(first.calls)
        for _ in range(10):
            client.tokenize("x")
    assert len(first.calls) - num_first == 5
    first.close()
    second.close()


def test_what_concerns_one_executor_says_which():
    first, second = FaultServer({}), FaultServer({})

    async def watch() -> None:
        async with api.AsyncInferenceClient([first.address, second.address]) as client:
            async for _ in client.watch_state(address=first.address):
                break
            with pytest.raises(ValueError, match="`address` must be one of"):
                await client.drain()

    with api.InferenceClient([first.address, second.address]) as client:
        client.drain(address=second.address)
        client.state(address=second.address)
        for call in (client.state, client.drain, lambda: next(client.watch_state())):
            with pytest.raises(ValueError, match=f"`address` must be one of {first.address}, {second.address}"):
                call()
        with pytest.raises(ValueError, match="must be one of"):
            client.state(address="elsewhere.test:1")
    asyncio.run(watch())
    assert (first.calls, second.calls) == (["WatchState"], ["Drain", "GetState"])
    first.close()
    second.close()


def test_case_45_a_silent_stream_is_kept_alive_at_the_interval_that_the_services_allow():
    """The services allow pings every 10 s. A ping that is not answered ends the connection, and not a minute later."""
    options = dict(CHANNEL_OPTIONS)
    assert options["grpc.keepalive_time_ms"] == 10_000
    assert options["grpc.http2.max_pings_without_data"] == 0
    assert options["grpc.http2.ping_timeout_ms"] == options["grpc.keepalive_timeout_ms"] == 10_000


def test_settings_that_make_no_sense_are_refused():
    with pytest.raises(ValueError, match="address"):
        api.InferenceClient([])
    with pytest.raises(ValueError, match="TLS alone"):
        api.InferenceClient("127.0.0.1:1", token="secret")
    with pytest.raises(ValueError, match="server_name"):
        api.SchedulerClient(["a.test:1", "b.test:1"], tls=api.Tls())


def test_every_reason_of_the_contract_has_a_class():
    for enum in (inference_reasons.ErrorReason, scheduler_reasons.ErrorReason):
        for name in enum.keys():  # noqa: SIM118  # a wrapper of protobuf, not a mapping
            reason = name.removeprefix("ERROR_REASON_")
            if reason != "UNSPECIFIED":
                details = api.errors.Details(reason=reason)
                error = error_from_status(grpc.StatusCode.UNKNOWN, "", details)
                assert type(error) is not api.MetronomeError, reason
                assert type(error).__name__ in api.__all__


def test_all_details_are_read_and_rubbish_is_not():
    status = status_pb2.Status(code=3)
    violation = error_details_pb2.BadRequest.FieldViolation(field="a.b[3]", description="no")
    quota = error_details_pb2.QuotaFailure.Violation(subject="tenant:x", description="full")
    for detail in (
        error_details_pb2.ErrorInfo(reason="OUT_OF_RANGE", domain="d", metadata={"value": "1"}),
        error_details_pb2.BadRequest(field_violations=[violation]),
        error_details_pb2.QuotaFailure(violations=[quota]),
        error_details_pb2.RetryInfo(retry_delay=Duration(seconds=2, nanos=500_000_000)),
        error_details_pb2.DebugInfo(detail="of a later time"),
    ):
        packed = Any()
        packed.Pack(detail)
        status.details.append(packed)
    details = api.details.read_details(status.SerializeToString())
    assert (details.reason, details.domain, details.metadata) == ("OUT_OF_RANGE", "d", {"value": "1"})
    assert [violation.subject for violation in details.field_violations] == ["a.b[3]"]
    assert [violation.subject for violation in details.quota_violations] == ["tenant:x"]
    assert details.retry_delay_s == 2.5
    assert api.details.read_details(b"\xff\xff") == api.details.Details()


def test_pauses_are_within_the_deadline_and_at_least_what_was_asked_for():
    error = api.QueueFullError(grpc.StatusCode.RESOURCE_EXHAUSTED, "QUEUE_FULL", "", {}, retry_delay_s=1.0)
    pauses = [Attempts(FAST, 10, several_addresses=False).pause_s(error) for _ in range(50)]
    assert all(1.0 <= pause <= 1.01 for pause in pauses)
    assert len(set(pauses)) > 1
    with pytest.raises(api.QueueFullError):
        Attempts(FAST, 0.5, several_addresses=False).pause_s(error)


# States and plans


@pytest.mark.parametrize("of", [list, tuple, np.array])
def test_a_table_is_written_from_lists_or_arrays(of):
    table = api.request_table(id=of([1, 2]), num_prompt_tokens=of([16, 32]), status=["RUNNING", "WAITING"])
    assert list(table.id) == [1, 2]
    assert list(table.num_prompt_tokens) == [16, 32]
    assert list(table.status) == [state_pb2.REQUEST_STATUS_RUNNING, state_pb2.REQUEST_STATUS_WAITING]


def test_a_column_that_is_none_and_a_value_that_does_not_fit_are_refused():
    with pytest.raises(TypeError, match="no column 'ids'"):
        api.request_table(ids=[1])
    with pytest.raises(ValueError, match="RUNING"):
        api.request_table(id=[1], status=["RUNING"])
    with pytest.raises(ValueError, match="range"):
        api.request_table(num_prompt_tokens=[2**40])


def test_a_plan_is_read_as_plain_values():
    plan = plan_pb2.ExecutorPlan(
        executor_id="e",
        iteration=3,
        scheduled=plan_pb2.ScheduledTable(id=[1], num_tokens=[5], reason=[plan_pb2.REASON_PREFILL]),
        evict=plan_pb2.EvictTable(id=[2], mode=[plan_pb2.EVICT_MODE_SWAP], reason=[999]),
        reject=plan_pb2.RejectTable(id=[3], reason=[plan_pb2.REASON_REJECTED_QUEUE_FULL]),
    )
    decision = api.decision(plan)
    assert (decision.scheduled, decision.evict, decision.reject) == ({1: 5}, {2: "SWAP"}, {3: "REJECTED_QUEUE_FULL"})
    assert decision.reasons == {1: "PREFILL", 2: "999", 3: "REJECTED_QUEUE_FULL"}


@pytest.mark.parametrize("num_before", [0, 1])
def test_what_the_server_says_is_heard_while_a_state_is_being_sent(num_before: int):
    """The end is there before the state is sent, but nobody has looked: gRPC for asyncio tells INTERNAL then."""
    refusal = {"code": "UNAUTHENTICATED", "reason": "UNKNOWN_CALLER", "message": "no such token"}
    server = FaultServer({"script": [{"messages": num_before, "refuse": refusal}] * 20})

    async def states() -> AsyncIterator[scheduler_pb2.PlanRequest]:
        for number in range(100):
            if number == num_before:
                time.sleep(0.02)  # the loop is busy, and hears of the end late
            yield scheduler_pb2.PlanRequest()

    async def stream() -> None:
        async with api.AsyncSchedulerClient(server.address) as client:
            for _ in range(20):
                with pytest.raises(api.UnknownCallerError, match="no such token"):
                    async for _ in client.plan_stream(states()):
                        pass

    asyncio.run(stream())
    server.close()


def test_a_client_that_is_closed_ends_its_streams():
    with serving_fake(FakeExecutor()) as address:
        client = api.InferenceClient(address)
        events = client.generate("hang")
        next(events)
        client.close()
        with pytest.raises(api.CancelledError):
            list(events)
