"""What the executor looks at before it takes a request, and what it says of each fault."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import grpc

from metronome.inference.v1 import inference_pb2
from metronome.scheduler.v1 import state_pb2
from metronome_client.serving import RefusalError

MAX_NAME_BYTES = 256
# field: least and most; only where it is set, if it can be not set
RANGES = {
    "sampling.temperature": (0, 100),
    "sampling.top_p": (1e-9, 1),
    "sampling.n": (1, 64),
    "stopping.max_tokens": (1, 2**31),
    "output.logprobs": (0, 20),
    "output.prompt_logprobs": (0, 20),
}
OFFERED = {"temperature", "seed", "top_p", "top_k", "min_p", "n", "max_tokens", "stop", "ignore_eos"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """A request that can run: it fits the model and the cache."""

    prompt: tuple[int, ...]
    max_tokens: int
    stop: tuple[str, ...]
    temperature: float
    top_p: float

    @property
    def is_greedy(self) -> bool:
        return self.temperature < 1e-5

    def parameters(self, seed: int) -> inference_pb2.SamplingParameters:
        """Those in force, which `started` tells."""
        return inference_pb2.SamplingParameters(temperature=self.temperature, top_p=self.top_p, seed=seed, n=1)

    def stop_in(self, text: str) -> tuple[str | None, int]:
        """The stop string that appears first, and where; None and the end of the text where there is none."""
        found = [(text.find(stop), stop) for stop in self.stop if stop in text]
        return (min(found)[1], min(found)[0]) if found else (None, len(text))

    def num_held_back(self, text: str) -> int:
        """Characters at the end with which a stop string may begin."""
        sizes = [n for stop in self.stop for n in range(1, len(stop)) if text.endswith(stop[:n])]
        return max(sizes, default=0)


def checked(message: inference_pb2.GenerateRequest, limits: state_pb2.ExecutorLimits) -> Checked:
    """Raises RefusalError, and names the field."""
    prompt = _prompt(message)
    for path, (least, most) in RANGES.items():
        part, _, name = path.partition(".")
        options = getattr(message, part)
        if options.HasField(name) and not least <= getattr(options, name) <= most:
            raise _invalid("OUT_OF_RANGE", f"{path} must be {least} to {most}", path)
    if message.expected_output_tokens < 0:
        raise _invalid("OUT_OF_RANGE", "it must be at least 0", "expected_output_tokens")
    if len(message.request_id.encode()) > MAX_NAME_BYTES:
        raise _invalid("OUT_OF_RANGE", f"it must be at most {MAX_NAME_BYTES} bytes", "request_id")
    for part in ("sampling", "stopping", "output"):
        for field, _ in getattr(message, part).ListFields():
            if field.name not in OFFERED or (field.name == "n" and message.sampling.n > 1):
                path = f"{part}.{field.name}"
                code = grpc.StatusCode.UNIMPLEMENTED
                raise RefusalError(code, "NOT_OFFERED", f"{path} is not offered here", metadata={"field": path})
    stopping, room = message.stopping, limits.max_model_len - len(prompt)
    max_tokens = stopping.max_tokens if stopping.HasField("max_tokens") else room
    if not 1 <= max_tokens <= room:
        figures = {"needed_tokens": str(len(prompt) + max(max_tokens, 1)), "max_model_len": str(limits.max_model_len)}
        message_ = "prompt and answer are longer than the model takes"
        raise RefusalError(grpc.StatusCode.INVALID_ARGUMENT, "EXCEEDS_MODEL_LEN", message_, metadata=figures)
    needed = -(-(len(prompt) + max_tokens - 1) // limits.block_size)
    if needed > limits.num_blocks:
        figures = {"needed_blocks": str(needed), "num_blocks": str(limits.num_blocks)}
        raise RefusalError(
            grpc.StatusCode.INVALID_ARGUMENT, "EXCEEDS_KV_CACHE", "it needs more blocks", metadata=figures
        )
    sampling = message.sampling
    return Checked(
        prompt=prompt,
        max_tokens=max_tokens,
        stop=tuple(stopping.stop),
        temperature=sampling.temperature if sampling.HasField("temperature") else 1.0,
        top_p=sampling.top_p if sampling.HasField("top_p") else 1.0,
    )


def token_text(token_ids: Iterable[int], *, field: str = "token_ids.ids") -> str:
    """Text of tokens, which are bytes. Raises RefusalError where one is none."""
    ids = list(token_ids)
    for i, token_id in enumerate(ids):
        if not 0 <= token_id < 256:
            raise _invalid("UNKNOWN_TOKEN", f"{token_id} is not in the vocabulary", f"{field}[{i}]")
    return bytes(ids).decode(errors="replace")


def _prompt(message: inference_pb2.GenerateRequest) -> tuple[int, ...]:
    match message.WhichOneof("prompt"):
        case "text":
            prompt = tuple(message.text.encode())
        case "token_ids":
            token_text(message.token_ids.ids)
            prompt = tuple(message.token_ids.ids)
        case "messages":
            raise RefusalError(grpc.StatusCode.FAILED_PRECONDITION, "NO_CHAT_TEMPLATE", "prompts are text to continue")
        case _:
            raise _invalid("EMPTY_PROMPT", "a prompt is needed", "prompt")
    if not prompt:
        raise _invalid("EMPTY_PROMPT", "the prompt is empty", message.WhichOneof("prompt") or "prompt")
    return prompt


def _invalid(reason: str, message: str, field: str) -> RefusalError:
    return RefusalError(grpc.StatusCode.INVALID_ARGUMENT, reason, message, field=field)
