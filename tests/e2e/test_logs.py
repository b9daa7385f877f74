"""What services log: events, one JSON object a line whatever befalls them, and nothing of a prompt or an answer."""

from __future__ import annotations

import json
import re
import signal
import socket
from pathlib import Path
from typing import Any

import grpc
import pytest

from metronome.inference.v1 import inference_pb2 as pb
from metronome.scheduler.v1 import scheduler_pb2
from metronome.scheduler.v1.scheduler_pb2_grpc import SchedulerServiceStub
from support.certificates import Authority, tls_flags
from support.scheduler_process import plan_request
from support.services import SCHEDULER, Service, executor_command, patched_executor, started, wait_until
from support.wire import TIMEOUT_SECONDS, Client, greedy

MARKER = "XYZZYPLUGH"


def events(service: Service) -> list[dict[str, Any]]:
    """Each line of the log as an object. Fails where one is none."""
    return [json.loads(line) for line in service.log.splitlines()]


def named(service: Service, event: str) -> list[dict[str, Any]]:
    return [entry for entry in events(service) if entry["event"] == event]


def knock_without_tls(address: str) -> None:
    """Begin no handshake that a server could make anything of."""
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port))) as connection:
        connection.sendall(f"GET /{MARKER} HTTP/1.1\r\n\r\n".encode())
        connection.recv(100)


def test_an_executor_logs_who_ended_when_and_nothing_of_what_was_said(
    tmp_path: Path, tiny_model_directory: Path, scheduler: Service
) -> None:
    """Also where a pass fails with the prompt in the hands of those who fail, and where libraries speak."""
    authority = Authority(tmp_path / "authority")
    patch = (
        "import logging, warnings\n"
        "from executor_service.engine import loop\n"
        "execute = loop.Engine._execute\n"
        "def failing(engine, inputs):\n"
        "    for sequence in engine.books.sequences():\n"
        "        if sequence.request.name == 'fails':\n"
        "            text = sequence.request.output.echo\n"
        "            assert text\n"
        "            warnings.warn('a library warns', stacklevel=1)\n"
        "            logging.getLogger('a.library').error('it says %s', 'something\\nin two lines')\n"
        "            engine._runner, kept = None, engine._runner\n"
        "            try:\n"
        "                return execute(engine, inputs)\n"
        "            finally:\n"
        "                engine._runner = kept\n"
        "    return execute(engine, inputs)\n"
        "loop.Engine._execute = failing"
    )
    flags = [*tls_flags(authority.sign("executor")), "--log-level", "debug"]
    command = executor_command(
        tiny_model_directory, *flags, scheduler=[scheduler.address], program=patched_executor(patch)
    )
    with started(tmp_path, command) as service:
        with grpc.secure_channel(service.address, authority.credentials()) as channel:
            client = Client(channel)
            grpc.channel_ready_future(channel).result(timeout=60)
            knock_without_tls(service.address)
            wait_until_serving(client)
            told = greedy(f"say {MARKER} again", 4, request_id="well")
            told.output.echo = True
            assert MARKER in client.generate(told).text
            told.request_id = "fails"
            assert client.refused(told).info.reason == "REQUEST_FAILED"
            client.refused(pb.GenerateRequest(text=MARKER, sampling=pb.SamplingParameters(regex=f"({MARKER}")))
        service.send(signal.SIGTERM)
        assert service.wait() == 0
        assert MARKER not in service.log
        by_request = {entry["request_id"]: entry for entry in named(service, "request_ended")}
        assert (by_request["well"]["reason"], by_request["well"]["num_output_tokens"]) == ("LENGTH", 4)
        assert by_request["fails"]["reason"] == "FAILED"
        assert by_request["fails"]["iteration"] > by_request["well"]["iteration"] > 0
        assert {entry["request_id"] for entry in named(service, "request_accepted")} == {"well", "fails"}
        (failed,) = named(service, "requests_failed")
        assert (failed["request_ids"], failed["iteration"]) == (["fails"], by_request["fails"]["iteration"])
        assert "AttributeError" in failed["exception"]
        spoken = {entry["message"] for entry in named(service, "library")}
        assert "it says something in two lines" in spoken
        assert any("a library warns" in message for message in spoken)


def wait_until_serving(client: Client) -> None:
    def is_loaded() -> bool:
        try:
            client.inference.GetModelInfo(pb.GetModelInfoRequest(), timeout=TIMEOUT_SECONDS)
        except grpc.RpcError:
            return False
        return True

    wait_until(is_loaded, 180)


def test_a_scheduler_logs_whose_plan_it_refuses_and_no_state(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "authority")
    patch = "from scheduler_service.core import verify\nverify.verify = lambda *_: 1 / 0\n"
    program = f"{patch}from scheduler_service.__main__ import main\nmain()"
    command = [SCHEDULER[0], "-c", program, "--port", "0", "--log-format", "json", *tls_flags(authority.sign("it"))]
    with started(tmp_path, command) as service:
        knock_without_tls(service.address)
        with grpc.secure_channel(service.address, authority.credentials()) as channel:
            stub, bad = SchedulerServiceStub(channel), plan_request()
            bad.state.executors[0].executor_id = "the-executor"
            plans = stub.Plan(bad, timeout=TIMEOUT_SECONDS).plans
            to_verify = scheduler_pb2.VerifyRequest(state=bad.state, plans=plans)
            with pytest.raises(grpc.RpcError, match="INTERNAL"):
                stub.Verify(to_verify, timeout=TIMEOUT_SECONDS)
            bad.profile = "none"
            with pytest.raises(grpc.RpcError, match="INVALID_ARGUMENT"):
                stub.Plan(bad, timeout=TIMEOUT_SECONDS)
        service.send(signal.SIGTERM)
        assert service.wait() == 0
        (crashed,) = named(service, "crashed")
        assert (crashed["executor_id"], crashed["iteration"]) == ("the-executor", 1)
        assert "ZeroDivisionError" in crashed["exception"]
        assert "arrival_time_us" not in service.log
        (refused,) = named(service, "refused")
        assert (refused["reason"], refused["executor_id"]) == ("UNKNOWN_PROFILE", "the-executor")


def test_on_a_console_an_event_is_a_line_for_people(tmp_path: Path) -> None:
    with started(tmp_path, [*SCHEDULER, "--port", "0"]) as service:
        assert re.search(r"scheduler_listening .*address=127\.0\.0\.1:", service.log)
