"""The clients against a scripted executor: events, cancellation, errors; the sync and the asyncio one alike."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import aclosing, closing

import grpc
import pytest

from metronome.inference.v1 import inference_pb2
from metronome_client import (
    AsyncInferenceClient,
    ChatMessage,
    Event,
    Finished,
    FinishReason,
    GenerateOptions,
    InferenceClient,
    MetronomeError,
    Started,
    TokenLogprobs,
)
from metronome_client.requests import generate_request
from support.fake_services import FakeExecutor, serving


@pytest.fixture
def executor() -> FakeExecutor:
    return FakeExecutor()


@pytest.fixture
def address(executor: FakeExecutor) -> Iterator[str]:
    with serving(executor) as address:
        yield address


def sync_events(address: str, prompt: str) -> list[Event]:
    with InferenceClient(address) as client:
        return list(client.generate(prompt, GenerateOptions(max_tokens=4)))


def async_events(address: str, prompt: str) -> list[Event]:
    async def collect() -> list[Event]:
        async with AsyncInferenceClient(address) as client:
            return [event async for event in client.generate(prompt, GenerateOptions(max_tokens=4))]

    return asyncio.run(collect())


both = pytest.mark.parametrize("events_of", [sync_events, async_events])


@both
def test_an_answer_starts_goes_on_and_finishes(events_of, address):
    first, *deltas, last = events_of(address, "Tell me")

    assert isinstance(first, Started)
    assert first.num_prompt_tokens == 3
    assert "".join(delta.text for delta in deltas) == " once upon a time"
    assert [delta.token_ids for delta in deltas] == [(0,), (1,), (2,), (3,)]
    assert isinstance(last, Finished)
    assert last.reason is FinishReason.LENGTH
    assert last.usage.num_output_tokens == 4


@both
def test_a_refused_request_raises_code_reason_and_figures(events_of, address):
    with pytest.raises(MetronomeError) as failure:
        events_of(address, "fail")

    error = failure.value
    assert (error.code, error.reason, error.message) == (
        grpc.StatusCode.INVALID_ARGUMENT,
        "EXCEEDS_MODEL_LEN",
        "too long",
    )
    assert error.metadata == {"needed_tokens": "3000"}


@both
def test_nobody_there_is_unavailable_without_a_reason(events_of):
    with pytest.raises(MetronomeError) as failure:
        events_of("127.0.0.1:1", "Tell me")

    assert failure.value.code is grpc.StatusCode.UNAVAILABLE
    assert failure.value.reason == ""


def test_leaving_the_iterator_cancels_the_request(executor, address):
    with InferenceClient(address) as client, closing(client.generate("hang")) as events:
        next(events)

    assert executor.cancelled.wait(10)


def test_leaving_the_async_iterator_cancels_the_request(executor, address):
    async def leave() -> None:
        async with AsyncInferenceClient(address) as client:
            async with aclosing(client.generate("hang")) as events:
                await anext(events)
            # Off the event loop: cancelling needs it.
            assert await asyncio.to_thread(executor.cancelled.wait, 10)

    asyncio.run(leave())


def test_the_other_calls_answer(address):
    with InferenceClient(address) as client:
        assert client.tokenize("ab") == (97, 98)
        assert client.detokenize((97, 98)) == "ab"
        assert client.model_info().model == "fake"
        assert client.state().state.executors[0].executor_id == "fake"
        with closing(client.watch_state()) as changes:
            assert next(changes).passes[0].iteration == 1
        client.drain(timeout_s=5)
        with pytest.raises(MetronomeError, match="no request nobody"):
            client.cancel("nobody")


def test_a_request_says_only_what_was_chosen():
    request = generate_request("text", GenerateOptions())

    assert request.text == "text"
    assert not request.sampling.HasField("temperature")
    assert not request.sampling.HasField("seed")
    assert not request.stopping.HasField("max_tokens")


def test_everything_that_may_be_asked_for_is_sent():
    options = GenerateOptions(
        min_p=0.5,
        repetition_penalty=2.0,
        presence_penalty=-1.0,
        frequency_penalty=1.5,
        logit_bias={3: -4.0},
        allowed_token_ids=(1, 2),
        banned_token_ids=(2,),
        regex="",
        min_tokens=3,
        echo=True,
        logprobs=0,
        prompt_logprobs=5,
        omit_text=True,
    )
    request = generate_request("text", options)

    assert request.sampling == inference_pb2.SamplingParameters(
        min_p=0.5,
        repetition_penalty=2,
        presence_penalty=-1,
        frequency_penalty=1.5,
        logit_bias={3: -4},
        allowed_token_ids=[1, 2],
        banned_token_ids=[2],
        regex="",
    )
    assert request.sampling.WhichOneof("constraint") == "regex"
    assert request.stopping.min_tokens == 3
    assert request.output == inference_pb2.OutputOptions(echo=True, logprobs=0, prompt_logprobs=5, omit_text=True)


@pytest.mark.parametrize("schema", ['{"type": "integer"}', {"type": "integer"}])
def test_a_schema_is_json_or_the_value(schema):
    request = generate_request("text", GenerateOptions(json_schema=schema))

    assert request.sampling.json_schema == '{"type": "integer"}'


def test_an_answer_has_one_form():
    with pytest.raises(ValueError, match="json_schema and grammar"):
        generate_request("text", GenerateOptions(json_schema="{}", grammar="start: 'a'"))


def test_log_probabilities_come_with_their_tokens(address):
    with InferenceClient(address) as client:
        _, first, second, *_ = client.generate("x", GenerateOptions(logprobs=2, prompt_logprobs=0))

    told = TokenLogprobs(logprob=-0.5, top_token_ids=(97, 98), top_logprobs=(-0.5, -1.25))
    assert (first.logprobs, second.logprobs) == ((told,), (told,))
    assert first.prompt_logprobs == (None, TokenLogprobs(logprob=-3.0, top_token_ids=(), top_logprobs=()))
    assert second.prompt_logprobs == ()


def test_zero_is_a_choice():
    request = generate_request("text", GenerateOptions(temperature=0.0, seed=0))

    assert request.sampling.HasField("temperature")
    assert request.sampling.HasField("seed")


def test_a_prompt_is_text_tokens_or_messages():
    assert generate_request("text", GenerateOptions()).WhichOneof("prompt") == "text"
    assert list(generate_request([1, 2], GenerateOptions()).token_ids.ids) == [1, 2]
    chat = generate_request([ChatMessage("user", "hello")], GenerateOptions()).messages
    assert [(turn.role, turn.content) for turn in chat.messages] == [("user", "hello")]
    assert generate_request([], GenerateOptions()).WhichOneof("prompt") == "token_ids"
