"""Generate requests to the engine's, checked field by field; and the engine's events to messages."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from executor_service.convert.checks import at_most, in_range, of_vocabulary, out_of_range, unknown_token
from executor_service.convert.sampling import parse_sampling, sampling_in_force
from executor_service.engine.limits import ExceedsKVCacheError, ExceedsModelLenError, Limits
from executor_service.engine.request import (
    FinishedEvent,
    OutputOptions,
    Request,
    Stopping,
    TokenLogprobs,
    TokensEvent,
)
from executor_service.errors import ServiceError
from executor_service.sampling.constraints import ConstraintCompiler
from executor_service.sampling.logprobs import MAX_TOP_LOGPROBS
from executor_service.text.errors import ChatTemplateMissingError, InvalidStopStringError, TextError, UnknownTokenError
from executor_service.text.stop import StopMatcher
from executor_service.text.tokenizer import ChatMessage, Tokenizer
from metronome.inference.v1 import error_reason_pb2 as reasons
from metronome.inference.v1 import inference_pb2 as pb

MAX_NAME_BYTES = 256
MAX_STOP_STRINGS = 16
MAX_STOP_TOKEN_IDS = 64
MAX_ANSWERS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFacts:
    """What a request is checked against."""

    limits: Limits
    tokenizer: Tokenizer
    eos_token_ids: frozenset[int]
    max_prompt_bytes: int
    constraints: ConstraintCompiler


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A request for each answer that is computed, of which the ``num_given`` most likely are given."""

    requests: tuple[Request, ...]
    num_given: int
    tells_logprobs: bool  # else they are computed only to know which answers are the most likely

    @property
    def name(self) -> str:
        """What the client calls it."""
        return self.requests[0].name

    @property
    def ids(self) -> tuple[int, ...]:
        return tuple(request.id for request in self.requests)


def parse_generate(
    message: pb.GenerateRequest, facts: ModelFacts, *, ids: Iterator[int], now_us: int, deadline_us: int
) -> Call:
    """``ids``: never used before. Raises ServiceError that names the field at fault.

    Tokenises and compiles, so it may take a while.
    """
    num_given, num_computed = _num_answers(message.sampling, facts.limits)
    first = _request(message, facts, request_id=next(ids), now_us=now_us, deadline_us=deadline_us)
    tells_logprobs = first.output.num_logprobs is not None
    if num_given < num_computed and not tells_logprobs:
        first = replace(first, output=replace(first.output, num_logprobs=0))
    if num_computed > 1:
        first = replace(first, samples_of=first.id)
    others = (_another_answer(first, index, request_id=next(ids)) for index in range(1, num_computed))
    return Call(
        requests=(first, *others),
        num_given=num_given,
        tells_logprobs=tells_logprobs,
    )


def _request(
    message: pb.GenerateRequest, facts: ModelFacts, *, request_id: int, now_us: int, deadline_us: int
) -> Request:
    """The request of the first answer."""
    sampling = parse_sampling(message.sampling, facts.tokenizer, facts.constraints)
    if message.WhichOneof("prompt") == "token_ids":  # too many are refused before each is looked at
        _max_output_tokens(message.stopping, len(message.token_ids.ids), facts.limits)
    tokens = prompt_tokens(message, facts)
    max_output_tokens = _max_output_tokens(message.stopping, len(tokens), facts.limits)
    return Request(
        id=request_id,
        name=checked_name(message.request_id, "request_id") or secrets.token_hex(8),
        prompt_token_ids=np.array(tokens, dtype=np.int32),
        sampling=sampling,
        stopping=_stopping(message.stopping, max_output_tokens, facts),
        output=_output(message, tokens, facts.tokenizer),
        priority=message.priority,
        tenant=checked_name(message.tenant, "tenant"),
        expected_output_tokens=in_range(message.expected_output_tokens, "expected_output_tokens", low=0),
        arrival_time_us=now_us,
        deadline_us=deadline_us,
    )


