"""Requests as clients send them: every bad one names what is wrong, and every default is filled in."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from typing import Any

import pytest
from google.protobuf.json_format import ParseDict
from tokenizers import normalizers, processors

from executor_service.convert.generate import Call, ModelFacts, delta, finished, parse_generate, prompt_tokens, started
from executor_service.engine.request import (
    FinishedEvent,
    FinishReason,
    OutputOptions,
    Request,
    TokenLogprobs,
    TokensEvent,
    Usage,
)
from executor_service.errors import ServiceError
from executor_service.sampling.constraints import ConstraintCompiler
from executor_service.text.tokenizer import Tokenizer
from metronome.inference.v1 import error_reason_pb2 as reasons
from metronome.inference.v1 import inference_pb2 as pb
from support.engine import limits_of
from support.tiny_models import BOS_TOKEN_ID, EOS_TOKEN_ID, VOCAB_SIZE, byte_tokenizer

FACTS = ModelFacts(
    limits=limits_of(num_blocks=8, max_model_len=256),
    tokenizer=Tokenizer(byte_tokenizer(), vocab_size=VOCAB_SIZE),
    eos_token_ids=frozenset({EOS_TOKEN_ID}),
    max_prompt_bytes=1024,
    constraints=ConstraintCompiler(byte_tokenizer(), vocab_size=VOCAB_SIZE, end_token_ids=[EOS_TOKEN_ID]),
)


class Untouchable(Tokenizer):
    """Fails whoever asks it for anything."""

    def __init__(self) -> None: ...


def message_of(**fields: Any) -> pb.GenerateRequest:
    """A request of two tokens, with fields as in JSON over it; ``None`` takes one out."""
    fields = {"text": "hi", **fields}
    return ParseDict({name: value for name, value in fields.items() if value is not None}, pb.GenerateRequest())


ALL_SAMPLING: dict[str, Any] = {
    "temperature": 0.5,
    "topK": 7,
    "topP": 0.75,
    "minP": 0.25,
    "seed": "3",
    "repetitionPenalty": 1.5,
    "presencePenalty": -2,
    "frequencyPenalty": 2,
    "logitBias": {"0": -100, "299": 100},
    "allowedTokenIds": [1, 2, 3],
    "bannedTokenIds": [3],
    "regex": "a+",
}


def call_of(message: pb.GenerateRequest) -> Call:
    return parse_generate(message, FACTS, ids=itertools.count(5), now_us=1000, deadline_us=2000)


def parse(message: pb.GenerateRequest) -> Request:
    """The request of the one answer."""
    (request,) = call_of(message).requests
    return request


def token_ids(*ids: int) -> dict[str, Any]:
    return {"text": None, "tokenIds": {"ids": ids}}


def sampling(**fields: Any) -> dict[str, Any]:
    return {"sampling": fields}


def stopping(**fields: Any) -> dict[str, Any]:
    return {"stopping": fields}


def output(**fields: Any) -> dict[str, Any]:
    return {"output": fields}


EMPTY, RANGE = "EMPTY_PROMPT", "OUT_OF_RANGE"
BAD: list[tuple[dict[str, Any], str, str]] = [
    ({"text": ""}, EMPTY, "text"),
    ({"text": None}, EMPTY, "prompt"),
    (token_ids(), EMPTY, "token_ids"),
    ({"text": None, "messages": {"messages": []}}, EMPTY, "messages.messages"),
    ({"text": None, "messages": {"messages": [{"role": "user", "content": "hi"}]}}, "NO_CHAT_TEMPLATE", ""),
    (token_ids(1, -1), "UNKNOWN_TOKEN", "token_ids.ids[1]"),
    (token_ids(VOCAB_SIZE), "UNKNOWN_TOKEN", "token_ids.ids[0]"),
    ({"text": "x" * 256}, "EXCEEDS_MODEL_LEN", ""),
    ({"text": "x" * 129}, "EXCEEDS_KV_CACHE", ""),
    ({"text": "x" * 120, **stopping(maxTokens=10)}, "EXCEEDS_KV_CACHE", ""),
    (stopping(maxTokens=255), "EXCEEDS_MODEL_LEN", ""),
    (stopping(maxTokens=0), RANGE, "stopping.max_tokens"),
    (stopping(maxTokens=-1), RANGE, "stopping.max_tokens"),
    (stopping(stop=[""]), RANGE, "stopping.stop"),
    (stopping(stop=["a", ""]), RANGE, "stopping.stop"),
    (stopping(stop=["a"] * 17), RANGE, "stopping.stop"),
    (stopping(stop=["a" * 9000]), RANGE, "stopping.stop"),
    (stopping(stopTokenIds=[VOCAB_SIZE]), "UNKNOWN_TOKEN", "stopping.stop_token_ids[0]"),
    (stopping(stopTokenIds=[-1]), "UNKNOWN_TOKEN", "stopping.stop_token_ids[0]"),
    (stopping(stopTokenIds=[1] * 65), RANGE, "stopping.stop_token_ids"),
    (stopping(minTokens=-1), RANGE, "stopping.min_tokens"),
    (stopping(minTokens=5, maxTokens=4), RANGE, "stopping.min_tokens"),
    (stopping(minTokens=128), RANGE, "stopping.min_tokens"),
    (sampling(temperature=-0.1), RANGE, "sampling.temperature"),
    (sampling(temperature=101), RANGE, "sampling.temperature"),
    (sampling(temperature="NaN"), RANGE, "sampling.temperature"),
    (sampling(temperature="Infinity"), RANGE, "sampling.temperature"),
    (sampling(temperature="-Infinity"), RANGE, "sampling.temperature"),
    (sampling(topK=-1), RANGE, "sampling.top_k"),
    (sampling(topP=0), RANGE, "sampling.top_p"),
    (sampling(topP=1.5), RANGE, "sampling.top_p"),
    (sampling(topP=-0.5), RANGE, "sampling.top_p"),
    (sampling(topP="NaN"), RANGE, "sampling.top_p"),
    (sampling(n=0), RANGE, "sampling.n"),
    (sampling(n=-3), RANGE, "sampling.n"),
    (sampling(n=65), RANGE, "sampling.n"),
    (sampling(bestOf=0), RANGE, "sampling.best_of"),
    (sampling(bestOf=65), RANGE, "sampling.best_of"),
    (sampling(n=3, bestOf=2), RANGE, "sampling.best_of"),
    (sampling(repetitionPenalty=0), RANGE, "sampling.repetition_penalty"),
    (sampling(repetitionPenalty=-1), RANGE, "sampling.repetition_penalty"),
    (sampling(repetitionPenalty=1e-7), RANGE, "sampling.repetition_penalty"),
    (sampling(repetitionPenalty=101), RANGE, "sampling.repetition_penalty"),
    (sampling(repetitionPenalty="NaN"), RANGE, "sampling.repetition_penalty"),
    (sampling(minP=-0.1), RANGE, "sampling.min_p"),
    (sampling(minP=1.1), RANGE, "sampling.min_p"),
    (sampling(minP="NaN"), RANGE, "sampling.min_p"),
    (sampling(presencePenalty=2.5), RANGE, "sampling.presence_penalty"),
    (sampling(presencePenalty="NaN"), RANGE, "sampling.presence_penalty"),
    (sampling(frequencyPenalty=-2.5), RANGE, "sampling.frequency_penalty"),
    (sampling(frequencyPenalty="-Infinity"), RANGE, "sampling.frequency_penalty"),
    (sampling(logitBias={"1": 100.5}), RANGE, "sampling.logit_bias[1]"),
    (sampling(logitBias={"1": "NaN"}), RANGE, "sampling.logit_bias[1]"),
    (sampling(logitBias={"-1": 1.0}), "UNKNOWN_TOKEN", "sampling.logit_bias[-1]"),
    (sampling(logitBias={str(VOCAB_SIZE): 1.0}), "UNKNOWN_TOKEN", f"sampling.logit_bias[{VOCAB_SIZE}]"),
    (sampling(logitBias={str(i): 1.0 for i in range(1025)}), RANGE, "sampling.logit_bias"),
    (sampling(allowedTokenIds=[1, VOCAB_SIZE]), "UNKNOWN_TOKEN", "sampling.allowed_token_ids[1]"),
    (sampling(allowedTokenIds=[-1]), "UNKNOWN_TOKEN", "sampling.allowed_token_ids[0]"),
    (sampling(allowedTokenIds=[1] * (VOCAB_SIZE + 1)), RANGE, "sampling.allowed_token_ids"),
    (sampling(allowedTokenIds=[1, 2], bannedTokenIds=[2, 1, 3]), RANGE, "sampling.allowed_token_ids"),
    (sampling(bannedTokenIds=[VOCAB_SIZE]), "UNKNOWN_TOKEN", "sampling.banned_token_ids[0]"),
    (sampling(bannedTokenIds=[1] * 1025), RANGE, "sampling.banned_token_ids"),
    (sampling(bannedTokenIds=list(range(VOCAB_SIZE))), RANGE, "sampling.banned_token_ids"),
    (sampling(jsonSchema="{"), "INVALID_CONSTRAINT", "sampling.json_schema"),
    (sampling(jsonSchema=""), "INVALID_CONSTRAINT", "sampling.json_schema"),
    (sampling(jsonSchema='{"type": "nonsense"}'), "INVALID_CONSTRAINT", "sampling.json_schema"),
    (sampling(regex="a("), "INVALID_CONSTRAINT", "sampling.regex"),
    (sampling(regex="a" * 4_097), "INVALID_CONSTRAINT", "sampling.regex"),
    (sampling(grammar=""), "INVALID_CONSTRAINT", "sampling.grammar"),
    (sampling(grammar='start: start "a"'), "INVALID_CONSTRAINT", "sampling.grammar"),
    (output(logprobs=-1), RANGE, "output.logprobs"),
    (output(logprobs=21), RANGE, "output.logprobs"),
    (output(promptLogprobs=21), RANGE, "output.prompt_logprobs"),
    ({"requestId": "x" * 257}, RANGE, "request_id"),
    ({"requestId": "é" * 129}, RANGE, "request_id"),
    ({"tenant": "x" * 257}, RANGE, "tenant"),
    ({"expectedOutputTokens": -1}, RANGE, "expected_output_tokens"),
]


@pytest.mark.parametrize(("fields", "reason", "field"), BAD, ids=[f"{reason}-{field}" for _, reason, field in BAD])
def test_a_bad_request_is_told_what_is_wrong(fields: dict[str, Any], reason: str, field: str) -> None:
    with pytest.raises(ServiceError) as raised:
        parse(message_of(**fields))
    assert reasons.ErrorReason.Name(raised.value.reason) == f"ERROR_REASON_{reason}"
    assert raised.value.field == field
    assert str(raised.value)


def test_case_1_what_can_never_fit_is_told_what_it_needs_and_what_there_is() -> None:
    with pytest.raises(ServiceError, match="13 KV blocks, this executor has 8") as raised:
        parse(message_of(text="x" * 200, **stopping(maxTokens=8)))
    assert raised.value.metadata == {"needed_blocks": "13", "num_blocks": "8"}


def test_text_of_which_no_token_is_left_is_an_empty_prompt() -> None:
    backend = byte_tokenizer()
    backend.backend_tokenizer.normalizer = normalizers.Strip()
    facts = replace(FACTS, tokenizer=Tokenizer(backend, vocab_size=VOCAB_SIZE))
    with pytest.raises(ServiceError) as raised:
        prompt_tokens(pb.GenerateRequest(text=" \n"), facts)
    assert (raised.value.reason, raised.value.field) == (reasons.ERROR_REASON_EMPTY_PROMPT, "text")
    assert prompt_tokens(pb.TokenizeRequest(text=" \n"), facts) == []


def test_case_4_empty_text_is_no_prompt_although_the_tokenizer_makes_a_start_token_of_it() -> None:
    backend = byte_tokenizer()
    backend.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single="<bos> $A", special_tokens=[("<bos>", BOS_TOKEN_ID)]
    )
    facts = replace(FACTS, tokenizer=Tokenizer(backend, vocab_size=VOCAB_SIZE))
    assert facts.tokenizer.encode("") == [BOS_TOKEN_ID]
    with pytest.raises(ServiceError) as raised:
        prompt_tokens(pb.GenerateRequest(text=""), facts)
    assert raised.value.reason == reasons.ERROR_REASON_EMPTY_PROMPT


@pytest.mark.parametrize("field", ["text", "messages"])
def test_text_that_no_prompt_can_be_is_refused_before_it_is_looked_into(field: str) -> None:
    """It is counted in bytes, all turns of a conversation together."""
    text = "é" * 513
    turns = [{"role": "user", "content": text[:300]}, {"role": "user", "content": text[300:]}]
    message = message_of(text=text) if field == "text" else message_of(text=None, messages={"messages": turns})
    with pytest.raises(ServiceError, match="is 1026 bytes, it must be at most 1024 bytes") as raised:
        prompt_tokens(message, replace(FACTS, tokenizer=Untouchable()))
    assert (raised.value.reason, raised.value.field) == (reasons.ERROR_REASON_OUT_OF_RANGE, field)


def test_more_tokens_than_the_model_takes_are_refused_before_each_is_looked_at() -> None:
    with pytest.raises(ServiceError, match="need 258 tokens, this model takes 256") as raised:
        parse(message_of(text=None, tokenIds={"ids": [-1] * 257}))
    assert raised.value.reason == reasons.ERROR_REASON_EXCEEDS_MODEL_LEN


@pytest.mark.parametrize("fields", [{"text": "x"}, token_ids(7)])
def test_case_4_a_prompt_of_one_token_is_a_prompt(fields: dict[str, Any]) -> None:
    assert len(parse(message_of(**fields)).prompt_token_ids) == 1


def test_case_5_what_is_not_set_has_its_default() -> None:
    request = parse(message_of())
    assert (request.sampling.temperature, request.sampling.top_k, request.sampling.top_p) == (1.0, 0, 1.0)
    assert request.stopping.max_output_tokens == 8 * 16 + 1 - 2
    assert request.stopping.stop_token_ids == {EOS_TOKEN_ID}
    assert (request.priority, request.tenant, request.expected_output_tokens) == (0, "", 0)
    assert request.name
    assert (request.id, request.arrival_time_us, request.deadline_us) == (5, 1000, 2000)
    assert request.name != parse(message_of()).name
    assert request.sampling.seed != parse(message_of()).sampling.seed


def test_case_5_an_explicit_zero_is_zero() -> None:
    request = parse(message_of(**sampling(temperature=0, seed=0)))
    assert (request.sampling.temperature, request.sampling.seed) == (0.0, 0)


@pytest.mark.parametrize("seed", [0, 1, -1, 2**63 - 1, -(2**63)])
def test_the_seed_in_force_is_told_as_it_was_given(seed: int) -> None:
    call = call_of(message_of(**sampling(seed=str(seed))))
    assert 0 <= call.requests[0].sampling.seed < 2**64
    assert started(call).sampling.seed == seed


def test_a_drawn_seed_can_be_sent_again() -> None:
    told = started(call_of(message_of())).sampling
    assert told.HasField("seed")
    assert started(call_of(message_of(**sampling(seed=str(told.seed))))).sampling.seed == told.seed


def test_started_tells_all_that_is_in_force() -> None:
    message = message_of(requestId="r", **sampling(**ALL_SAMPLING))
    told = started(call_of(message))
    assert (told.request_id, told.num_prompt_tokens, told.max_tokens) == ("r", 2, 127)
    expected = pb.SamplingParameters()
    expected.CopyFrom(message.sampling)
    expected.allowed_token_ids[:] = [1, 2]
    expected.n = expected.best_of = 1
    assert told.sampling == expected
    unset = started(call_of(message_of())).sampling
    assert all(unset.HasField(name) for name in ("temperature", "top_p", "seed", "repetition_penalty"))


@pytest.mark.parametrize("form", [{"jsonSchema": "{}"}, {"regex": ""}, {"grammar": 'start: "a"'}])
def test_a_constraint_in_force_is_told(form: dict[str, str]) -> None:
    message = message_of(**sampling(**form))
    told = started(call_of(message)).sampling
    assert told.WhichOneof("constraint") == message.sampling.WhichOneof("constraint")
    assert (told.json_schema, told.regex, told.grammar) == (
        message.sampling.json_schema,
        message.sampling.regex,
        message.sampling.grammar,
    )


def test_each_answer_is_a_request_with_a_seed_of_its_own() -> None:
    """Case 39, n = 4: the seeds follow from the one that is told."""
    message = message_of(**sampling(n=2, bestOf=4, seed="-2"), **output(promptLogprobs=0))
    call = call_of(message)
    assert call.ids == (5, 6, 7, 8)
    assert [request.sampling.seed for request in call.requests] == [2**64 - 2, 2**64 - 1, 0, 1]
    assert {request.name for request in call.requests} == {call.name}
    assert [request.output.num_prompt_logprobs for request in call.requests] == [0, None, None, None]
    # To know the best of them they must be told apart.
    assert [request.output.num_logprobs for request in call.requests] == [0] * 4
    assert (call.num_given, call.tells_logprobs) == (2, False)
    told = started(call).sampling
    assert (told.n, told.best_of, told.seed) == (2, 4, -2)
    plain = call_of(message_of(**sampling(n=3)))
    assert [request.output for request in plain.requests] == [OutputOptions()] * 3


@pytest.mark.parametrize(("max_num_waiting", "most"), [(0, 8), (3, 8), (9, 9), (None, 64)])
def test_more_answers_than_could_ever_be_in_the_executor_are_refused(max_num_waiting: int | None, most: int) -> None:
    facts = replace(FACTS, limits=limits_of(max_num_waiting=max_num_waiting))
    for n in (most, most + 1):
        message = message_of(**sampling(n=n))
        if n == most:
            call = parse_generate(message, facts, ids=itertools.count(1), now_us=0, deadline_us=0)
            assert len(call.requests) == most
        else:
            with pytest.raises(ServiceError, match=f"1 to {most}"):
                parse_generate(message, facts, ids=itertools.count(1), now_us=0, deadline_us=0)


def test_neutral_values_ask_for_nothing() -> None:
    neutral = {"minP": 0, "repetitionPenalty": 1, "presencePenalty": 0, "frequencyPenalty": 0, "logitBias": {}}
    assert parse(message_of(**sampling(**neutral))).sampling.adjustments.is_neutral
    for name in ("repetitionPenalty", "presencePenalty", "logitBias", "allowedTokenIds", "bannedTokenIds", "regex"):
        asked = parse(message_of(**sampling(**{name: ALL_SAMPLING[name]})))
        assert not asked.sampling.adjustments.is_neutral


@pytest.mark.parametrize(
    ("prompt", "echo"),
    [({"text": "hé"}, "hé"), (token_ids(71, 72, BOS_TOKEN_ID), None), ({"text": "x", **stopping(maxTokens=1)}, "x")],
)
def test_what_is_echoed_is_the_prompts_text(prompt: dict[str, Any], echo: str | None) -> None:
    request = parse(message_of(**prompt, **output(echo=True)))
    assert request.output.echo == (FACTS.tokenizer.decode([71, 72]) if echo is None else echo)
    assert parse(message_of(**prompt, **output(echo=True, omitText=True))).output.echo == ""
    assert parse(message_of(**prompt)).output.echo == ""


def test_log_probabilities_that_are_not_asked_for_are_none() -> None:
    assert parse(message_of()).output == OutputOptions()
    asked = parse(message_of(**output(logprobs=0, promptLogprobs=20))).output
    assert (asked.num_logprobs, asked.num_prompt_logprobs) == (0, 20)


def test_all_that_is_offered_arrives() -> None:
    request = parse(
        message_of(
            priority=-3,
            tenant="t",
            expectedOutputTokens=9,
            **sampling(temperature=100, topK=3, topP=1, n=1, bestOf=1, repetitionPenalty=1),
            **stopping(maxTokens=4, minTokens=4, stop=["a", "bc"], stopTokenIds=[5, 6], ignoreEos=True),
        )
    )
    assert (request.priority, request.tenant, request.expected_output_tokens) == (-3, "t", 9)
    assert (request.sampling.temperature, request.sampling.top_k) == (100, 3)
    assert (request.stopping.max_output_tokens, request.stopping.min_output_tokens) == (4, 4)
    assert request.stopping.stop_strings == ("a", "bc")
    assert request.stopping.stop_token_ids == {5, 6}


def test_stop_tokens_stand_beside_the_end_tokens() -> None:
    assert parse(message_of(**stopping(stopTokenIds=[5]))).stopping.stop_token_ids == {5, EOS_TOKEN_ID}


def test_text_and_its_tokens_are_the_same_prompt() -> None:
    assert parse(message_of(text="hé")).prompt_token_ids.tolist() == FACTS.tokenizer.encode("hé")
    assert parse(message_of(**token_ids(1, 2, 3))).prompt_token_ids.tolist() == [1, 2, 3]


def test_events_become_messages() -> None:
    event = TokensEvent(request_id=1, token_ids=(4,), text="x")
    assert delta(event, 0) == pb.Delta(text="x", token_ids=[4])
    assert delta(event, 3) == pb.Delta(index=3, text="x", token_ids=[4])
    first, second = (
        TokenLogprobs(logprob=-0.5),
        TokenLogprobs(logprob=-2, top_token_ids=(4, 5), top_logprobs=(-0.5, -1)),
    )
    told = delta(TokensEvent(request_id=1, token_ids=(4,), text="", logprobs=(second,), prompt_logprobs=(first,)), 0)
    assert list(told.logprobs) == [pb.TokenLogprobs(logprob=-2, top_token_ids=[4, 5], top_logprobs=[-0.5, -1])]
    assert list(told.prompt_logprobs) == [pb.TokenLogprobs(), pb.TokenLogprobs(logprob=-0.5)]
    usage = Usage(
        num_prompt_tokens=1,
        num_output_tokens=2,
        num_cached_tokens=16,
        num_preemptions=3,
        queue_time_us=4,
        time_to_first_token_us=5,
        total_time_us=6,
    )
    for reason, expected in (
        (FinishReason.STOP, pb.FINISH_REASON_STOP),
        (FinishReason.LENGTH, pb.FINISH_REASON_LENGTH),
    ):
        message = finished(FinishedEvent(request_id=1, finish_reason=reason, matched_stop="s", usage=usage), 2)
        assert message.index == 2
        assert (message.finish_reason, message.matched_stop) == (expected, "s")
        assert (message.usage.num_prompt_tokens, message.usage.num_output_tokens) == (1, 2)
        assert message.usage.num_cached_tokens == 16
        assert (message.usage.num_preemptions, message.usage.queue_time_us) == (3, 4)
        assert (message.usage.time_to_first_token_us, message.usage.total_time_us) == (5, 6)


def test_float_parameters_are_finite_when_they_are_let_in() -> None:
    assert math.isfinite(parse(message_of(**sampling(temperature=1e-30))).sampling.temperature)
