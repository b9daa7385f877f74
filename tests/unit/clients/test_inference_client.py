"""The clients against a scripted executor: events, cancellation, errors; the sync and the asyncio one alike."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import aclosing, closing

import grpc
import pytest

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
