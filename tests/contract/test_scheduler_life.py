"""From the start of a scheduler to its end: what health says, and what calls get, while it drains."""

from __future__ import annotations

import queue
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from metronome.scheduler.v1 import scheduler_pb2
from metronome.scheduler.v1.scheduler_pb2_grpc import SchedulerServiceStub
from metronome_conformance.line import Line
from support.scheduler_process import plan_request
from support.services import SCHEDULER, Service, impatient, is_healthy, patched, started, wait_until
from support.wire import TIMEOUT_SECONDS, details_of

COMMAND = (*SCHEDULER, "--port", "0", "--log-format", "json")


class Planning:
    """A PlanStream that asks when it is told to."""

    def __init__(self, channel: grpc.Channel) -> None:
        self._requests: queue.Queue[scheduler_pb2.PlanRequest | None] = queue.Queue()
        self.answers = SchedulerServiceStub(channel).PlanStream(iter(self._requests.get, None), timeout=TIMEOUT_SECONDS)

    def plan(self) -> int:
        self._requests.put(plan_request())
        return len(next(self.answers).plans)

    def finish(self) -> grpc.StatusCode:
        self._requests.put(None)
        assert list(self.answers) == []
        return self.answers.code()


@pytest.fixture
def channel(service: Service) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(service.address) as channel:
        yield channel


@pytest.fixture
def service(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Service]:
    """With a grace period of so many seconds."""
    with started(tmp_path, [*COMMAND, "--grace-s", str(request.param)]) as service:
        yield service


@pytest.mark.parametrize("service", [60], indirect=True, ids=["long grace"])
def test_a_drain_lets_open_streams_end_and_sends_all_others_elsewhere(service: Service, channel: grpc.Channel) -> None:
    """Case 47, of a scheduler."""
    stream, stub = Planning(channel), SchedulerServiceStub(channel)
    assert stream.plan() == 1
    service.send(signal.SIGTERM)
    wait_until(lambda: not is_healthy(service.address))
    for call in (
        lambda: stub.Plan(plan_request(), timeout=TIMEOUT_SECONDS),
        lambda: stub.ListProfiles(scheduler_pb2.ListProfilesRequest(), timeout=TIMEOUT_SECONDS),
        lambda: list(stub.PlanStream(iter([plan_request()]), timeout=TIMEOUT_SECONDS)),
    ):
        with pytest.raises(grpc.RpcError) as caught:
            call()
        refused = details_of(caught.value)
        assert (refused.code, refused.info.reason) == (grpc.StatusCode.UNAVAILABLE, "DRAINING")
        assert refused.retry is not None
    assert not is_healthy(service.address, "metronome.scheduler.v1.SchedulerService")
    assert stream.plan() == 1
    assert stream.finish() is grpc.StatusCode.OK
    assert service.wait() == 0


@pytest.mark.parametrize("service", [0.2], indirect=True, ids=["short grace"])
def test_a_stream_that_does_not_end_within_the_grace_period_is_told_so(service: Service, channel: grpc.Channel) -> None:
    stream = Planning(channel)
    assert stream.plan() == 1
    service.send(signal.SIGTERM)
    with pytest.raises(grpc.RpcError) as caught:
        next(stream.answers)
    ending = details_of(caught.value)
    assert (ending.code, ending.info.reason) == (grpc.StatusCode.UNAVAILABLE, "DRAINING")
    assert service.wait() == 0


@pytest.mark.parametrize("service", [600], indirect=True, ids=["endless grace"])
def test_a_second_sigterm_ends_the_process_at_once(service: Service, channel: grpc.Channel) -> None:
    stream = Planning(channel)
    assert stream.plan() == 1
    service.send(signal.SIGTERM)
    wait_until(lambda: "scheduler_stopping" in service.log)
    service.send(signal.SIGTERM)
    assert service.wait() == 1
    assert "stopped_at_once" in service.log


def test_a_client_that_vanishes_without_a_word_is_asked_whether_it_is_there(tmp_path: Path) -> None:
    """The stream of an executor whose machine lost its power would keep a scheduler from its end for all its grace."""
    command = [*impatient("scheduler"), "--port", "0", "--grace-s", "600"]
    with started(tmp_path, command) as service:
        line = Line(int(service.port))
        with grpc.insecure_channel(f"127.0.0.1:{line.port}") as vanishing:
            stream = Planning(vanishing)
            assert stream.plan() == 1
            time.sleep(1)  # longer than two pings and their answers: who is there stays
            assert stream.plan() == 1
            line.vanish()
            service.send(signal.SIGTERM)
            assert service.wait() == 0
            line.close()
            stream.answers.cancel()


def test_sigterm_ends_a_process_that_starts(tmp_path: Path) -> None:
    """It would otherwise go on for as long as the planning core takes to compile."""
    patch = (
        "import pathlib, time\n"
        "from scheduler_service import server\n"
        "def slow():\n"
        f"    pathlib.Path({str(tmp_path / 'starting')!r}).touch()\n"
        "    time.sleep(600)\n"
        "server.warm_up = slow"
    )
    with subprocess.Popen([*patched("scheduler", patch), "--port", "0"], stderr=subprocess.PIPE) as process:
        wait_until((tmp_path / "starting").exists, 120)
        process.send_signal(signal.SIGTERM)
        _, log = process.communicate(timeout=60)
    assert process.returncode == 0
    assert "stopped_while_starting" in log.decode()
