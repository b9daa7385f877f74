"""One request in the executor: its tokens, and the text that they spell."""

from __future__ import annotations

from collections.abc import Sequence as AbstractSequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from executor_service.engine.request import FinishReason, Request, TokenLogprobs, Usage
from executor_service.sampling.adjustments import Adjuster


class Detokenizer(Protocol):
    """Turns tokens into whole characters as they come."""

    def push(self, token_ids: AbstractSequence[int]) -> str: ...

    def flush(self) -> str: ...


class StopResult(Protocol):
    @property
    def text(self) -> str: ...

    @property
    def matched(self) -> str | None: ...


class StopStrings(Protocol):
    """Holds text back while it may be the start of a stop string."""

    def push(self, text: str) -> StopResult: ...

    def flush(self) -> str: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """What one generated token adds to the answer."""

    text: str
    finish_reason: FinishReason | None
    matched_stop: str


class Sequence:
    """The tokens of a request, prompt first, how its answer is spelled and ended, and what it does to its logits."""

    __slots__ = (
        "_buffer",
        "_echo",
        "adjuster",
        "detokenizer",
        "first_run_us",
        "first_token_us",
        "newest_token_us",
        "num_cached_tokens",
        "num_tokens",
        "prompt_logprobs",
        "request",
        "stop_strings",
    )

    def __init__(self, request: Request, *, detokenizer: Detokenizer, stop_strings: StopStrings) -> None:
        self.request = request
        self.detokenizer = detokenizer
        self.stop_strings = stop_strings
        self.num_tokens = len(request.prompt_token_ids)
        # Doubles when it is full: an answer may have tens of thousands of tokens, and most have a few.
        self._buffer = np.empty(self.num_tokens + 64, dtype=np.int32)
        self._buffer[: self.num_tokens] = request.prompt_token_ids
        self.adjuster = _adjuster_of(request)
        # Of the prompt's tokens from the second on, as far as passes have gone. An eviction does not take them back.
        self.prompt_logprobs: list[TokenLogprobs] = []
        self._echo = request.output.echo
        self.num_cached_tokens = 0  # that it found when it first ran
        self.first_run_us = 0
        self.first_token_us = 0
        self.newest_token_us = 0

    @property
    def num_prompt_tokens(self) -> int:
        return len(self.request.prompt_token_ids)

    @property
    def num_output_tokens(self) -> int:
        return self.num_tokens - self.num_prompt_tokens

    def tokens(self, start: int, stop: int) -> NDArray[np.int32]:
        """Tokens [start, stop) of prompt and output together, and of the drafts behind them. A view."""
        return self._buffer[start:stop]

    @property
    def may_have_drafts(self) -> bool:
        """Whether what is done to its logits is the same for every token that follows, whichever these are."""
        return self.adjuster is None or self.adjuster.is_fixed

    def draft(self, token_ids: NDArray[np.int32]) -> None:
        """Write tokens that may follow behind the newest one, in the place of those written before.

        They are no tokens of the request: what is pushed takes their place.
        """
        self._reserve(self.num_tokens + len(token_ids))
        self._buffer[self.num_tokens : self.num_tokens + len(token_ids)] = token_ids

    def push(self, token_id: int) -> Output:
        """Append a generated token. The last token of an answer, an end token too, counts as output."""
        self._append(token_id)
        if self.adjuster is not None:
            self.adjuster.push(token_id)
        echo, self._echo = self._echo, ""
        stopping = self.request.stopping
        if token_id in stopping.stop_token_ids and self._may_stop:
            return self._end(echo, FinishReason.STOP)
        text, matched = self._watch(self.detokenizer.push((token_id,)))
        text = echo + text
        if matched is not None:
            return Output(text=text, finish_reason=FinishReason.STOP, matched_stop=matched)
        if self.adjuster is not None and self.adjuster.is_complete:
            return self._end(text, FinishReason.STOP)
        if self.num_output_tokens >= stopping.max_output_tokens:
            return self._end(text, FinishReason.LENGTH)
        return Output(text=text, finish_reason=None, matched_stop="")

    def usage(self, *, num_preemptions: int, now_us: int) -> Usage:
        arrival = self.request.arrival_time_us
        return Usage(
            num_prompt_tokens=self.num_prompt_tokens,
            num_output_tokens=self.num_output_tokens,
            num_cached_tokens=self.num_cached_tokens,
            num_preemptions=num_preemptions,
            queue_time_us=max(0, self.first_run_us - arrival),
            time_to_first_token_us=max(0, self.first_token_us - arrival),
            total_time_us=max(0, now_us - arrival),
        )

    def _append(self, token_id: int) -> None:
        self._reserve(self.num_tokens + 1)
        self._buffer[self.num_tokens] = token_id
        self.num_tokens += 1

    def _reserve(self, num_tokens: int) -> None:
        while num_tokens > len(self._buffer):
            self._buffer = np.concatenate([self._buffer, np.empty_like(self._buffer)])

    @property
    def _may_stop(self) -> bool:
        """Whether the newest token, or its text, may end the answer."""
        return self.num_output_tokens > self.request.stopping.min_output_tokens

    def _watch(self, text: str) -> tuple[str, str | None]:
        """The text that may be sent, and the stop string that has ended it. Text that may not stop is not looked at."""
        if not self._may_stop:
            return text, None
        result = self.stop_strings.push(text)
        return result.text, result.matched

    def _end(self, text: str, reason: FinishReason) -> Output:
        """Give out what is held back, which may complete a stop string."""
        last, matched = self._watch(self.detokenizer.flush())
        if matched is not None:
            return Output(text=text + last, finish_reason=FinishReason.STOP, matched_stop=matched)
        return Output(text=text + last + self.stop_strings.flush(), finish_reason=reason, matched_stop="")


def _adjuster_of(request: Request) -> Adjuster | None:
    """None where the request leaves its logits as they are."""
    stopping, adjustments = request.stopping, request.sampling.adjustments
    if adjustments.is_neutral and not stopping.min_output_tokens:
        return None
    return Adjuster(
        adjustments,
        prompt_token_ids=request.prompt_token_ids,
        end_token_ids=np.array(sorted(stopping.stop_token_ids), dtype=np.int64),
        min_output_tokens=stopping.min_output_tokens,
    )
