"""Requests as clients send them: every bad one names what is wrong, and every default is filled in."""

from __future__ import annotations

import math
from typing import Any

import pytest
from google.protobuf.json_format import ParseDict
from tokenizers import normalizers, processors

from executor_service.convert.generate import ModelFacts, delta, finished, parse_generate, prompt_tokens, started
from executor_service.engine.request import FinishedEvent, FinishReason, Request, TokensEvent, Usage
from executor_service.errors import ServiceError
from executor_service.text.tokenizer import Tokenizer
from metronome.inference.v1 import error_reason_pb2 as reasons
from metronome.inference.v1 import inference_pb2 as pb
from support.engine import limits_of
from support.tiny_models import BOS_TOKEN_ID, EOS_TOKEN_ID, VOCAB_SIZE, byte_tokenizer

FACTS = ModelFacts(
    limits=limits_of(num_blocks=8, max_model_len=256),
    tokenizer=Tokenizer(byte_tokenizer(), vocab_size=VOCAB_SIZE),
    eos_token_ids=frozenset({EOS_TOKEN_ID}),
)


def message_of(**fields: Any) -> pb.GenerateRequest:
    """A request of two tokens, with fields as in JSON over it; ``None`` takes one out."""
    fields = {"text": "hi", **fields}
    return ParseDict({name: value for name, value in fields.items() if value is not None}, pb.GenerateRequest())


def parse(message: pb.GenerateRequest) -> Request:
    return parse_generate(message, FACTS, request_id=5, now_us=1000, deadline_us=2000)


def token_ids(*ids: int) -> dict[str, Any]:
    return {"text": None, "tokenIds": {"ids": ids}}


def sampling(**fields: Any) -> dict[str, Any]:
    return {"sampling": fields}


def stopping(**fields: Any) -> dict[str, Any]:
    return {"stopping": fields}


def output(**fields: Any) -> dict[str, Any]:
    return {"output": fields}


EMPTY, RANGE, NOT_OFFERED = "EMPTY_PROMPT", "OUT_OF_RANGE", "NOT_OFFERED"
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
    (stopping(minTokens=1), NOT_OFFERED, "stopping.min_tokens"),
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
    (sampling(n=2), NOT_OFFERED, "sampling.n"),
    (sampling(bestOf=0), RANGE, "sampling.best_of"),
    (sampling(bestOf=2), NOT_OFFERED, "sampling.best_of"),
    (sampling(repetitionPenalty=0), RANGE, "sampling.repetition_penalty"),
    (sampling(repetitionPenalty=-1), RANGE, "sampling.repetition_penalty"),
    (sampling(repetitionPenalty=1.1), NOT_OFFERED, "sampling.repetition_penalty"),
    (sampling(minP=0.1), NOT_OFFERED, "sampling.min_p"),
    (sampling(presencePenalty=0.5), NOT_OFFERED, "sampling.presence_penalty"),
    (sampling(frequencyPenalty=-0.5), NOT_OFFERED, "sampling.frequency_penalty"),
    (sampling(logitBias={"1": 2.0}), NOT_OFFERED, "sampling.logit_bias"),
    (sampling(allowedTokenIds=[1]), NOT_OFFERED, "sampling.allowed_token_ids"),
    (sampling(bannedTokenIds=[1]), NOT_OFFERED, "sampling.banned_token_ids"),
    (sampling(jsonSchema="{}"), NOT_OFFERED, "sampling.json_schema"),
    (sampling(regex="a*"), NOT_OFFERED, "sampling.regex"),
    (sampling(grammar=""), NOT_OFFERED, "sampling.grammar"),
    (output(echo=True), NOT_OFFERED, "output.echo"),
    (output(logprobs=0), NOT_OFFERED, "output.logprobs"),
    (output(promptLogprobs=3), NOT_OFFERED, "output.prompt_logprobs"),
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
    tokenizer = Tokenizer(backend, vocab_size=VOCAB_SIZE)
    with pytest.raises(ServiceError) as raised:
        prompt_tokens(pb.GenerateRequest(text=" \n"), tokenizer)
    assert (raised.value.reason, raised.value.field) == (reasons.ERROR_REASON_EMPTY_PROMPT, "text")
    assert prompt_tokens(pb.TokenizeRequest(text=" \n"), tokenizer) == []


