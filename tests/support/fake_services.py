"""The far side of the wire for the tests of the clients: an executor and a scheduler that answer from a script."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import grpc
from google.protobuf.any_pb2 import Any
from google.rpc.code_pb2 import Code
from google.rpc.error_details_pb2 import ErrorInfo
from google.rpc.status_pb2 import Status
from grpc_status import rpc_status

from metronome.executor.v1 import executor_pb2, executor_pb2_grpc
from metronome.inference.v1 import inference_pb2, inference_pb2_grpc
from metronome.scheduler.v1 import scheduler_pb2, scheduler_pb2_grpc, state_pb2


def refuse(context: grpc.ServicerContext, code: int, reason: str, message: str, **metadata: str) -> None:
    """End a call as the services do: status, message and reason."""
    detail = Any()
    detail.Pack(ErrorInfo(reason=reason, domain="executor.metronome", metadata=metadata))
    context.abort_with_status(rpc_status.to_status(Status(code=code, message=message, details=[detail])))


class FakeExecutor(inference_pb2_grpc.InferenceServiceServicer, executor_pb2_grpc.ExecutorServiceServicer):
    """Answers every prompt with `tokens`. The prompt "fail" is refused, "hang" goes on until the client leaves.

    `planning_failure` is told in its books and in its heartbeats. Log-probabilities, where asked for, are made up.
    """

    def __init__(
        self,
        tokens: tuple[str, ...] = (" once", " upon", " a", " time"),
        *,
        has_chat_template: bool = False,
        planning_failure: str = "",
    ):
        self.tokens = tokens
        self.planning_failure = planning_failure
        self.has_chat_template = has_chat_template
        self.requests: list[inference_pb2.GenerateRequest] = []
        self.cancelled = threading.Event()

    def Generate(
        self, request: inference_pb2.GenerateRequest, context: grpc.ServicerContext
    ) -> Iterator[inference_pb2.GenerateResponse]:
        self.requests.append(request)
        if request.text == "hang":
            context.add_callback(self.cancelled.set)
        if request.text == "fail":
            refuse(context, Code.INVALID_ARGUMENT, "EXCEEDS_MODEL_LEN", "too long", needed_tokens="3000")
        yield inference_pb2.GenerateResponse(
            started=inference_pb2.Started(request_id=request.request_id, num_prompt_tokens=3, max_tokens=4)
        )
        for _ in range(2):
            yield inference_pb2.GenerateResponse(heartbeat=inference_pb2.Heartbeat(detail=self.planning_failure))
        if request.text == "hang":
            self.cancelled.wait(30)
            return
        for token_id, text in enumerate(self.tokens):
            delta = inference_pb2.Delta(text=text, token_ids=[token_id])
            if request.output.HasField("logprobs"):
                delta.logprobs.add(logprob=-0.5, top_token_ids=[97, 98], top_logprobs=[-0.5, -1.25])
            if request.output.HasField("prompt_logprobs") and token_id == 0:
                delta.prompt_logprobs.add()
                delta.prompt_logprobs.add(logprob=-3)
            yield inference_pb2.GenerateResponse(delta=delta)
        usage = inference_pb2.Usage(num_prompt_tokens=3, num_output_tokens=len(self.tokens))
        yield inference_pb2.GenerateResponse(
            finished=inference_pb2.Finished(finish_reason=inference_pb2.FINISH_REASON_LENGTH, usage=usage)
        )

    def GetModelInfo(
        self, request: inference_pb2.GetModelInfoRequest, context: grpc.ServicerContext
    ) -> inference_pb2.GetModelInfoResponse:
        return inference_pb2.GetModelInfoResponse(
            model="fake", dtype="float32", device="cpu", has_chat_template=self.has_chat_template
        )

    def Cancel(
        self, request: inference_pb2.CancelRequest, context: grpc.ServicerContext
    ) -> inference_pb2.CancelResponse:
        refuse(context, Code.NOT_FOUND, "UNKNOWN_REQUEST_ID", f"no request {request.request_id}")
        return inference_pb2.CancelResponse()

    def Tokenize(
        self, request: inference_pb2.TokenizeRequest, context: grpc.ServicerContext
    ) -> inference_pb2.TokenizeResponse:
        return inference_pb2.TokenizeResponse(token_ids=[ord(character) for character in request.text])

    def Detokenize(
        self, request: inference_pb2.DetokenizeRequest, context: grpc.ServicerContext
    ) -> inference_pb2.DetokenizeResponse:
        return inference_pb2.DetokenizeResponse(text="".join(map(chr, request.token_ids)))

    def GetState(
        self, request: executor_pb2.GetStateRequest, context: grpc.ServicerContext
    ) -> executor_pb2.GetStateResponse:
        return self.books()

    def books(self) -> executor_pb2.GetStateResponse:
        """The books, with why there are no plans."""
        answer = books()
        answer.planning_failure = self.planning_failure
        return answer

    def WatchState(
        self, request: executor_pb2.WatchStateRequest, context: grpc.ServicerContext
    ) -> Iterator[executor_pb2.WatchStateResponse]:
        before = executor_pb2.Pass(iteration=1, num_free_blocks=10, total_us=1000)
        yield executor_pb2.WatchStateResponse(state=self.books(), passes=[before])
        for iteration in (2, 3):
            pass_ = executor_pb2.Pass(
                iteration=iteration,
                num_prefill_tokens=6,
                num_prefill_requests=2,
                num_free_blocks=6,
                total_us=1000,
                plan_wait_us=10,
                plan_round_trip_us=500,
                plan_source=executor_pb2.PLAN_SOURCE_OVERLAPPED,
            )
            yield executor_pb2.WatchStateResponse(state=self.books(), passes=[pass_])
        left = threading.Event()
        context.add_callback(left.set)
        left.wait(30)

    def Drain(self, request: executor_pb2.DrainRequest, context: grpc.ServicerContext) -> executor_pb2.DrainResponse:
        return executor_pb2.DrainResponse()


class FakeScheduler(scheduler_pb2_grpc.SchedulerServiceServicer):
    """Answers every state with `response`, and keeps what it was asked."""

    def __init__(self, response: scheduler_pb2.PlanResponse):
        self.response = response
        self.requests: list[scheduler_pb2.PlanRequest] = []

    def Plan(self, request: scheduler_pb2.PlanRequest, context: grpc.ServicerContext) -> scheduler_pb2.PlanResponse:
        self.requests.append(request)
        if request.profile == "fast":
            refuse(context, Code.INVALID_ARGUMENT, "UNKNOWN_PROFILE", "no profile has the name fast", field="profile")
        return self.response

    def ListProfiles(
        self, request: scheduler_pb2.ListProfilesRequest, context: grpc.ServicerContext
    ) -> scheduler_pb2.ListProfilesResponse:
        return scheduler_pb2.ListProfilesResponse(profiles=[scheduler_pb2.Profile(name="fifo")])


def books() -> executor_pb2.GetStateResponse:
    """The books of an executor without requests, which has 10 blocks."""
    executor = state_pb2.ExecutorState(
        executor_id="fake",
        iteration=4,
        limits=state_pb2.ExecutorLimits(
            max_num_batched_tokens=64, max_num_seqs=4, block_size=16, num_blocks=10, max_model_len=160
        ),
        num_free_blocks=10,
    )
    state = state_pb2.ClusterState(now_us=1_000_000, executors=[executor])
    counters = executor_pb2.Counters(num_iterations=3, num_prefix_query_tokens=3000, num_prefix_hit_tokens=1024)
    return executor_pb2.GetStateResponse(state=state, counters=counters)


@contextmanager
def serving(
    service: FakeExecutor | FakeScheduler,
    *,
    credentials: grpc.ServerCredentials | None = None,
    interceptors: Sequence[grpc.ServerInterceptor] = (),
) -> Iterator[str]:
    """Serve on a free port of loopback, and give the address."""
    server = grpc.server(ThreadPoolExecutor(max_workers=16), interceptors=interceptors)
    if isinstance(service, FakeExecutor):
        inference_pb2_grpc.add_InferenceServiceServicer_to_server(service, server)
        executor_pb2_grpc.add_ExecutorServiceServicer_to_server(service, server)
    else:
        scheduler_pb2_grpc.add_SchedulerServiceServicer_to_server(service, server)
    place = "127.0.0.1:0"
    port = server.add_insecure_port(place) if credentials is None else server.add_secure_port(place, credentials)
    server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        server.stop(grace=None).wait()
