"""What an executor looks at before it takes a request: the ranges of the contract, and whether it can ever fit."""

from __future__ import annotations

import secrets
import uuid
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import grpc

from metronome.inference.v1 import inference_pb2
from metronome.scheduler.v1 import state_pb2
from metronome_client.serving import RefusalError

_GREEDY_BELOW = 1e-5
_INT32_MAX = 2**31 - 1
_MAX_NAME_BYTES = 256

# field: least and most, where it is set
_RANGES: dict[str, tuple[float, float]] = {
    "sampling.temperature": (0, 100),
    "sampling.top_k": (0, _INT32_MAX),
    "sampling.top_p": (1e-30, 1),  # above 0
    "sampling.min_p": (0, 1),
    "sampling.repetition_penalty": (1e-6, 100),
    "sampling.presence_penalty": (-2, 2),
    "sampling.frequency_penalty": (-2, 2),
    "sampling.n": (1, 64),
    "sampling.best_of": (1, 64),
    "stopping.max_tokens": (1, _INT32_MAX),
    "stopping.min_tokens": (0, _INT32_MAX),
    "output.logprobs": (0, 20),
    "output.prompt_logprobs": (0, 20),
    "expected_output_tokens": (0, _INT32_MAX),
}
# field: most entries
_SIZES = {
    "sampling.logit_bias": 1024,
    "sampling.banned_token_ids": 1024,
    "stopping.stop": 16,
    "stopping.stop_token_ids": 64,
}
# What `Request` and a sampler can do. The rest is refused, unless the executor says that it has it.
_OFFERED = frozenset(
    {
        *("sampling.temperature", "sampling.top_k", "sampling.top_p", "sampling.min_p", "sampling.seed"),
        *("stopping.max_tokens", "stopping.stop", "stopping.ignore_eos", "output.omit_text"),
    }
)
_NEUTRAL = {"sampling.n": 1, "sampling.best_of": 1, "sampling.repetition_penalty": 1}


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """A request that was found good. `sampling`: the parameters in force, defaults and the drawn seed filled in."""

    name: str
    prompt: tuple[int, ...]
    max_tokens: int
    sampling: inference_pb2.SamplingParameters
    stop: tuple[str, ...]
    min_tokens: int
    omit_text: bool
    priority: int
    expected_output_tokens: int

    @property
    def is_greedy(self) -> bool:
        return self.sampling.temperature < _GREEDY_BELOW


def checked(
    message: inference_pb2.GenerateRequest,
    limits: state_pb2.ExecutorLimits,
    *,
    tokenize: Callable[[str], Sequence[int]],
    vocab_size: int,
    offered: Collection[str] = (),
) -> Wanted:
    """What is wanted. Raises RefusalError, with the reason of the contract, and the field where one is at fault.

    `offered`: paths of what the executor has besides temperature, top-k, top-p, min-p and seed, stop strings and
    `ignore_eos`: "sampling.logit_bias". Several answers (`n`) and conversations are not for it to offer.
    """
    for path, value in _given(message):
        _check_range(path, value)
    for path, value in _given(message):
        _check_offered(path, value, offered)
    prompt = _prompt(message, tokenize, vocab_size)
    stopping = message.stopping
    sampling = inference_pb2.SamplingParameters(temperature=1, top_p=1, repetition_penalty=1, n=1)
    sampling.seed = secrets.randbits(32)
    sampling.MergeFrom(message.sampling)
    return Wanted(
        name=message.request_id or str(uuid.uuid4()),
        prompt=prompt,
        max_tokens=_max_tokens(stopping, len(prompt), limits),
        sampling=sampling,
        stop=tuple(stopping.stop),
        min_tokens=stopping.min_tokens,
        omit_text=message.output.omit_text,
        priority=message.priority,
        expected_output_tokens=message.expected_output_tokens,
    )


def known_tokens(ids: Sequence[int], vocab_size: int, field: str) -> tuple[int, ...]:
    """The ids, as tokens. Raises RefusalError where one is not in the vocabulary."""
    for i, token_id in enumerate(ids):
        if not 0 <= token_id < vocab_size:
            raise _invalid("UNKNOWN_TOKEN", f"{token_id} is not in the vocabulary", f"{field}[{i}]", token_id)
    return tuple(ids)


