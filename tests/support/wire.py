"""A client of an executor for tests: builds requests, gathers answers, and reads the details of errors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import grpc
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from metronome.executor.v1 import executor_pb2, executor_pb2_grpc
from metronome.inference.v1 import inference_pb2 as pb
from metronome.inference.v1 import inference_pb2_grpc
from metronome.scheduler.v1 import state_pb2

TIMEOUT_SECONDS = 60  # a bound for a hang


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A stream that has ended with OK."""

    responses: Sequence[pb.GenerateResponse]

    @property
    def started(self) -> pb.Started:
        return self.responses[0].started

    @property
    def finished(self) -> pb.Finished:
        return self.responses[-1].finished

    @property
    def text(self) -> str:
        return "".join(response.delta.text for response in self.responses)

    @property
    def tokens(self) -> list[int]:
        return [token_id for response in self.responses for token_id in response.delta.token_ids]


@dataclass(frozen=True, slots=True, kw_only=True)
class Details:
    """What a refused call says."""

    code: grpc.StatusCode
    message: str
    info: error_details_pb2.ErrorInfo
    fields: list[str]
    retry: error_details_pb2.RetryInfo | None
    over_quota: list[str]


class Client:
    """The stubs of one executor."""

    def __init__(self, channel: grpc.Channel) -> None:
        self.channel = channel
        self.inference = inference_pb2_grpc.InferenceServiceStub(channel)
        self.control = executor_pb2_grpc.ExecutorServiceStub(channel)

    def open(self, request: pb.GenerateRequest, timeout: float = TIMEOUT_SECONDS) -> grpc.CallIterator:
        """A stream on which `started` has arrived. Raises grpc.RpcError."""
        stream = self.inference.Generate(request, timeout=timeout)
        assert next(stream).HasField("started")
        return stream

    def generate(self, request: pb.GenerateRequest, timeout: float = TIMEOUT_SECONDS) -> Answer:
        """The whole answer. Raises grpc.RpcError."""
        return Answer(responses=list(self.inference.Generate(request, timeout=timeout)))

    def refused(self, request: pb.GenerateRequest, timeout: float = TIMEOUT_SECONDS) -> Details:
        """What is said to a request that must not be answered."""
        try:
            self.generate(request, timeout)
        except grpc.RpcError as error:
            return details_of(error)
        raise AssertionError("the request was answered")

    def books(self) -> executor_pb2.GetStateResponse:
        return self.control.GetState(executor_pb2.GetStateRequest(), timeout=TIMEOUT_SECONDS)

    def executor(self) -> state_pb2.ExecutorState:
        return self.books().state.executors[0]

    def is_idle(self) -> bool:
        """Whether nobody is in the executor, nor holds a block or a name."""
        books = self.books()
        executor = books.state.executors[0]
        is_free = executor.num_free_blocks == executor.limits.num_blocks
        return is_free and not executor.requests.id and not books.request_names


@contextmanager
def connected(address: str) -> Iterator[Client]:
    """A client with a connection of its own."""
    options = (("grpc.use_local_subchannel_pool", 1),)
    with grpc.insecure_channel(address, options=options) as channel:
        yield Client(channel)


def greedy(text: str, max_tokens: int, *, request_id: str = "") -> pb.GenerateRequest:
    """A request whose answer is always the same and has just so many tokens."""
    return pb.GenerateRequest(
        request_id=request_id,
        text=text,
        sampling=pb.SamplingParameters(temperature=0),
        stopping=pb.StoppingCriteria(max_tokens=max_tokens, ignore_eos=True),
    )


def details_of(error: grpc.RpcError) -> Details:
    """The details of an error. Empty where gRPC itself, and not the executor, ended the call."""
    assert isinstance(error, grpc.Call)
    info, bad, retry = error_details_pb2.ErrorInfo(), error_details_pb2.BadRequest(), error_details_pb2.RetryInfo()
    status = rpc_status.from_call(error)
    quota, has_retry = error_details_pb2.QuotaFailure(), False
    for detail in status.details if status else ():
        detail.Unpack(info)
        detail.Unpack(bad)
        detail.Unpack(quota)
        has_retry |= detail.Unpack(retry)
    return Details(
        code=error.code(),
        message=error.details() or "",
        info=info,
        fields=[violation.field for violation in bad.field_violations],
        retry=retry if has_retry else None,
        over_quota=[violation.subject for violation in quota.violations],
    )
