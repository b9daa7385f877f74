"""A fault of the planner is INTERNAL for the call that met it, and for no other."""

from __future__ import annotations

import asyncio

import grpc
import pytest

from metronome.scheduler.v1 import scheduler_pb2_grpc
from scheduler_service import servicer
from scheduler_service.config import SchedulerConfig
from scheduler_service.profiles import load_profiles
from scheduler_service.server import start_server
from support.scheduler_process import plan_request


def crash(*_: object) -> None:
    raise ZeroDivisionError("a fault of ours")


async def codes_of_a_crash_and_a_retry(monkeypatch: pytest.MonkeyPatch) -> list[grpc.StatusCode]:
    server = await start_server(SchedulerConfig(port=0), load_profiles())
    codes = []
    async with grpc.aio.insecure_channel(server.address) as channel:
        stub = scheduler_pb2_grpc.SchedulerServiceStub(channel)
        for faulty in (True, False):
            with monkeypatch.context() as patch:
                if faulty:
                    patch.setattr(servicer, "plan", crash)
                call = stub.Plan(plan_request(), timeout=10)
                codes.append(await call.code())
    await server.stop(grace_seconds=0)
    return codes


def test_a_fault_of_the_planner_is_internal_for_that_call_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    codes = asyncio.run(codes_of_a_crash_and_a_retry(monkeypatch))
    assert codes == [grpc.StatusCode.INTERNAL, grpc.StatusCode.OK]
