"""One request in the executor: its tokens, and the text that they spell."""

from __future__ import annotations

from collections.abc import Sequence as AbstractSequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from executor_service.engine.request import FinishReason, Request, Usage


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
    """The tokens of a request, prompt first, and how its answer is spelled and ended."""

    __slots__ = (
        "_buffer",
        "detokenizer",
        "first_run_us",
        "first_token_us",
        "num_cached_tokens",
        "num_tokens",
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
        self.num_cached_tokens = 0  # that it found when it first ran
        self.first_run_us = 0
        self.first_token_us = 0

    @property
    def num_output_tokens(self) -> int:
        return self.num_tokens - len(self.request.prompt_token_ids)

    def tokens(self, start: int, stop: int) -> NDArray[np.int32]:
        """Tokens [start, stop) of prompt and output together. A view."""
        return self._buffer[start:stop]

    def push(self, token_id: int) -> Output:
        """Append a generated token. The last token of an answer, an end token too, counts as output."""
        self._append(token_id)
        stopping = self.request.stopping
        if token_id in stopping.stop_token_ids:
            return self._end("", FinishReason.STOP)
        result = self.stop_strings.push(self.detokenizer.push((token_id,)))
        if result.matched is not None:
            return Output(text=result.text, finish_reason=FinishReason.STOP, matched_stop=result.matched)
        if self.num_output_tokens >= stopping.max_output_tokens:
            return self._end(result.text, FinishReason.LENGTH)
        return Output(text=result.text, finish_reason=None, matched_stop="")

    def usage(self, *, num_preemptions: int, now_us: int) -> Usage:
        arrival = self.request.arrival_time_us
        return Usage(
            num_prompt_tokens=len(self.request.prompt_token_ids),
            num_output_tokens=self.num_output_tokens,
            num_cached_tokens=self.num_cached_tokens,
            num_preemptions=num_preemptions,
            queue_time_us=max(0, self.first_run_us - arrival),
            time_to_first_token_us=max(0, self.first_token_us - arrival),
            total_time_us=max(0, now_us - arrival),
        )

    def _append(self, token_id: int) -> None:
        if self.num_tokens == len(self._buffer):
            self._buffer = np.concatenate([self._buffer, np.empty_like(self._buffer)])
        self._buffer[self.num_tokens] = token_id
        self.num_tokens += 1

    def _end(self, text: str, reason: FinishReason) -> Output:
        """Give out what is held back, which may complete a stop string."""
        result = self.stop_strings.push(self.detokenizer.flush())
        text += result.text
        if result.matched is not None:
            return Output(text=text, finish_reason=FinishReason.STOP, matched_stop=result.matched)
        return Output(text=text + self.stop_strings.flush(), finish_reason=reason, matched_stop="")
