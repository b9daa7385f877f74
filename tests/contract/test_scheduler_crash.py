"""A fault of the planner is INTERNAL for the call that met it, and for no other."""

from __future__ import annotations

import asyncio

import grpc
import pytest
from google.rpc import error_details_pb2, status_pb2

from metronome.scheduler.v1 import scheduler_pb2_grpc
from scheduler_service import servicer
from scheduler_service.config import parse_config
from scheduler_service.profiles import load_profiles
from scheduler_service.server import start_server
from support.scheduler_process import plan_request
from support.wire import TIMEOUT_SECONDS


def crash(*_: object) -> None:
    raise ZeroDivisionError("a fault of ours")


async def answers_to_a_crash_and_a_retry(monkeypatch: pytest.MonkeyPatch) -> list[tuple[grpc.StatusCode, str]]:
    """Status code and reason of each."""
    server = await start_server(parse_config(["--port", "0"], {}), load_profiles())
    answers = []
    async with grpc.aio.insecure_channel(server.address) as channel:
        stub = scheduler_pb2_grpc.SchedulerServiceStub(channel)
        for faulty in (True, False):
            with monkeypatch.context() as patch:
                if faulty:
                    patch.setattr(servicer, "plan", crash)
                call = stub.Plan(plan_request(), timeout=TIMEOUT_SECONDS)
                code = await call.code()
                details = dict(await call.trailing_metadata()).get("grpc-status-details-bin", b"")
                answers.append((code, reason_in(details)))
    await server.stop(grace_s=0)
    return answers


def reason_in(details: str | bytes) -> str:
    assert isinstance(details, bytes)
    info = error_details_pb2.ErrorInfo()
    for detail in status_pb2.Status.FromString(details).details:
        detail.Unpack(info)
    return info.reason


def test_a_fault_of_the_planner_is_internal_for_that_call_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = asyncio.run(answers_to_a_crash_and_a_retry(monkeypatch))
    assert answers == [(grpc.StatusCode.INTERNAL, "SCHEDULER_FAILED"), (grpc.StatusCode.OK, "")]
