"""The inference service: parse, submit, stream. Whatever it decides is decided elsewhere."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from typing import Any, NoReturn

import grpc
import structlog

from executor_service.convert.answers import Answers, answers_of
from executor_service.convert.checks import unknown_token
from executor_service.convert.generate import Call, checked_name, prompt_tokens, started
from executor_service.engine.inbox import EngineClosedError, QueueFullError
from executor_service.engine.request import EndCause, EndedEvent, Event, FinishedEvent, TokensEvent
from executor_service.errors import RETRY_AFTER, ServiceError, abort, error_of_ending
from executor_service.executor import Executor, Place
from executor_service.gate import Gate, tenant_of
from executor_service.preparing import Preparing
from executor_service.streams import NameTakenError, Stream, Streams
from executor_service.text.errors import UnknownTokenError
from executor_service.traces import CallTrace, Traces
from metronome.inference.v1 import error_reason_pb2 as reasons
from metronome.inference.v1 import inference_pb2 as pb
from metronome.inference.v1.inference_pb2_grpc import InferenceServiceServicer
from service_shell.access import ANYBODY, Access, Caller

log = structlog.get_logger()

# Proxies and firewalls drop streams that are silent for a minute or more.
HEARTBEAT_INTERVAL_S = 15.0
# How soon a silent stream is looked after: that no scheduler plans is told then, and again with every heartbeat.
LOOK_INTERVAL_S = 3.0
# A client whose deadline passes hangs up, and its clock is ahead of ours by what the request took to come here.
DEADLINE_SLACK_S = 0.1

Context = grpc.aio.ServicerContext[Any, Any]


@dataclass(slots=True)
class Serving:
    """What the servicers share: who may call, the executor once it is loaded, and whether it still takes requests."""

    streams: Streams
    access: Access | None = None  # None: everybody may call
    executor: Executor | None = None
    draining: bool = False

    def caller(self, context: Context) -> Caller:
        """Raises ServiceError for those who are not let in."""
        caller = ANYBODY if self.access is None else self.access.caller(context)
        if caller is None:
            message = "the call has no token or certificate that this executor knows"
            raise ServiceError(reasons.ERROR_REASON_UNKNOWN_CALLER, message)
        return caller

    def ready(self) -> Executor:
        """Raises ServiceError while the model is loading."""
        if self.executor is None:
            raise ServiceError(reasons.ERROR_REASON_MODEL_LOADING, "the model is still loading")
        return self.executor


class InferenceServicer(InferenceServiceServicer):
    def __init__(self, serving: Serving, gate: Gate, traces: Traces, on_refusal: Callable[[str], None]) -> None:
        """``on_refusal``: gets the reason of each call of Generate that ends with an error."""
        self._on_refusal = on_refusal
        self._serving = serving
        self._gate = gate
        self._traces = traces
        self._preparing = Preparing()

    async def Generate(self, request: pb.GenerateRequest, context: Context) -> AsyncIterator[pb.GenerateResponse]:
        with self._traces.call(tuple(context.invocation_metadata() or ())) as trace:
            try:
                async with aclosing(self._generate(request, context, trace)) as responses:
                    async for response in responses:
                        yield response
            except ServiceError as error:
                trace.refused(error)
                self._on_refusal(error.reason_name)
                await _abort(context, error)

    async def _generate(
        self, request: pb.GenerateRequest, context: Context, trace: CallTrace
    ) -> AsyncGenerator[pb.GenerateResponse, None]:
        """Raises ServiceError."""
        caller = self._serving.caller(context)
        executor = self._serving.ready()
        self._check_not_draining()
        request.tenant = tenant_of(caller, checked_name(request.tenant, "tenant"))
        with self._gate.enter(request.tenant):
            call, stream = await self._accept(executor, request, context)
            trace.accepted(call)
            log.debug(
                "request_accepted",
                request_id=call.name,
                tenant=request.tenant,
                num_prompt_tokens=len(call.requests[0].prompt_token_ids),
                num_answers=len(call.requests),
            )
            try:
                sequence = 0
                yield pb.GenerateResponse(sequence=sequence, started=started(call))
                with_text = not request.output.omit_text
                answers = answers_of(call)
                async for response in _responses(executor, stream, answers, self._gate, trace, with_text=with_text):
                    sequence += 1
                    response.sequence = sequence
                    yield response
            finally:
                _end(executor, call, context)

    async def Cancel(self, request: pb.CancelRequest, context: Context) -> pb.CancelResponse:
        try:
            caller = self._serving.caller(context)
            executor = self._serving.ready()
            streams = self._serving.streams
            tenant = streams.tenant_of(request.request_id)
            # Of what is somebody else's, it is not even said that it is there.
            if tenant is None or not caller.may_act_for(tenant):
                message = f"no request {request.request_id!r} is in this executor"
                raise ServiceError(reasons.ERROR_REASON_UNKNOWN_REQUEST_ID, message, field="request_id")
        except ServiceError as error:
            await _abort(context, error)
        for request_id in streams.ids_of(request.request_id):
            executor.engine.cancel(request_id)
        return pb.CancelResponse()

    async def Tokenize(self, request: pb.TokenizeRequest, context: Context) -> pb.TokenizeResponse:
        try:
            self._serving.caller(context)
            executor = self._serving.ready()
            tokens = await self._preparing.run(
                partial(prompt_tokens, request, executor.facts), num_bytes=request.ByteSize()
            )
        except ServiceError as error:
            await _abort(context, error)
        return pb.TokenizeResponse(token_ids=tokens)

    async def Detokenize(self, request: pb.DetokenizeRequest, context: Context) -> pb.DetokenizeResponse:
        try:
            self._serving.caller(context)
            executor = self._serving.ready()
            try:
                text = await self._preparing.run(
                    partial(executor.tokenizer.decode, request.token_ids), num_bytes=request.ByteSize()
                )
            except UnknownTokenError as error:
                raise unknown_token(error, f"token_ids[{error.position}]") from error
        except ServiceError as error:
            await _abort(context, error)
        return pb.DetokenizeResponse(text=text)

    async def GetModelInfo(self, request: pb.GetModelInfoRequest, context: Context) -> pb.GetModelInfoResponse:
        try:
            self._serving.caller(context)
            executor = self._serving.ready()
        except ServiceError as error:
            await _abort(context, error)
        loaded = executor.loaded
        return pb.GetModelInfoResponse(
            model=loaded.name,
            architecture=type(loaded.model).__name__,
            dtype=str(loaded.dtype).removeprefix("torch."),
            device=str(loaded.device),
            num_parameters=loaded.num_parameters,
            vocab_size=executor.tokenizer.vocab_size,
            max_model_len=executor.facts.limits.max_request_tokens,
            has_chat_template=executor.tokenizer.has_chat_template,
            eos_token_ids=sorted(loaded.eos_token_ids),
        )

    async def _accept(self, executor: Executor, request: pb.GenerateRequest, context: Context) -> tuple[Call, Stream]:
        """Check a call and queue its requests. Raises ServiceError, and then leaves nothing behind."""
        streams = self._serving.streams
        time_remaining_s = context.time_remaining()
        prepare = partial(executor.prepare, request, time_remaining_s=time_remaining_s)
        compiles = request.sampling.WhichOneof("constraint") is not None
        call, sequences = await self._preparing.run(prepare, num_bytes=request.ByteSize(), compiles=compiles)
        self._check_not_draining()
        self._gate.take_prompt(request.tenant, len(call.requests[0].prompt_token_ids))
        try:
            stream = streams.open(call.ids, call.name, tenant=request.tenant)
        except NameTakenError as error:
            raise ServiceError(
                reasons.ERROR_REASON_DUPLICATE_REQUEST_ID,
                f"request {call.name!r} is in this executor already",
                field="request_id",
            ) from error
        try:
            executor.engine.submit(*sequences)
        except QueueFullError as error:
            streams.close(stream)
            raise ServiceError(reasons.ERROR_REASON_QUEUE_FULL, str(error), retry_after=RETRY_AFTER) from error
        except EngineClosedError as error:
            streams.close(stream)
            raise ServiceError(reasons.ERROR_REASON_DRAINING, str(error)) from error
        return call, stream

    def _check_not_draining(self) -> None:
        if self._serving.draining:
            message = "this executor drains and takes no new requests; try another"
            raise ServiceError(reasons.ERROR_REASON_DRAINING, message)


def _end(executor: Executor, call: Call, context: Context) -> None:
    """The client left, its time is over, or all is said; the engine leaves a request alone that has ended."""
    remaining_s = context.time_remaining()
    is_late = remaining_s is not None and remaining_s < DEADLINE_SLACK_S
    for request_id in call.ids:
        if is_late:
            executor.engine.cancel(request_id, EndCause.DEADLINE, "its deadline passed")
        else:
            executor.engine.cancel(request_id)


async def _responses(
    executor: Executor, stream: Stream, answers: Answers, gate: Gate, trace: CallTrace, *, with_text: bool
) -> AsyncIterator[pb.GenerateResponse]:
    """The events of a call up to the end of its last answer. Raises ServiceError where one has no answer."""
    silent_since, failure_is_told = time.monotonic(), False
    while not answers.are_complete:
        event = await _next_event(stream)
        match event:
            case None:
                place = await _place(executor, stream)
                is_due = time.monotonic() - silent_since >= HEARTBEAT_INTERVAL_S
                if is_due or bool(place.planning_failure) != failure_is_told:
                    silent_since, failure_is_told = time.monotonic(), bool(place.planning_failure)
                    heartbeat = pb.Heartbeat(num_ahead=place.num_ahead, detail=place.planning_failure)
                    yield pb.GenerateResponse(heartbeat=heartbeat)
            case TokensEvent() | FinishedEvent():
                if isinstance(event, TokensEvent):
                    gate.take_answer(stream.tenant, len(event.token_ids))
                else:
                    trace.heard(event)
                for response in answers.hear(event):
                    silent_since = time.monotonic()
                    if not with_text and response.HasField("delta"):
                        response.delta.ClearField("text")
                    yield response
            case EndedEvent():
                trace.heard(event)
                raise error_of_ending(event, tenant=stream.tenant)


async def _next_event(stream: Stream) -> Event | None:
    """None: nothing came for a while."""
    try:
        async with asyncio.timeout(LOOK_INTERVAL_S):
            return await stream.events.get()
    except TimeoutError:
        return None


async def _place(executor: Executor, stream: Stream) -> Place:
    """No place where the engine has stopped: then the end of the request is on its way."""
    try:
        return await asyncio.wrap_future(executor.place(stream.request_ids[0]))
    except EngineClosedError:
        return Place(num_ahead=0, planning_failure="")


async def _abort(context: Context, error: ServiceError) -> NoReturn:
    await abort(context, error)
    raise AssertionError("abort raises")