def _given(message: inference_pb2.GenerateRequest) -> Iterator[tuple[str, Any]]:
    """Paths and values of the fields that are set."""
    for field, value in message.ListFields():
        if field.name in ("sampling", "stopping", "output"):
            yield from ((f"{field.name}.{inner.name}", content) for inner, content in value.ListFields())
        else:
            yield field.name, value


def _check_range(path: str, value: Any) -> None:
    if path in _RANGES:
        least, most = _RANGES[path]
        if not least <= value <= most:  # NaN, too
            raise _invalid("OUT_OF_RANGE", f"{path} must be {least} to {most}", path, value)
    if path in _SIZES and len(value) > _SIZES[path]:
        raise _invalid("OUT_OF_RANGE", f"{path} may have {_SIZES[path]} entries", path, len(value))
    if path in ("request_id", "tenant") and len(value.encode()) > _MAX_NAME_BYTES:
        raise _invalid("OUT_OF_RANGE", f"{path} may have {_MAX_NAME_BYTES} bytes", path, len(value.encode()))
    if path == "stopping.stop" and "" in value:
        i = list(value).index("")
        raise _invalid("OUT_OF_RANGE", "a stop string has at least one character", f"{path}[{i}]", "")


def _check_offered(path: str, value: Any, offered: Collection[str]) -> None:
    is_option = path.partition(".")[0] in ("sampling", "stopping", "output")
    if is_option and path not in _OFFERED and path not in offered and value != _NEUTRAL.get(path):
        code, message = grpc.StatusCode.UNIMPLEMENTED, f"{path} is not offered here"
        raise RefusalError(code, "NOT_OFFERED", message, metadata={"field": path})


def _prompt(
    message: inference_pb2.GenerateRequest, tokenize: Callable[[str], Sequence[int]], vocab_size: int
) -> tuple[int, ...]:
    field = message.WhichOneof("prompt") or "prompt"
    if field == "messages":
        raise RefusalError(grpc.StatusCode.FAILED_PRECONDITION, "NO_CHAT_TEMPLATE", "prompts are text to continue")
    if field == "token_ids":
        prompt = known_tokens(message.token_ids.ids, vocab_size, "token_ids.ids")
    else:  # of no text a tokenizer may make a start token
        prompt = tuple(tokenize(message.text)) if message.text else ()
    if not prompt:
        raise RefusalError(grpc.StatusCode.INVALID_ARGUMENT, "EMPTY_PROMPT", "the prompt is empty", field=field)
    return prompt


def _max_tokens(
    stopping: inference_pb2.StoppingCriteria, num_prompt_tokens: int, limits: state_pb2.ExecutorLimits
) -> int:
    """Most tokens of the answer. The newest one needs no place in the cache."""
    in_cache = limits.num_blocks * limits.block_size - num_prompt_tokens + 1
    room = min(limits.max_model_len - num_prompt_tokens, in_cache)
    max_tokens = stopping.max_tokens if stopping.HasField("max_tokens") else max(room, 1)
    if num_prompt_tokens + max_tokens > limits.max_model_len:
        figures = {"needed_tokens": num_prompt_tokens + max_tokens, "max_model_len": limits.max_model_len}
        raise _never_fits("EXCEEDS_MODEL_LEN", "prompt and answer are longer than the model takes", figures)
    if max_tokens > in_cache:
        needed = -(-(num_prompt_tokens + max_tokens - 1) // limits.block_size)
        figures = {"needed_blocks": needed, "num_blocks": limits.num_blocks}
        raise _never_fits("EXCEEDS_KV_CACHE", "it needs more blocks than there are", figures)
    return max_tokens


def _invalid(reason: str, message: str, field: str, value: Any) -> RefusalError:
    return RefusalError(
        grpc.StatusCode.INVALID_ARGUMENT, reason, message, field=field, metadata={"value": str(value)[:64]}
    )


def _never_fits(reason: str, message: str, figures: dict[str, int]) -> RefusalError:
    metadata = {name: str(figure) for name, figure in figures.items()}
    return RefusalError(grpc.StatusCode.INVALID_ARGUMENT, reason, message, metadata=metadata)
