"""Generate requests to the engine's, checked field by field; and the engine's events to messages."""

from __future__ import annotations

import math
import secrets
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from executor_service.engine.limits import ExceedsKVCacheError, ExceedsModelLenError, Limits
from executor_service.engine.request import FinishedEvent, Request, Sampling, Stopping, TokensEvent
from executor_service.errors import ServiceError
from executor_service.text.errors import ChatTemplateMissingError, InvalidStopStringError, TextError, UnknownTokenError
from executor_service.text.stop import StopMatcher
from executor_service.text.tokenizer import ChatMessage, Tokenizer
from metronome.inference.v1 import error_reason_pb2 as reasons
from metronome.inference.v1 import inference_pb2 as pb

N = TypeVar("N", int, float)

MAX_NAME_BYTES = 256
MAX_STOP_STRINGS = 16
MAX_STOP_TOKEN_IDS = 64
MAX_TEMPERATURE = 100.0
DEFAULT_TEMPERATURE = 1.0
DEFAULT_TOP_P = 1.0

# In the contract, and not offered yet: a value other than the neutral one is UNIMPLEMENTED.
_NOT_OFFERED_SAMPLING = {
    "min_p": (0.0,),
    "repetition_penalty": (0.0, 1.0),
    "presence_penalty": (0.0,),
    "frequency_penalty": (0.0,),
    "n": (0, 1),
    "best_of": (0, 1),
}
_NOT_OFFERED_IF_SET = {
    "sampling": ("logit_bias", "allowed_token_ids", "banned_token_ids", "json_schema", "regex", "grammar"),
    "stopping": ("min_tokens",),
    "output": ("echo", "logprobs", "prompt_logprobs"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFacts:
    """What a request is checked against."""

    limits: Limits
    tokenizer: Tokenizer
    eos_token_ids: frozenset[int]


def parse_generate(
    message: pb.GenerateRequest, facts: ModelFacts, *, request_id: int, now_us: int, deadline_us: int
) -> Request:
    """Raises ServiceError that names the field at fault. Tokenises, so it may take a while."""
    _check_offered(message)
    sampling = _sampling(message.sampling)
    tokens = prompt_tokens(message, facts.tokenizer)
    max_output_tokens = _max_output_tokens(message.stopping, len(tokens), facts.limits)
    return Request(
        id=request_id,
        name=_name(message.request_id, "request_id") or secrets.token_hex(8),
        prompt_token_ids=np.array(tokens, dtype=np.int32),
        sampling=sampling,
        stopping=_stopping(message.stopping, max_output_tokens, facts),
        priority=message.priority,
        tenant=_name(message.tenant, "tenant"),
        expected_output_tokens=_in_range(message.expected_output_tokens, "expected_output_tokens", low=0),
        arrival_time_us=now_us,
        deadline_us=deadline_us,
    )


def prompt_tokens(message: pb.GenerateRequest | pb.TokenizeRequest, tokenizer: Tokenizer) -> list[int]:
    """The tokens of a prompt, at least one where it is to be generated from. Raises ServiceError."""
    if isinstance(message, pb.TokenizeRequest):
        return _encoded(message, message.WhichOneof("input") or "input", tokenizer)
    field = message.WhichOneof("prompt") or "prompt"
    # Both are looked at: of empty text a start token may be made, and of a space nothing at all.
    is_empty = field == "prompt" or (field == "text" and not message.text)
    tokens = [] if is_empty else _encoded(message, field, tokenizer)
    if not tokens:
        raise ServiceError(reasons.ERROR_REASON_EMPTY_PROMPT, "the prompt is empty", field=field)
    return tokens


def _encoded(message: pb.GenerateRequest | pb.TokenizeRequest, field: str, tokenizer: Tokenizer) -> list[int]:
    """The tokens of the field that is set, or those of no text. Raises ServiceError."""
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
        raise unknown_token(error, "token_ids.ids" if field == "token_ids" else "") from error
    except TextError as error:
        raise ServiceError(reasons.ERROR_REASON_INVALID_TEXT, str(error), field=field) from error


def started(request: Request) -> pb.Started:
    return pb.Started(
        request_id=request.name,
        num_prompt_tokens=len(request.prompt_token_ids),
        sampling=pb.SamplingParameters(
            temperature=request.sampling.temperature,
            top_k=request.sampling.top_k,
            top_p=request.sampling.top_p,
            seed=request.sampling.seed - (1 << 64 if request.sampling.seed >> 63 else 0),
        ),
        max_tokens=request.stopping.max_output_tokens,
    )


def delta(event: TokensEvent) -> pb.Delta:
    return pb.Delta(text=event.text, token_ids=event.token_ids)


def finished(event: FinishedEvent) -> pb.Finished:
    usage = event.usage
    return pb.Finished(
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


def _check_offered(message: pb.GenerateRequest) -> None:
    for name in ("n", "best_of", "repetition_penalty"):
        if message.sampling.HasField(name) and getattr(message.sampling, name) <= 0:
            raise _out_of_range(f"sampling.{name}", getattr(message.sampling, name), "above 0")
    for name, neutral in _NOT_OFFERED_SAMPLING.items():
        if getattr(message.sampling, name) not in neutral:
            raise _not_offered(f"sampling.{name}")
    for part, names in _NOT_OFFERED_IF_SET.items():
        present = {field.name for field, _ in getattr(message, part).ListFields()}
        for name in names:
            if name in present:
                raise _not_offered(f"{part}.{name}")


def _not_offered(field: str) -> ServiceError:
    return ServiceError(
        reasons.ERROR_REASON_NOT_OFFERED, f"{field} is part of the contract and not offered yet", field=field
    )


def _sampling(message: pb.SamplingParameters) -> Sampling:
    temperature = message.temperature if message.HasField("temperature") else DEFAULT_TEMPERATURE
    top_p = message.top_p if message.HasField("top_p") else DEFAULT_TOP_P
    if not 0 < top_p <= 1:
        raise _out_of_range("sampling.top_p", top_p, "above 0 and at most 1")
    seed = message.seed if message.HasField("seed") else secrets.randbits(63)
    return Sampling(
        temperature=_in_range(temperature, "sampling.temperature", low=0, high=MAX_TEMPERATURE),
        top_k=_in_range(message.top_k, "sampling.top_k", low=0),
        top_p=top_p,
        seed=seed % (1 << 64),
    )


def _max_output_tokens(message: pb.StoppingCriteria, num_prompt_tokens: int, limits: Limits) -> int:
    requested = message.max_tokens if message.HasField("max_tokens") else None
    if requested is not None:
        _in_range(requested, "stopping.max_tokens", low=1)
    try:
        return limits.max_output_tokens(num_prompt_tokens=num_prompt_tokens, requested=requested)
    except ExceedsModelLenError as error:
        metadata = {"needed_tokens": str(error.num_tokens), "max_model_len": str(error.max_model_len)}
        raise ServiceError(reasons.ERROR_REASON_EXCEEDS_MODEL_LEN, str(error), metadata=metadata) from error
    except ExceedsKVCacheError as error:
        metadata = {"needed_blocks": str(error.num_needed_blocks), "num_blocks": str(error.num_blocks)}
        raise ServiceError(reasons.ERROR_REASON_EXCEEDS_KV_CACHE, str(error), metadata=metadata) from error


def _stopping(message: pb.StoppingCriteria, max_output_tokens: int, facts: ModelFacts) -> Stopping:
    if len(message.stop) > MAX_STOP_STRINGS:
        raise _out_of_range("stopping.stop", len(message.stop), f"at most {MAX_STOP_STRINGS} strings")
    if len(message.stop_token_ids) > MAX_STOP_TOKEN_IDS:
        raise _out_of_range("stopping.stop_token_ids", len(message.stop_token_ids), f"at most {MAX_STOP_TOKEN_IDS}")
    try:
        StopMatcher(message.stop)
        facts.tokenizer.validate(message.stop_token_ids)
    except InvalidStopStringError as error:
        raise ServiceError(reasons.ERROR_REASON_OUT_OF_RANGE, str(error), field="stopping.stop") from error
    except UnknownTokenError as error:
        raise unknown_token(error, "stopping.stop_token_ids") from error
    end_tokens = frozenset() if message.ignore_eos else facts.eos_token_ids
    return Stopping(
        max_output_tokens=max_output_tokens,
        stop_strings=tuple(message.stop),
        stop_token_ids=end_tokens | frozenset(message.stop_token_ids),
    )


def _name(name: str, field: str) -> str:
    if len(name.encode()) > MAX_NAME_BYTES:
        raise _out_of_range(field, f"{len(name.encode())} bytes", f"at most {MAX_NAME_BYTES} bytes")
    return name


def _in_range(value: N, field: str, *, low: N, high: N | None = None) -> N:
    if math.isnan(value) or value < low or (high is not None and value > high):
        raise _out_of_range(field, value, f"at least {low}" if high is None else f"{low} to {high}")
    return value


def unknown_token(error: UnknownTokenError, field: str) -> ServiceError:
    """``field``: the list of ids; empty where the ids came from text."""
    return ServiceError(
        reasons.ERROR_REASON_UNKNOWN_TOKEN,
        str(error),
        field=f"{field}[{error.position}]" if field else "",
        metadata={"value": str(error.token_id)},
    )


def _out_of_range(field: str, value: object, expected: str) -> ServiceError:
    return ServiceError(
        reasons.ERROR_REASON_OUT_OF_RANGE,
        f"{field} is {value}, it must be {expected}",
        field=field,
        metadata={"value": str(value)},
    )
