"""Traces by OpenTelemetry.

- A call of Generate is a span, a child of the client's where the call brings a W3C context. Its events say when each
  answer first ran, had its first token and ended: what comes before the first is the queue, then prefill, then decodes.
- A plan that is asked for is a span of a trace of its own, and the scheduler's span its child.
- A pass is a span too, linked to the plan that it ran by. Both carry the iteration's number.

Requests and passes are not linked: a pass has as many requests as the batch, and a request as many passes as tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from opentelemetry.context import Context
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.trace import Link, Span, SpanContext, SpanKind, StatusCode, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from executor_service.convert.generate import Call
from executor_service.engine.plan import PlanSource
from executor_service.engine.record import PassRecord
from executor_service.engine.request import EndedEvent, FinishedEvent, Request
from executor_service.errors import ServiceError
from executor_service.traces import CallTrace, Metadata, PlanTrace, Traces

_GENERATE = "metronome.inference.v1.InferenceService/Generate"
_PLAN = "metronome.scheduler.v1.SchedulerService/Plan"
_US = 1_000  # nanoseconds
_PROPAGATOR = TraceContextTextMapPropagator()
_MAX_UNUSED_PLANS = 8  # a pass comes soon after its plan, or never


class OtelTraces(Traces):
    def __init__(self, provider: TracerProvider) -> None:
        self._provider = provider
        self._tracer = provider.get_tracer("metronome.executor")
        self._plans: dict[int, SpanContext] = {}  # by iteration; written and read by the engine's thread alone

    @contextmanager
    def call(self, metadata: Metadata) -> Iterator[CallTrace]:
        span = self._tracer.start_span(_GENERATE, context=_parent(metadata), kind=SpanKind.SERVER)
        try:
            yield _OtelCall(span)
        finally:
            span.end()

    def plan(self, *, executor_id: str, iteration: int, num_requests: int) -> PlanTrace:
        attributes: dict[str, str | int] = {
            "rpc.system": "grpc",
            "metronome.executor_id": executor_id,
            "metronome.iteration": iteration,
            "metronome.num_requests": num_requests,
        }
        # Whatever asks for it: it is for all requests, and so part of the trace of none.
        span = self._tracer.start_span(_PLAN, context=Context(), kind=SpanKind.CLIENT, attributes=attributes)
        self._plans[iteration] = span.get_span_context()
        while len(self._plans) > _MAX_UNUSED_PLANS:
            del self._plans[next(iter(self._plans))]
        return _OtelPlan(span)

    def pass_done(self, executor_id: str, record: PassRecord) -> None:
        plan = self._plans.pop(record.iteration, None)
        is_followed = plan is not None and record.plan_source is not PlanSource.SAFE
        span = self._tracer.start_span(
            "iteration",
            context=Context(),
            start_time=record.start_time_us * _US,
            links=[Link(plan)] if plan is not None and is_followed else [],
            attributes={
                "metronome.executor_id": executor_id,
                "metronome.iteration": record.iteration,
                "metronome.plan_source": record.plan_source.name.lower(),
                "metronome.num_prefill_tokens": record.num_prefill_tokens,
                "metronome.num_decode_tokens": record.num_decode_tokens,
                "metronome.num_prefill_requests": record.num_prefill_requests,
                "metronome.num_decode_requests": record.num_decode_requests,
                "metronome.plan_wait_us": record.plan_wait_us,
            },
        )
        span.end(end_time=(record.start_time_us + record.build_us + record.forward_us + record.emit_us) * _US)

    def close(self) -> None:
        self._provider.shutdown()


class _OtelCall:
    def __init__(self, span: Span) -> None:
        self._span = span
        self._requests: dict[int, tuple[int, Request]] = {}  # by id: the answer's index, and its request

    def accepted(self, call: Call) -> None:
        self._requests = {request.id: (index, request) for index, request in enumerate(call.requests)}
        first = call.requests[0]
        self._span.set_attributes(
            {
                "rpc.system": "grpc",
                "gen_ai.operation.name": "text_completion",
                "gen_ai.request.max_tokens": first.stopping.max_output_tokens,
                "gen_ai.request.choice.count": len(call.requests),
                "gen_ai.usage.input_tokens": len(first.prompt_token_ids),
                "metronome.request_id": call.name,
                "metronome.tenant": first.tenant,
            }
        )

    def heard(self, event: FinishedEvent | EndedEvent) -> None:
        index, request = self._requests[event.request_id]
        if isinstance(event, EndedEvent):
            self._span.add_event("ended", {"index": index, "cause": event.cause.name.lower()})
            return
        usage, arrival_us = event.usage, request.arrival_time_us
        times_us = {
            "queued": 0,
            "first_run": usage.queue_time_us,
            "first_token": usage.time_to_first_token_us,
            "finished": usage.total_time_us,
        }
        for name, time_us in times_us.items():
            attributes: dict[str, int | str] = {"index": index}
            if name == "finished":
                attributes |= {
                    "finish_reason": event.finish_reason.name.lower(),
                    "output_tokens": usage.num_output_tokens,
                    "cached_tokens": usage.num_cached_tokens,
                    "preemptions": usage.num_preemptions,
                }
            self._span.add_event(name, attributes, timestamp=(arrival_us + time_us) * _US)
        self._span.set_attributes(
            {
                "gen_ai.usage.output_tokens": usage.num_output_tokens,
                "gen_ai.response.finish_reasons": (event.finish_reason.name.lower(),),
            }
        )

    def refused(self, error: ServiceError) -> None:
        self._span.set_attribute("error.type", error.reason_name)
        self._span.set_status(StatusCode.ERROR, str(error))


class _OtelPlan:
    def __init__(self, span: Span) -> None:
        self._span = span
        carrier: dict[str, str] = {}
        _PROPAGATOR.inject(carrier, context=set_span_in_context(span))
        self.metadata: Sequence[tuple[str, str]] = tuple(carrier.items())

    def answered(self) -> None:
        self._span.end()

    def failed(self, detail: str) -> None:
        self._span.set_status(StatusCode.ERROR, detail)
        self._span.end()

    def given_up(self) -> None:
        self._span.set_attribute("metronome.given_up", True)
        self._span.end()


def _parent(metadata: Metadata) -> Context:
    """The context that a call brings; none where it brings none, or nothing that is one."""
    carrier = {key: value for key, value in metadata if isinstance(value, str)}
    return _PROPAGATOR.extract(carrier, context=Context())