def test_case_4_empty_text_is_no_prompt_although_the_tokenizer_makes_a_start_token_of_it() -> None:
    backend = byte_tokenizer()
    backend.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single="<bos> $A", special_tokens=[("<bos>", BOS_TOKEN_ID)]
    )
    tokenizer = Tokenizer(backend, vocab_size=VOCAB_SIZE)
    assert tokenizer.encode("") == [BOS_TOKEN_ID]
    with pytest.raises(ServiceError) as raised:
        prompt_tokens(pb.GenerateRequest(text=""), tokenizer)
    assert raised.value.reason == reasons.ERROR_REASON_EMPTY_PROMPT


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
    request = parse(message_of(**sampling(seed=str(seed))))
    assert 0 <= request.sampling.seed < 2**64
    assert started(request).sampling.seed == seed


def test_a_drawn_seed_can_be_sent_again() -> None:
    told = started(parse(message_of())).sampling
    assert told.HasField("seed")
    assert started(parse(message_of(**sampling(seed=str(told.seed))))).sampling.seed == told.seed


def test_started_tells_all_that_is_in_force() -> None:
    message = message_of(requestId="r", **sampling(temperature=0.5, topK=7, topP=0.75, seed="3"))
    told = started(parse(message))
    assert (told.request_id, told.num_prompt_tokens, told.max_tokens) == ("r", 2, 127)
    assert (told.sampling.temperature, told.sampling.top_k, told.sampling.top_p) == (0.5, 7, 0.75)
    unset = started(parse(message_of())).sampling
    assert all(unset.HasField(name) for name in ("temperature", "top_p", "seed"))


def test_all_that_is_offered_arrives() -> None:
    request = parse(
        message_of(
            priority=-3,
            tenant="t",
            expectedOutputTokens=9,
            **sampling(temperature=100, topK=3, topP=1, n=1, bestOf=1, repetitionPenalty=1),
            **stopping(maxTokens=4, stop=["a", "bc"], stopTokenIds=[5, 6], ignoreEos=True),
        )
    )
    assert (request.priority, request.tenant, request.expected_output_tokens) == (-3, "t", 9)
    assert (request.sampling.temperature, request.sampling.top_k) == (100, 3)
    assert request.stopping.max_output_tokens == 4
    assert request.stopping.stop_strings == ("a", "bc")
    assert request.stopping.stop_token_ids == {5, 6}


def test_stop_tokens_stand_beside_the_end_tokens() -> None:
    assert parse(message_of(**stopping(stopTokenIds=[5]))).stopping.stop_token_ids == {5, EOS_TOKEN_ID}


def test_text_and_its_tokens_are_the_same_prompt() -> None:
    assert parse(message_of(text="hé")).prompt_token_ids.tolist() == FACTS.tokenizer.encode("hé")
    assert parse(message_of(**token_ids(1, 2, 3))).prompt_token_ids.tolist() == [1, 2, 3]


def test_events_become_messages() -> None:
    assert delta(TokensEvent(request_id=1, token_ids=(4,), text="x")) == pb.Delta(text="x", token_ids=[4])
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
        message = finished(FinishedEvent(request_id=1, finish_reason=reason, matched_stop="s", usage=usage))
        assert (message.finish_reason, message.matched_stop) == (expected, "s")
        assert (message.usage.num_prompt_tokens, message.usage.num_output_tokens) == (1, 2)
        assert message.usage.num_cached_tokens == 16
        assert (message.usage.num_preemptions, message.usage.queue_time_us) == (3, 4)
        assert (message.usage.time_to_first_token_us, message.usage.total_time_us) == (5, 6)


def test_float_parameters_are_finite_when_they_are_let_in() -> None:
    assert math.isfinite(parse(message_of(**sampling(temperature=1e-30))).sampling.temperature)
