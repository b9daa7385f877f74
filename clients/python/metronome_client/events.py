"""The events of an answer: one `Started`, then `Delta`s, then one `Finished`.

Heartbeats of the contract are not among them: they say only that the stream is alive.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from metronome.inference.v1 import inference_pb2


class FinishReason(enum.Enum):
    """Why an answer ended. `OTHER`: a reason that this client is too old to know."""

    STOP = inference_pb2.FINISH_REASON_STOP
    LENGTH = inference_pb2.FINISH_REASON_LENGTH
    OTHER = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """The request is in the queue. `max_tokens` and `seed` are the ones in force, drawn or given."""

    request_id: str
    num_prompt_tokens: int
    max_tokens: int
    seed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenLogprobs:
    """The log-probabilities at one position: of the token there, and of the most likely ones, best first."""

    logprob: float
    top_token_ids: tuple[int, ...]
    top_logprobs: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Delta:
    """More of the answer. `text` holds whole characters and may be empty while one is incomplete.

    `logprobs` are those of `token_ids`; `prompt_logprobs`, in the first delta alone, those of the prompt, whose first
    token has none. Both are empty unless asked for.
    """

    text: str
    token_ids: tuple[int, ...]
    index: int = 0
    logprobs: tuple[TokenLogprobs, ...] = ()
    prompt_logprobs: tuple[TokenLogprobs | None, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """What a request took; times in microseconds from its arrival at the executor."""

    num_prompt_tokens: int
    num_output_tokens: int
    num_cached_tokens: int
    num_preemptions: int
    queue_time_us: int
    time_to_first_token_us: int
    total_time_us: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """The answer is complete. `matched_stop` is the stop string that ended it, or empty."""

    reason: FinishReason
    usage: Usage
    matched_stop: str = ""
    index: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """Something besides its turn keeps the request waiting: `detail` says what, in a sentence for people."""

    detail: str
    num_ahead: int = 0


Event = Started | Delta | Finished | Waiting


def event_from_message(message: inference_pb2.GenerateResponse) -> Event | None:
    """Read one message of the stream; None for one that says nothing new."""
    match message.WhichOneof("event"):
        case "started":
            return _started(message.started)
        case "delta":
            return _delta(message.delta)
        case "finished":
            return _finished(message.finished)
        case "heartbeat" if message.heartbeat.detail:
            return Waiting(detail=message.heartbeat.detail, num_ahead=message.heartbeat.num_ahead)
        case _:  # a heartbeat that says no more than that, or an event of a later version of the contract
            return None


def _started(started: inference_pb2.Started) -> Started:
    return Started(
        request_id=started.request_id,
        num_prompt_tokens=started.num_prompt_tokens,
        max_tokens=started.max_tokens,
        seed=started.sampling.seed,
    )


def _delta(delta: inference_pb2.Delta) -> Delta:
    if not delta.logprobs and not delta.prompt_logprobs:  # nearly every one of them
        return Delta(text=delta.text, token_ids=tuple(delta.token_ids), index=delta.index)
    first, others = delta.prompt_logprobs[:1], delta.prompt_logprobs[1:]
    return Delta(
        text=delta.text,
        token_ids=tuple(delta.token_ids),
        index=delta.index,
        logprobs=tuple(_logprobs(told) for told in delta.logprobs),
        prompt_logprobs=(*(None for _ in first), *(_logprobs(told) for told in others)),
    )


def _logprobs(told: inference_pb2.TokenLogprobs) -> TokenLogprobs:
    return TokenLogprobs(
        logprob=told.logprob, top_token_ids=tuple(told.top_token_ids), top_logprobs=tuple(told.top_logprobs)
    )


def _finished(finished: inference_pb2.Finished) -> Finished:
    known = {reason.value for reason in FinishReason}
    reason = FinishReason(finished.finish_reason) if finished.finish_reason in known else FinishReason.OTHER
    usage = Usage(**{name: getattr(finished.usage, name) for name in Usage.__dataclass_fields__})
    return Finished(reason=reason, usage=usage, matched_stop=finished.matched_stop, index=finished.index)
