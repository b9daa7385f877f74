"""A small executor with a chat model: one request runs at a time, four may wait."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from metronome.inference.v1 import inference_pb2 as pb
from metronome.scheduler.v1 import state_pb2
from support.model_directory import CHAT_TEMPLATE, save_tiny_model
from support.services import Service, running_executor, wait_until
from support.wire import TIMEOUT_SECONDS, Client, connected, details_of, greedy

LONG = 480  # tokens: seconds of work


@pytest.fixture(scope="module")
def narrow(services_directory: Path, tmp_path_factory: pytest.TempPathFactory, scheduler: Service) -> Iterator[Client]:
    model = save_tiny_model(tmp_path_factory.mktemp("chat-model"), chat_template=CHAT_TEMPLATE)
    arguments = ("--num-blocks", "32", "--max-num-seqs", "1", "--max-num-waiting", "4")
    with (
        running_executor(services_directory, model, *arguments, scheduler=[scheduler.address]) as service,
        connected(service.address) as client,
    ):
        yield client


@pytest.fixture
def running(narrow: Client) -> Iterator[grpc.CallIterator]:
    """A request that runs for seconds, alone."""
    wait_until(narrow.is_idle)
    stream = narrow.open(greedy("running", LONG, request_id="running"))
    next(stream)
    yield stream
    stream.cancel()
    wait_until(narrow.is_idle)


def num_waiting(client: Client) -> int:
    return list(client.executor().requests.status).count(state_pb2.REQUEST_STATUS_WAITING)


def test_the_queue_has_an_end(narrow: Client, running: grpc.CallIterator) -> None:
    """Case 7: A runs, B to E wait, F is refused; when A has ended, G is accepted."""
    waiting = [narrow.open(greedy(f"waiting {number}", 2)) for number in range(4)]
    refusal = narrow.refused(greedy("one too many", 2, request_id="F"))
    assert (refusal.code, refusal.info.reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "QUEUE_FULL")
    assert refusal.retry is not None
    assert refusal.retry.retry_delay.ToTimedelta().total_seconds() > 0
    books = narrow.books()
    assert "F" not in {name.request_id for name in books.request_names}
    assert len(books.request_names) == 5
    assert num_waiting(narrow) == 4
    running.cancel()
    wait_until(lambda: num_waiting(narrow) < 4)
    assert len(narrow.generate(greedy("G", 2)).tokens) == 2
    assert [sum(len(response.delta.token_ids) for response in stream) for stream in waiting] == [2] * 4


def test_answers_to_one_prompt_take_a_place_each_or_none(narrow: Client, running: grpc.CallIterator) -> None:
    """Case 7: two places are left, and three answers are asked for."""
    waiting = [narrow.open(greedy(f"waiting {number}", 2)) for number in range(2)]
    request = greedy("three answers", 2, request_id="three")
    request.sampling.n = 3
    refusal = narrow.refused(request)
    assert (refusal.code, refusal.info.reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "QUEUE_FULL")
    assert num_waiting(narrow) == 2
    assert "three" not in {name.request_id for name in narrow.books().request_names}
    request.sampling.n = 2
    stream = narrow.open(request)
    assert num_waiting(narrow) == 4
    running.cancel()
    assert sum(len(response.delta.token_ids) for response in stream) == 4
    assert [sum(len(response.delta.token_ids) for response in stream) for stream in waiting] == [2] * 2


def test_more_answers_than_can_ever_be_there_are_not_asked_to_come_again(narrow: Client) -> None:
    request = greedy("five answers", 2)
    request.sampling.n = 5
    refusal = narrow.refused(request)
    assert (refusal.info.reason, refusal.fields) == ("OUT_OF_RANGE", ["sampling.n"])


def test_an_id_is_taken_while_its_request_waits(narrow: Client, running: grpc.CallIterator) -> None:
    """Case 32, while the first waits."""
    first = narrow.open(greedy("first", 3, request_id="r1"))
    refusal = narrow.refused(greedy("second", 3, request_id="r1"))
    assert (refusal.code, refusal.info.reason) == (grpc.StatusCode.ALREADY_EXISTS, "DUPLICATE_REQUEST_ID")
    running.cancel()
    assert sum(len(response.delta.token_ids) for response in first) == 3


def test_a_deadline_in_the_queue_costs_nothing(narrow: Client, running: grpc.CallIterator) -> None:
    """Case 34, B."""
    before = narrow.books().counters
    stream = narrow.open(greedy("never runs", 4), timeout=0.3)
    with pytest.raises(grpc.RpcError) as caught:
        list(stream)
    assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    wait_until(lambda: narrow.books().counters.num_expired > before.num_expired)
    after = narrow.books().counters
    assert after.num_prefill_tokens == before.num_prefill_tokens
    assert after.num_cancelled == before.num_cancelled
    # The call gives its name back when it hears of the end, which is after the engine has counted it.
    wait_until(lambda: [name.request_id for name in narrow.books().request_names] == ["running"])


def test_a_deadline_ends_a_request_that_decodes(narrow: Client) -> None:
    """Case 34, C."""
    wait_until(narrow.is_idle)
    before = narrow.books().counters
    stream = narrow.open(greedy("runs too long", LONG), timeout=0.5)
    events = []
    with pytest.raises(grpc.RpcError) as caught:
        events.extend(response.WhichOneof("event") for response in stream)
    assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    assert "finished" not in events
    wait_until(narrow.is_idle)
    after = narrow.books().counters
    assert after.num_expired - before.num_expired == 1
    assert (after.num_finished, after.num_cancelled) == (before.num_finished, before.num_cancelled)


def conversation(*turns: tuple[str, str]) -> pb.ChatMessages:
    return pb.ChatMessages(messages=[pb.ChatMessage(role=role, content=content) for role, content in turns])


def test_a_conversation_is_written_out_by_the_template(narrow: Client) -> None:
    messages = conversation(("user", "hello"), ("assistant", "yes?"))
    text = "user: hello\nassistant: yes?\n"
    request = greedy("", 6)
    request.messages.CopyFrom(messages)
    assert narrow.generate(request).tokens == narrow.generate(greedy(text, 6)).tokens
    tokenized = narrow.inference.Tokenize(pb.TokenizeRequest(messages=messages), timeout=TIMEOUT_SECONDS).token_ids
    assert len(tokenized) == len(text)
    assert narrow.inference.GetModelInfo(pb.GetModelInfoRequest(), timeout=TIMEOUT_SECONDS).has_chat_template


def test_a_conversation_that_the_template_refuses_is_invalid(narrow: Client) -> None:
    request = greedy("", 6)
    request.messages.CopyFrom(conversation(("assistant", "I begin")))
    refusal = narrow.refused(request)
    assert (refusal.code, refusal.info.reason) == (grpc.StatusCode.INVALID_ARGUMENT, "INVALID_TEXT")
    assert refusal.fields == ["messages"]
    assert "the user speaks first" in refusal.message


def test_the_last_token_needs_no_place(narrow: Client) -> None:
    """Case 3 over the wire: 511 tokens are stored, 512 is the model's length."""
    assert len(narrow.generate(greedy("x" * 500, 12)).tokens) == 12
    with pytest.raises(grpc.RpcError) as caught:
        narrow.generate(greedy("x" * 500, 13))
    assert details_of(caught.value).info.reason == "EXCEEDS_MODEL_LEN"
