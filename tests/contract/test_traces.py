"""One request through client, executor and scheduler as spans, received over OTLP by a collector of the tests."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from metronome_client import AsyncInferenceClient, Delta, Finished, GenerateOptions, InferenceClient, MetronomeError
from support.otlp_receiver import Receiver, receiving
from support.services import SCHEDULER, Service, executor_command, started, wait_until, wait_until_healthy

GENERATE = "metronome.inference.v1.InferenceService/Generate"
PLAN = "metronome.scheduler.v1.SchedulerService/Plan"
FIVE_TOKENS = GenerateOptions(max_tokens=5, temperature=0, ignore_eos=True, request_id="traced")


@pytest.fixture(scope="module")
def program() -> InMemorySpanExporter:
    """What the program that calls records of itself: OpenTelemetry has one provider for a process."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    trace.set_tracer_provider(provider)
    return exporter


@pytest.fixture(scope="module")
def receiver() -> Iterator[Receiver]:
    with receiving() as receiver:
        yield receiver


@pytest.fixture(scope="module")
def executor(services_directory: Path, tiny_model_directory: Path, receiver: Receiver) -> Iterator[Service]:
    environment = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://{receiver.address}",
        "OTEL_BSP_SCHEDULE_DELAY": "50",
        "OTEL_SERVICE_NAME": "",
    }
    command = [*SCHEDULER, "--port", "0", "--tracing", "otlp"]
    with started(services_directory, command, environment) as scheduler:
        command = executor_command(tiny_model_directory, "--tracing", "otlp", scheduler=[scheduler.address])
        with started(services_directory, command, environment) as executor:
            wait_until_healthy(executor)
            yield executor


def span_ids(span: ReadableSpan) -> tuple[bytes, bytes]:
    """Trace and span, as they are on the wire."""
    context = span.get_span_context()
    assert context is not None
    return context.trace_id.to_bytes(16, "big"), context.span_id.to_bytes(8, "big")


def test_a_request_is_one_trace_from_the_program_to_the_executor(
    executor: Service, receiver: Receiver, program: InMemorySpanExporter
) -> None:
    program.clear()
    with (
        trace.get_tracer("test").start_as_current_span("chat") as chat,
        InferenceClient(executor.address) as client,
    ):
        events = list(client.generate("a prompt", FIVE_TOKENS))
    assert isinstance(events[-1], Finished)
    calls = [span for span in program.get_finished_spans() if span.name == GENERATE]
    (call,) = calls
    assert call.parent == chat.get_span_context()
    trace_id, call_id = span_ids(call)
    wait_until(lambda: any(one.span.trace_id == trace_id for one in receiver.spans(GENERATE)))
    (served,) = [one for one in receiver.spans(GENERATE) if one.span.trace_id == trace_id]
    assert served.service == "metronome-executor"
    assert served.span.parent_span_id == call_id
    assert served.attributes["metronome.request_id"] == "traced"
    assert (served.attributes["gen_ai.usage.input_tokens"], served.attributes["gen_ai.usage.output_tokens"]) == (8, 5)
    events_in_order = sorted(served.span.events, key=lambda event: event.time_unix_nano)
    assert [event.name for event in events_in_order] == ["queued", "first_run", "first_token", "finished"]
    assert served.span.start_time_unix_nano <= events_in_order[-1].time_unix_nano <= served.span.end_time_unix_nano


def test_the_client_for_asyncio_does_the_same(
    executor: Service, receiver: Receiver, program: InMemorySpanExporter
) -> None:
    async def ask() -> int:
        async with AsyncInferenceClient(executor.address) as client:
            return sum([isinstance(event, Delta) async for event in client.generate("another prompt", FIVE_TOKENS)])

    program.clear()
    assert asyncio.run(ask()) > 0
    (call,) = program.get_finished_spans()
    trace_id, call_id = span_ids(call)
    wait_until(lambda: any(one.span.parent_span_id == call_id for one in receiver.spans(GENERATE)))
    assert trace_id in {one.span.trace_id for one in receiver.spans(GENERATE)}


def test_a_plan_is_a_span_of_the_executor_with_that_of_the_scheduler_under_it_and_passes_link_to_it(
    executor: Service, receiver: Receiver, program: InMemorySpanExporter
) -> None:
    with InferenceClient(executor.address) as client:
        list(client.generate("planned", FIVE_TOKENS))
    wait_until(lambda: bool(receiver.spans("iteration") and receiver.spans(PLAN, "metronome-scheduler")))
    wait_until(
        lambda: (
            {one.span.parent_span_id for one in receiver.spans(PLAN, "metronome-scheduler")}
            <= {one.span.span_id for one in receiver.spans(PLAN, "metronome-executor")}
        )
    )
    asked = {one.span.span_id: one for one in receiver.spans(PLAN, "metronome-executor")}
    for answered in receiver.spans(PLAN, "metronome-scheduler"):
        assert answered.span.trace_id == asked[answered.span.parent_span_id].span.trace_id
    for iteration in receiver.spans("iteration"):
        number = iteration.attributes["metronome.iteration"]
        assert iteration.attributes["metronome.plan_source"] in ("overlapped", "direct")
        (link,) = iteration.span.links
        wait_until(lambda wanted=link.span_id: any(one.span.span_id == wanted for one in receiver.spans(PLAN)))  # type: ignore[misc]
        (plan,) = [one for one in receiver.spans(PLAN) if one.span.span_id == link.span_id]
        assert plan.attributes["metronome.iteration"] == number


def test_a_refusal_is_an_error_with_its_reason_on_both_sides(
    executor: Service, receiver: Receiver, program: InMemorySpanExporter
) -> None:
    program.clear()
    with InferenceClient(executor.address) as client, pytest.raises(MetronomeError):
        list(client.generate("", FIVE_TOKENS))
    (call,) = program.get_finished_spans()
    assert not call.status.is_ok
    assert call.attributes is not None
    assert call.attributes["error.type"] == "EMPTY_PROMPT"
    _, call_id = span_ids(call)
    wait_until(lambda: any(one.span.parent_span_id == call_id for one in receiver.spans(GENERATE)))
    (served,) = [one for one in receiver.spans(GENERATE) if one.span.parent_span_id == call_id]
    assert served.attributes["error.type"] == "EMPTY_PROMPT"


def test_nothing_of_a_prompt_or_an_answer_is_in_a_trace(executor: Service, receiver: Receiver) -> None:
    with InferenceClient(executor.address) as client:
        answer = "".join(
            event.text for event in client.generate("a secret of mine", FIVE_TOKENS) if isinstance(event, Delta)
        )
    wait_until(lambda: any(one.attributes.get("gen_ai.usage.input_tokens") == 16 for one in receiver.spans(GENERATE)))
    text = "".join(str(one.span) for one in receiver.spans(GENERATE))
    assert "secret" not in text
    assert answer not in text


def test_without_the_packages_the_start_fails_and_says_what_to_install(services_directory: Path) -> None:
    import subprocess

    program = (
        "import sys\nsys.modules['opentelemetry.sdk'] = None\n"
        "from scheduler_service.__main__ import main\nsys.argv = ['x', '--port', '0', '--tracing', 'otlp']\nmain()"
    )
    start = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert start.returncode == 1
    assert "run `pip install 'metronome-llm[tracing]'`" in start.stderr