def prompt_tokens(message: pb.GenerateRequest | pb.TokenizeRequest, facts: ModelFacts) -> list[int]:
    """The tokens of a prompt, at least one where it is to be generated from. Raises ServiceError."""
    if isinstance(message, pb.TokenizeRequest):
        return _encoded(message, message.WhichOneof("input") or "input", facts)
    field = message.WhichOneof("prompt") or "prompt"
    # Both are looked at: of empty text a start token may be made, and of a space nothing at all.
    is_empty = field == "prompt" or (field == "text" and not message.text)
    tokens = [] if is_empty else _encoded(message, field, facts)
    if not tokens:
        raise ServiceError(reasons.ERROR_REASON_EMPTY_PROMPT, "the prompt is empty", field=field)
    return tokens


def _encoded(message: pb.GenerateRequest | pb.TokenizeRequest, field: str, facts: ModelFacts) -> list[int]:
    """The tokens of the field that is set, or those of no text. Raises ServiceError."""
    tokenizer = facts.tokenizer
    _check_size(message, field, facts.max_prompt_bytes)
    try:
        if isinstance(message, pb.GenerateRequest) and field == "token_ids":
            tokenizer.validate(message.token_ids.ids)
            return list(message.token_ids.ids)
        if field == "messages":
            turns = [ChatMessage(role=turn.role, content=turn.content) for turn in message.messages.messages]
            if not turns:
                raise ServiceError(reasons.ERROR_REASON_EMPTY_PROMPT, "no messages", field="messages.messages")
            return tokenizer.apply_chat_template(turns)
        return tokenizer.encode(message.text)
    except ChatTemplateMissingError as error:
        raise ServiceError(reasons.ERROR_REASON_NO_CHAT_TEMPLATE, str(error)) from error
    except UnknownTokenError as error:
        raise unknown_token(error, f"token_ids.ids[{error.position}]" if field == "token_ids" else "") from error
    except TextError as error:
        raise ServiceError(reasons.ERROR_REASON_INVALID_TEXT, str(error), field=field) from error


def _check_size(message: pb.GenerateRequest | pb.TokenizeRequest, field: str, most: int) -> None:
    """Raises ServiceError for text that is too long to look into: a tokenizer takes seconds for what no model reads."""
    if field == "messages":
        num_bytes = sum(len(turn.content.encode()) for turn in message.messages.messages)
    else:
        num_bytes = len(message.text.encode())
    if num_bytes > most:
        raise out_of_range(field, f"{num_bytes} bytes", f"at most {most} bytes (max_prompt_bytes)")


def started(call: Call) -> pb.Started:
    request = call.requests[0]
    sampling = sampling_in_force(request.sampling)
    sampling.n, sampling.best_of = call.num_given, len(call.requests)
    return pb.Started(
        request_id=request.name,
        num_prompt_tokens=len(request.prompt_token_ids),
        sampling=sampling,
        max_tokens=request.stopping.max_output_tokens,
    )


def delta(event: TokensEvent, index: int) -> pb.Delta:
    message = pb.Delta(index=index, text=event.text, token_ids=event.token_ids)
    message.logprobs.extend(_logprobs(told) for told in event.logprobs)
    if event.prompt_logprobs:
        message.prompt_logprobs.add()  # the first token stands after nothing
        message.prompt_logprobs.extend(_logprobs(told) for told in event.prompt_logprobs)
    return message


def _logprobs(told: TokenLogprobs) -> pb.TokenLogprobs:
    return pb.TokenLogprobs(logprob=told.logprob, top_token_ids=told.top_token_ids, top_logprobs=told.top_logprobs)


def finished(event: FinishedEvent, index: int) -> pb.Finished:
    usage = event.usage
    return pb.Finished(
        index=index,
        finish_reason=pb.FinishReason.Name(event.finish_reason),
        matched_stop=event.matched_stop,
        usage=pb.Usage(
            num_prompt_tokens=usage.num_prompt_tokens,
            num_output_tokens=usage.num_output_tokens,
            num_cached_tokens=usage.num_cached_tokens,
            num_preemptions=usage.num_preemptions,
            queue_time_us=usage.queue_time_us,
            time_to_first_token_us=usage.time_to_first_token_us,
            total_time_us=usage.total_time_us,
        ),
    )


