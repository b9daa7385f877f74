"""A row for each way in which a request can be wrong: status code, reason, and the path of the field at fault.

Whatever is refused leaves nothing behind, and nobody else notices.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import grpc
import pytest
from grpc import StatusCode

from metronome.executor.v1 import executor_pb2
from metronome.inference.v1 import error_reason_pb2
from metronome.inference.v1 import inference_pb2 as pb
from support.services import Service, is_healthy
from support.wire import TIMEOUT_SECONDS, Client, Details, details_of, greedy

VOCAB_SIZE = 300
CODES = {"NO_CHAT_TEMPLATE": StatusCode.FAILED_PRECONDITION}
# What it takes more than one request to provoke, or more than a request: the file that does.
ELSEWHERE = {
    "INVALID_TEXT": "test_executor_limits.py",
    "DUPLICATE_REQUEST_ID": "test_executor_cancel.py",
    "UNKNOWN_REQUEST_ID": "test_executor_cancel.py",
    "QUEUE_FULL": "test_executor_limits.py",
    "MODEL_LOADING": "test_executor_life.py",
    "DRAINING": "test_executor_life.py",
    "DEADLINE": "test_executor_limits.py",
    "CANCELLED": "test_executor_cancel.py",
    "REQUEST_FAILED": "test_executor_process.py",
    "REJECTED_BY_SCHEDULER": "test_executor_crooked_scheduler.py",
    "INVALID_LOGITS": "the engine's own tests: no request can cause it",
    "MALFORMED_MESSAGE": "below: no request is one",
    "UNKNOWN_CALLER": "test_access.py",
    "NOT_ALLOWED": "test_access.py",
    "TENANT_OVER_LIMIT": "test_access.py",
    "TOO_MANY_CALLS": "test_port_limits.py",
    "NOT_OFFERED": "tests/unit/executor/sampling: only a model with a tokenizer of an old kind can cause it",
}


def request(**parts: object) -> pb.GenerateRequest:
    return pb.GenerateRequest(**{"text": "hello", **parts})  # type: ignore[arg-type]


def sampling(**parameters: object) -> pb.GenerateRequest:
    return request(sampling=pb.SamplingParameters(**parameters))  # type: ignore[arg-type]


def stopping(**criteria: object) -> pb.GenerateRequest:
    return request(stopping=pb.StoppingCriteria(**criteria))  # type: ignore[arg-type]


def output(**options: object) -> pb.GenerateRequest:
    return request(output=pb.OutputOptions(**options))  # type: ignore[arg-type]


def tokens(*ids: int) -> pb.GenerateRequest:
    return pb.GenerateRequest(token_ids=pb.TokenIds(ids=ids))


def chat(*turns: tuple[str, str]) -> pb.GenerateRequest:
    messages = [pb.ChatMessage(role=role, content=content) for role, content in turns]
    return pb.GenerateRequest(messages=pb.ChatMessages(messages=messages))


def contradiction() -> pb.GenerateRequest:
    """The constraint asks for what is banned; only the answer shows it."""
    return sampling(regex="[a-z]{2}", allowed_token_ids=[0, 1, 2, 3])


ROWS = [
    ("no prompt", pb.GenerateRequest(), "EMPTY_PROMPT", ["prompt"]),
    ("empty text", request(text=""), "EMPTY_PROMPT", ["text"]),
    ("empty token list", tokens(), "EMPTY_PROMPT", ["token_ids"]),
    ("no messages", chat(), "EMPTY_PROMPT", ["messages.messages"]),
    ("prompt longer than the model", request(text="a" * 512), "EXCEEDS_MODEL_LEN", []),
    ("answer longer than the model", stopping(max_tokens=508), "EXCEEDS_MODEL_LEN", []),
    ("answer of the most tokens there are", stopping(max_tokens=2**31 - 1), "EXCEEDS_MODEL_LEN", []),
    ("prompt larger than the cache", request(text="a" * 300), "EXCEEDS_KV_CACHE", []),
    ("answer larger than the cache", stopping(max_tokens=253), "EXCEEDS_KV_CACHE", []),
    ("temperature below 0", sampling(temperature=-1), "OUT_OF_RANGE", ["sampling.temperature"]),
    ("temperature above 100", sampling(temperature=100.5), "OUT_OF_RANGE", ["sampling.temperature"]),
    ("temperature that is no number", sampling(temperature=math.nan), "OUT_OF_RANGE", ["sampling.temperature"]),
    ("infinite temperature", sampling(temperature=math.inf), "OUT_OF_RANGE", ["sampling.temperature"]),
    ("top k below 0", sampling(top_k=-1), "OUT_OF_RANGE", ["sampling.top_k"]),
    ("top p of 0", sampling(top_p=0), "OUT_OF_RANGE", ["sampling.top_p"]),
    ("top p below 0", sampling(top_p=-0.5), "OUT_OF_RANGE", ["sampling.top_p"]),
    ("top p above 1", sampling(top_p=1.5), "OUT_OF_RANGE", ["sampling.top_p"]),
    ("top p that is no number", sampling(top_p=math.nan), "OUT_OF_RANGE", ["sampling.top_p"]),
    ("no answers", sampling(n=0), "OUT_OF_RANGE", ["sampling.n"]),
    ("fewer than no answers", sampling(n=-1), "OUT_OF_RANGE", ["sampling.n"]),
    ("best of none", sampling(best_of=0), "OUT_OF_RANGE", ["sampling.best_of"]),
    ("penalty of 0", sampling(repetition_penalty=0), "OUT_OF_RANGE", ["sampling.repetition_penalty"]),
    ("no tokens", stopping(max_tokens=0), "OUT_OF_RANGE", ["stopping.max_tokens"]),
    ("fewer than no tokens", stopping(max_tokens=-1), "OUT_OF_RANGE", ["stopping.max_tokens"]),
    ("seventeen stop strings", stopping(stop=map(str, range(17))), "OUT_OF_RANGE", ["stopping.stop"]),
    ("empty stop string", stopping(stop=["a", ""]), "OUT_OF_RANGE", ["stopping.stop"]),
    ("stop strings without end", stopping(stop=["a" * 10_000]), "OUT_OF_RANGE", ["stopping.stop"]),
    ("65 stop tokens", stopping(stop_token_ids=range(65)), "OUT_OF_RANGE", ["stopping.stop_token_ids"]),
    ("long request id", request(request_id="x" * 257), "OUT_OF_RANGE", ["request_id"]),
    ("long tenant", request(tenant="é" * 129), "OUT_OF_RANGE", ["tenant"]),
    ("expects fewer than no tokens", request(expected_output_tokens=-1), "OUT_OF_RANGE", ["expected_output_tokens"]),
    ("token below the vocabulary", tokens(1, -7), "UNKNOWN_TOKEN", ["token_ids.ids[1]"]),
    ("token above the vocabulary", tokens(1, VOCAB_SIZE), "UNKNOWN_TOKEN", ["token_ids.ids[1]"]),
    ("unknown stop token", stopping(stop_token_ids=[VOCAB_SIZE]), "UNKNOWN_TOKEN", ["stopping.stop_token_ids[0]"]),
    ("chat with a base model", chat(("user", "hello")), "NO_CHAT_TEMPLATE", []),
    ("min p below 0", sampling(min_p=-0.1), "OUT_OF_RANGE", ["sampling.min_p"]),
    ("min p that is no number", sampling(min_p=math.nan), "OUT_OF_RANGE", ["sampling.min_p"]),
    ("repetition above 100", sampling(repetition_penalty=101), "OUT_OF_RANGE", ["sampling.repetition_penalty"]),
    ("presence above 2", sampling(presence_penalty=2.5), "OUT_OF_RANGE", ["sampling.presence_penalty"]),
    ("infinite frequency", sampling(frequency_penalty=-math.inf), "OUT_OF_RANGE", ["sampling.frequency_penalty"]),
    ("bias above 100", sampling(logit_bias={1: 101.0}), "OUT_OF_RANGE", ["sampling.logit_bias[1]"]),
    ("bias without a token", sampling(logit_bias={VOCAB_SIZE: 1}), "UNKNOWN_TOKEN", ["sampling.logit_bias[300]"]),
    ("unknown allowed", sampling(allowed_token_ids=[1, -1]), "UNKNOWN_TOKEN", ["sampling.allowed_token_ids[1]"]),
    ("unknown banned", sampling(banned_token_ids=[VOCAB_SIZE]), "UNKNOWN_TOKEN", ["sampling.banned_token_ids[0]"]),
    (
        "allowed and banned",
        sampling(allowed_token_ids=[1], banned_token_ids=[1]),
        "OUT_OF_RANGE",
        ["sampling.allowed_token_ids"],
    ),
    ("65 answers", sampling(n=65), "OUT_OF_RANGE", ["sampling.n"]),
    ("the best three of two", sampling(n=3, best_of=2), "OUT_OF_RANGE", ["sampling.best_of"]),
    ("broken schema", sampling(json_schema="{"), "INVALID_CONSTRAINT", ["sampling.json_schema"]),
    ("schema of nothing", sampling(json_schema="false"), "INVALID_CONSTRAINT", ["sampling.json_schema"]),
    ("broken regex", sampling(regex="a("), "INVALID_CONSTRAINT", ["sampling.regex"]),
    ("broken grammar", sampling(grammar="start: ("), "INVALID_CONSTRAINT", ["sampling.grammar"]),
    ("endless constraint", sampling(regex="a" * 300_000), "INVALID_CONSTRAINT", ["sampling.regex"]),
    ("rules that contradict each other", contradiction(), "NO_TOKEN_ALLOWED", []),
    ("fewer than no least tokens", stopping(min_tokens=-1), "OUT_OF_RANGE", ["stopping.min_tokens"]),
    ("more least than most tokens", stopping(min_tokens=9, max_tokens=8), "OUT_OF_RANGE", ["stopping.min_tokens"]),
    ("21 log-probabilities", output(logprobs=21), "OUT_OF_RANGE", ["output.logprobs"]),
    ("fewer than no log-probabilities", output(logprobs=-1), "OUT_OF_RANGE", ["output.logprobs"]),
    ("21 of the prompt", output(prompt_logprobs=21), "OUT_OF_RANGE", ["output.prompt_logprobs"]),
]


@pytest.mark.parametrize(("bad", "reason", "fields"), [row[1:] for row in ROWS], ids=[row[0] for row in ROWS])
def test_a_bad_request_is_refused_with_its_reason(
    client: Client, bad: pb.GenerateRequest, reason: str, fields: list[str]
) -> None:
    refusal = client.refused(bad)
    assert refusal.code is CODES.get(reason, StatusCode.INVALID_ARGUMENT)
    assert (refusal.info.reason, refusal.info.domain) == (reason, "executor.metronome")
    assert refusal.fields == fields
    assert [refusal.info.metadata["field"]] == fields if fields else "field" not in refusal.info.metadata
    assert "\n" not in refusal.message
    assert client.is_idle()


def test_every_reason_is_provoked_somewhere() -> None:
    values = error_reason_pb2.ErrorReason.DESCRIPTOR.values
    reasons = {value.name.removeprefix("ERROR_REASON_") for value in values}
    assert {row[2] for row in ROWS} | set(ELSEWHERE) == reasons - {"UNSPECIFIED"}


def test_what_does_not_fit_is_told_with_its_figures(client: Client) -> None:
    too_long = client.refused(request(text="a" * 600))
    assert dict(too_long.info.metadata) == {"needed_tokens": "601", "max_model_len": "512"}
    too_large = client.refused(request(text="a" * 300))
    assert dict(too_large.info.metadata) == {"needed_blocks": "19", "num_blocks": "16"}
    assert "19 KV blocks" in too_large.message
    assert "has 16" in too_large.message


def test_a_value_out_of_range_is_told(client: Client) -> None:
    refusal = client.refused(sampling(temperature=-1))
    assert refusal.info.metadata["value"] == "-1.0"
    assert "0" in refusal.message
    assert "100" in refusal.message


def test_a_neutral_value_of_what_is_not_offered_is_no_wish(client: Client) -> None:
    neutral = pb.SamplingParameters(temperature=0, n=1, best_of=1, repetition_penalty=1)
    answer = client.generate(request(sampling=neutral, stopping=pb.StoppingCriteria(max_tokens=2, ignore_eos=True)))
    assert len(answer.tokens) == 2


def test_an_empty_prompt_does_not_touch_who_is_streaming(client: Client, executor: Service) -> None:
    """Case 4."""
    streaming = client.open(greedy("b" * 20, 20))
    for empty in (pb.GenerateRequest(), request(text=""), tokens()):
        assert client.refused(empty).info.reason == "EMPTY_PROMPT"
    assert is_healthy(executor.address)
    assert sum(len(response.delta.token_ids) for response in streaming) == 20


def test_a_prompt_of_one_token_is_a_prompt(client: Client) -> None:
    one = tokens(65)
    one.stopping.max_tokens = 1
    answer = client.generate(one)
    assert answer.started.num_prompt_tokens == 1
    assert len(answer.tokens) == 1


BROKEN_UTF_8 = b"\x12\x02\xff\xfe"  # field 2, `text`, of two bytes
MALFORMED = {"broken UTF-8": BROKEN_UTF_8, "garbage": b"\xff\xff\xff\xff", "cut off": b"\x12\x7fabc"}


@pytest.mark.parametrize("payload", MALFORMED.values(), ids=MALFORMED.keys())
@pytest.mark.parametrize("beside", [0, 1], ids=["alone", "beside another"])
def test_bytes_that_are_no_request_are_the_callers_fault(client: Client, payload: bytes, beside: int) -> None:
    streams = [client.open(greedy("beside", 20)) for _ in range(beside)]
    generate = client.channel.unary_stream("/metronome.inference.v1.InferenceService/Generate")
    refusal = _refusal(generate(payload, timeout=TIMEOUT_SECONDS))
    assert (refusal.code, refusal.info.reason) == (StatusCode.INVALID_ARGUMENT, "MALFORMED_MESSAGE")
    assert [sum(len(r.delta.token_ids) for r in stream) for stream in streams] == [20] * beside


@pytest.mark.parametrize(
    "method",
    [
        "metronome.inference.v1.InferenceService/Tokenize",
        "metronome.inference.v1.InferenceService/Cancel",
        "metronome.executor.v1.ExecutorService/GetState",
    ],
)
def test_bytes_that_are_no_message_are_refused_by_every_method(client: Client, method: str) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        client.channel.unary_unary(f"/{method}")(b"\xff\xff\xff", timeout=TIMEOUT_SECONDS)
    refusal = details_of(caught.value)
    assert (refusal.code, refusal.info.reason) == (StatusCode.INVALID_ARGUMENT, "MALFORMED_MESSAGE")
    assert refusal.info.domain == "executor.metronome"


def test_a_message_above_the_limit_is_refused_and_the_executor_goes_on(client: Client) -> None:
    huge = request(text="a" * (65 * 2**20))
    assert client.refused(huge).code is StatusCode.RESOURCE_EXHAUSTED
    assert len(client.generate(greedy("after it", 2)).tokens) == 2


@pytest.mark.parametrize(
    ("bad", "reason", "field"),
    [
        (pb.TokenizeRequest(messages=pb.ChatMessages(messages=[pb.ChatMessage(role="user")])), "NO_CHAT_TEMPLATE", []),
        (pb.TokenizeRequest(messages=pb.ChatMessages()), "EMPTY_PROMPT", ["messages.messages"]),
        (pb.DetokenizeRequest(token_ids=[-1]), "UNKNOWN_TOKEN", ["token_ids[0]"]),
        (pb.DetokenizeRequest(token_ids=[VOCAB_SIZE]), "UNKNOWN_TOKEN", ["token_ids[0]"]),
    ],
)
def test_what_cannot_be_turned_into_tokens_or_text_is_refused(
    client: Client, bad: pb.TokenizeRequest | pb.DetokenizeRequest, reason: str, field: list[str]
) -> None:
    stub = client.inference.Tokenize if isinstance(bad, pb.TokenizeRequest) else client.inference.Detokenize
    with pytest.raises(grpc.RpcError) as caught:
        stub(bad, timeout=TIMEOUT_SECONDS)
    refusal = details_of(caught.value)
    assert (refusal.info.reason, refusal.fields) == (reason, field)


@pytest.mark.parametrize("interval", [{"seconds": -1}, {"seconds": 2**62}, {"nanos": -1}, {"seconds": 1, "nanos": -5}])
def test_a_watch_needs_an_interval_that_can_be(client: Client, interval: dict[str, int]) -> None:
    watch = executor_pb2.WatchStateRequest()
    watch.min_interval.seconds = interval.get("seconds", 0)
    watch.min_interval.nanos = interval.get("nanos", 0)
    refusal = _refusal(client.control.WatchState(watch, timeout=TIMEOUT_SECONDS))
    assert (refusal.code, refusal.info.reason) == (StatusCode.INVALID_ARGUMENT, "OUT_OF_RANGE")
    assert refusal.fields == ["min_interval"]


def _refusal(stream: Iterator[object]) -> Details:
    with pytest.raises(grpc.RpcError) as caught:
        list(stream)
    return details_of(caught.value)
