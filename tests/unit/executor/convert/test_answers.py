"""Several answers of one call: under which index each goes out, and which are the most likely."""

from __future__ import annotations

import itertools

import pytest

from executor_service.convert.answers import Answers, answers_of
from executor_service.convert.generate import Call
from executor_service.engine.request import FinishedEvent, FinishReason, TokenLogprobs, TokensEvent, Usage
from metronome.inference.v1 import inference_pb2 as pb
from support.engine import request_of

USAGE = Usage(
    num_prompt_tokens=1,
    num_output_tokens=1,
    num_cached_tokens=0,
    num_preemptions=0,
    queue_time_us=0,
    time_to_first_token_us=0,
    total_time_us=0,
)


def call_of(ids: str, num_given: int, *, tells_logprobs: bool = False) -> Call:
    """Requests named by digits."""
    requests = tuple(request_of(int(id), [1], 9) for id in ids)
    return Call(requests=requests, num_given=num_given, tells_logprobs=tells_logprobs)


def tokens(id: int, *logprobs: float, prompt: tuple[TokenLogprobs, ...] = ()) -> TokensEvent:
    """One token, whose id and text say which request's it is."""
    told = tuple(TokenLogprobs(logprob=logprob) for logprob in logprobs)
    return TokensEvent(request_id=id, token_ids=(id,), text=str(id), logprobs=told, prompt_logprobs=prompt)


def end(id: int) -> FinishedEvent:
    return FinishedEvent(request_id=id, finish_reason=FinishReason.LENGTH, matched_stop="", usage=USAGE)


def hear(answers: Answers, *events: TokensEvent | FinishedEvent) -> list[pb.GenerateResponse]:
    return list(itertools.chain.from_iterable(answers.hear(event) for event in events))


def gist(responses: list[pb.GenerateResponse]) -> list[str]:
    return [
        f"{response.delta.index}:{response.delta.text}"
        if response.HasField("delta")
        else f"{response.finished.index}:end"
        for response in responses
    ]


def test_answers_go_out_as_they_come_each_under_its_index() -> None:
    answers = answers_of(call_of("57", 2))
    assert gist(hear(answers, tokens(7), tokens(5), end(5), tokens(7))) == ["1:7", "0:5", "0:end", "1:7"]
    assert not answers.are_complete
    assert gist(hear(answers, end(7))) == ["1:end"]
    assert answers.are_complete


def test_the_best_go_out_when_all_are_complete_best_first_and_whole() -> None:
    answers = answers_of(call_of("123", 2))
    early = [tokens(1, -2.0), tokens(2, -1.0), tokens(3, -0.1), end(1), tokens(2, -1.0), tokens(3, -0.5), end(3)]
    assert hear(answers, *early) == []
    assert not answers.are_complete
    assert gist(hear(answers, end(2))) == ["0:33", "0:end", "1:22", "1:end"]
    assert answers.are_complete


def test_a_long_answer_is_not_behind_for_its_length() -> None:
    answers = answers_of(call_of("12", 1))
    long = [tokens(2, -0.5) for _ in range(5)]
    assert gist(hear(answers, tokens(1, -0.6), end(1), *long, end(2))) == ["0:22222", "0:end"]


def test_of_equally_likely_answers_the_first_comes_first() -> None:
    answers = answers_of(call_of("123", 2))
    events = [tokens(id, -1.0) for id in (3, 2, 1)]
    assert gist(hear(answers, *events, end(3), end(2), end(1)))[::2] == ["0:1", "1:2"]


@pytest.mark.parametrize("tells", [True, False])
def test_log_probabilities_go_out_with_the_best_where_they_were_asked_for(tells: bool) -> None:
    prompt = (TokenLogprobs(logprob=-9.0),)
    answers = answers_of(call_of("12", 1, tells_logprobs=tells))
    first, _ = hear(answers, tokens(1, -3.0, prompt=prompt), tokens(2, -1.0), end(1), end(2))
    assert [told.logprob for told in first.delta.logprobs] == ([-1.0] if tells else [])
    assert [told.logprob for told in first.delta.prompt_logprobs] == [0.0, -9.0]