def _num_answers(message: pb.SamplingParameters, limits: Limits) -> tuple[int, int]:
    """How many are given, and of how many. More than could ever be in the executor at once are refused."""
    most = MAX_ANSWERS if limits.max_num_waiting is None else max(limits.max_num_waiting, limits.max_num_seqs)
    most = min(most, MAX_ANSWERS)
    num_given = in_range(message.n if message.HasField("n") else 1, "sampling.n", low=1, high=most)
    num_computed = message.best_of if message.HasField("best_of") else num_given
    return num_given, in_range(num_computed, "sampling.best_of", low=num_given, high=most)


def _another_answer(first: Request, index: int, *, request_id: int) -> Request:
    """It differs from the first by its seed, and does not tell the prompt's log-probabilities again."""
    sampling = replace(first.sampling, seed=(first.sampling.seed + index) % (1 << 64))
    return replace(first, id=request_id, sampling=sampling, output=replace(first.output, num_prompt_logprobs=None))


def _max_output_tokens(message: pb.StoppingCriteria, num_prompt_tokens: int, limits: Limits) -> int:
    requested = message.max_tokens if message.HasField("max_tokens") else None
    if requested is not None:
        in_range(requested, "stopping.max_tokens", low=1)
    try:
        return limits.max_output_tokens(num_prompt_tokens=num_prompt_tokens, requested=requested)
    except ExceedsModelLenError as error:
        metadata = {"needed_tokens": str(error.num_tokens), "max_model_len": str(error.max_model_len)}
        raise ServiceError(reasons.ERROR_REASON_EXCEEDS_MODEL_LEN, str(error), metadata=metadata) from error
    except ExceedsKVCacheError as error:
        metadata = {"needed_blocks": str(error.num_needed_blocks), "num_blocks": str(error.num_blocks)}
        raise ServiceError(reasons.ERROR_REASON_EXCEEDS_KV_CACHE, str(error), metadata=metadata) from error


def _stopping(message: pb.StoppingCriteria, max_output_tokens: int, facts: ModelFacts) -> Stopping:
    at_most(len(message.stop), "stopping.stop", MAX_STOP_STRINGS, "strings")
    at_most(len(message.stop_token_ids), "stopping.stop_token_ids", MAX_STOP_TOKEN_IDS, "tokens")
    of_vocabulary(message.stop_token_ids, "stopping.stop_token_ids", facts.tokenizer)
    try:
        StopMatcher(message.stop)
    except InvalidStopStringError as error:
        raise ServiceError(reasons.ERROR_REASON_OUT_OF_RANGE, str(error), field="stopping.stop") from error
    end_tokens = frozenset() if message.ignore_eos else facts.eos_token_ids
    return Stopping(
        max_output_tokens=max_output_tokens,
        stop_strings=tuple(message.stop),
        stop_token_ids=end_tokens | frozenset(message.stop_token_ids),
        min_output_tokens=in_range(message.min_tokens, "stopping.min_tokens", low=0, high=max_output_tokens),
    )


def _output(message: pb.GenerateRequest, tokens: list[int], tokenizer: Tokenizer) -> OutputOptions:
    def number(name: Literal["logprobs", "prompt_logprobs"]) -> int | None:
        if not message.output.HasField(name):
            return None
        value: int = getattr(message.output, name)
        return in_range(value, f"output.{name}", low=0, high=MAX_TOP_LOGPROBS)

    echo = ""
    if message.output.echo and not message.output.omit_text:
        echo = message.text or tokenizer.decode(tokens)
    return OutputOptions(
        echo=echo,
        omits_text=message.output.omit_text,
        num_logprobs=number("logprobs"),
        num_prompt_logprobs=number("prompt_logprobs"),
    )


def checked_name(name: str, field: str) -> str:
    """The name. Raises ServiceError where it is too long."""
    if len(name.encode()) > MAX_NAME_BYTES:
        raise out_of_range(field, f"{len(name.encode())} bytes", f"at most {MAX_NAME_BYTES} bytes")
    return name
