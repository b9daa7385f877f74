"""What a client asks of the engine, and what the engine tells it back."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from executor_service.engine.plan import Rejection
from executor_service.sampling.adjustments import Adjustments


class FinishReason(IntEnum):
    """Numbered as in the contract."""

    STOP = 1
    LENGTH = 2


class EndCause(IntEnum):
    """Why a request ended without an answer."""

    CANCELLED = 1
    DEADLINE = 2
    REJECTED = 3
    INVALID_LOGITS = 4
    FAILED = 5
    SHUT_DOWN = 6
    NO_TOKEN_ALLOWED = 7


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How to choose each token; every default filled in."""

    temperature: float
    top_k: int  # 0: off
    top_p: float  # 1: off
    seed: int  # 64 bits
    min_p: float = 0.0  # 0: off
    adjustments: Adjustments = field(default_factory=Adjustments)  # what is done to the logits first


@dataclass(frozen=True, slots=True, kw_only=True)
class Stopping:
    """What ends an answer. Before its first ``min_output_tokens`` only a complete constraint does."""

    max_output_tokens: int
    stop_strings: tuple[str, ...]
    stop_token_ids: frozenset[int]  # the model's end tokens among them, unless they are ignored
    min_output_tokens: int = 0  # at most max_output_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputOptions:
    """What is told besides the answer."""

    echo: str = ""  # text to give before the answer's
    omits_text: bool = False  # tokens alone are sent
    num_logprobs: int | None = (
        None  # most likely tokens told with each generated one; None: no log-probabilities at all
    )
    num_prompt_logprobs: int | None = None  # the same for the tokens of the prompt


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Request:
    """One request, checked: it fits the executor's limits, and its tokens are of the vocabulary."""

    id: int  # > 0, never reused
    name: str  # what the client calls it
    prompt_token_ids: NDArray[np.int32]  # [num_prompt_tokens >= 1]
    sampling: Sampling
    stopping: Stopping
    output: OutputOptions
    priority: int
    tenant: str
    expected_output_tokens: int  # 0: unknown
    arrival_time_us: int
    deadline_us: int  # 0: none
    reuse_prefix: bool = True  # False: all of it is computed
    samples_of: int = 0  # of several answers to this prompt, the id of the first one's request; 0: there is one answer

    @property
    def may_reuse_prefix(self) -> bool:
        """Whether it may begin with cached KV: not where the logits of its prompt are asked for, which no cache has."""
        return self.reuse_prefix and self.output.num_prompt_logprobs is None


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenLogprobs:
    """The log-probabilities at one position."""

    logprob: float  # of the token that stands there
    top_token_ids: tuple[int, ...] = ()  # the most likely ones, best first
    top_logprobs: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TokensEvent:
    """More of an answer; ``text`` may be empty while a character or a possible stop string is incomplete."""

    request_id: int
    token_ids: tuple[int, ...]
    text: str
    logprobs: tuple[TokenLogprobs, ...] = ()  # of token_ids, where asked for
    prompt_logprobs: tuple[
        TokenLogprobs, ...
    ] = ()  # of the prompt but its first token, where asked for: once, at first


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedEvent:
    """The answer is complete."""

    request_id: int
    finish_reason: FinishReason
    matched_stop: str
    usage: Usage


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedEvent:
    """The request ended without an answer; ``detail`` is one sentence for its client."""

    request_id: int
    cause: EndCause
    detail: str
    rejection: Rejection | None = None  # set where the cause is REJECTED


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """What an answer took; times in microseconds since arrival."""

    num_prompt_tokens: int
    num_output_tokens: int
    num_cached_tokens: int  # of the prompt, that came from the prefix cache
    num_preemptions: int
    queue_time_us: int
    time_to_first_token_us: int
    total_time_us: int


Event = TokensEvent | FinishedEvent | EndedEvent
