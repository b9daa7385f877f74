"""What comes in on a port has bounds: each is exceeded over the wire, and whoever keeps to them goes on."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import pytest

from metronome.inference.v1 import inference_pb2 as pb
from metronome.scheduler.v1 import scheduler_pb2
from metronome.scheduler.v1.scheduler_pb2_grpc import SchedulerServiceStub
from support.scheduler_process import plan_request, scheduler_process
from support.services import Service, is_healthy, running_executor, wait_until
from support.wire import TIMEOUT_SECONDS, Client, connected, details_of, greedy


@pytest.fixture(scope="module")
def bounded(services_directory: Path, tiny_model_directory: Path, scheduler: Service) -> Iterator[Service]:
    """Four calls at once, and no room for long prompts, headers or messages."""
    flags = ["--max-num-calls", "4", "--max-prompt-bytes", "100", "--max-message-bytes", "16KiB"]
    flags += ["--max-metadata-bytes", "4KiB", "--max-num-seqs", "8"]
    with running_executor(services_directory, tiny_model_directory, *flags, scheduler=[scheduler.address]) as service:
        yield service


@pytest.fixture
def client(bounded: Service) -> Iterator[Client]:
    with connected(bounded.address) as client:
        yield client
        wait_until(client.is_idle)


def status_of(call: Callable[[], object]) -> grpc.StatusCode:
    with pytest.raises(grpc.RpcError) as caught:
        call()
    return details_of(caught.value).code


def test_case_44_open_streams_keep_nobody_from_all_else(bounded: Service, client: Client) -> None:
    """One more Generate is refused at once; health, the books and Cancel are answered, over the same connection too."""
    streams = [client.open(greedy(f"stream {number}", 250, request_id=str(number))) for number in range(4)]
    refused = client.refused(greedy("one more", 1))
    assert (refused.code, refused.info.reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "TOO_MANY_CALLS")
    assert refused.retry is not None
    assert is_healthy(bounded.address)
    assert len(client.books().request_names) == 4
    client.inference.Cancel(pb.CancelRequest(request_id="0"), timeout=TIMEOUT_SECONDS)
    assert status_of(lambda: list(streams[0])) is grpc.StatusCode.CANCELLED
    assert len(client.generate(greedy("there is room again", 2)).tokens) == 2
    assert [sum(len(r.delta.token_ids) for r in stream) for stream in streams[1:]] == [250] * 3


def test_a_prompt_of_too_much_text_is_refused(client: Client) -> None:
    refused = client.refused(greedy("a" * 101, 1))
    assert (refused.code, refused.info.reason) == (grpc.StatusCode.INVALID_ARGUMENT, "OUT_OF_RANGE")
    assert refused.fields == ["text"]
    with pytest.raises(grpc.RpcError) as caught:
        client.inference.Tokenize(pb.TokenizeRequest(text="a" * 101), timeout=TIMEOUT_SECONDS)
    assert details_of(caught.value).fields == ["text"]
    assert len(client.generate(greedy("a" * 100, 2)).tokens) == 2


def test_a_message_above_the_limit_is_refused_by_an_executor(client: Client) -> None:
    assert client.refused(greedy("a" * 2**14, 1)).code is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert len(client.generate(greedy("after it", 2)).tokens) == 2


def test_headers_above_the_limit_are_refused_by_an_executor(client: Client) -> None:
    def info(num_bytes: int) -> object:
        metadata = (("x-padding", "a" * num_bytes),)
        return client.inference.GetModelInfo(pb.GetModelInfoRequest(), timeout=TIMEOUT_SECONDS, metadata=metadata)

    assert status_of(lambda: info(5000)) is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert info(1000)


def test_headers_above_the_limit_are_refused_by_a_scheduler() -> None:
    with scheduler_process("--max-metadata-bytes", "4KiB") as address, grpc.insecure_channel(address) as channel:
        stub = SchedulerServiceStub(channel)

        def ask(num_bytes: int) -> scheduler_pb2.PlanResponse:
            metadata = (("x-padding", "a" * num_bytes),)
            return stub.Plan(plan_request(), timeout=TIMEOUT_SECONDS, metadata=metadata)

        assert status_of(lambda: ask(5000)) is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert len(ask(1000).plans) == 1


def test_a_connection_has_so_many_calls_open_and_the_next_one_waits_for_its_turn() -> None:
    with scheduler_process("--max-streams-per-connection", "2") as address, grpc.insecure_channel(address) as channel:
        stub = SchedulerServiceStub(channel)
        stub.Plan(plan_request(), timeout=TIMEOUT_SECONDS)  # by now the client has been told how many
        streams = [Held(stub) for _ in range(2)]
        assert status_of(lambda: stub.Plan(plan_request(), timeout=0.3)) is grpc.StatusCode.DEADLINE_EXCEEDED
        with grpc.insecure_channel(address, options=(("grpc.use_local_subchannel_pool", 1),)) as other:
            assert len(SchedulerServiceStub(other).Plan(plan_request(), timeout=TIMEOUT_SECONDS).plans) == 1
        streams[0].end()
        assert len(stub.Plan(plan_request(), timeout=TIMEOUT_SECONDS).plans) == 1
        streams[1].end()


class Held:
    """A PlanStream that has had one answer and goes on."""

    def __init__(self, stub: SchedulerServiceStub) -> None:
        self._ended = threading.Event()
        self._call = stub.PlanStream(self._requests(), timeout=TIMEOUT_SECONDS)
        assert len(next(self._call).plans) == 1

    def end(self) -> None:
        self._call.cancel()
        self._ended.set()

    def _requests(self) -> Iterator[scheduler_pb2.PlanRequest]:
        """Read by a thread of gRPC, which may be here before the call is known."""
        yield plan_request()
        self._ended.wait(TIMEOUT_SECONDS)
