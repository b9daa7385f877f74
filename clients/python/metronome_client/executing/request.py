"""A request: its row of the books, and the stream that its tokens go to."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncIterator

import grpc

from metronome.inference.v1 import inference_pb2
from metronome.scheduler.v1 import state_pb2
from metronome_client.executing.wanted import Wanted
from metronome_client.serving import RefusalError


class Request:
    """Has the columns of the contract's `RequestTable` by their names. Subclass it for what is yours.

    `Books` keeps the columns. Made and used on one event loop. `left_s`: until the call's deadline; None: it has none.
    """

    def __init__(self, wanted: Wanted, *, left_s: float | None = None) -> None:
        self.wanted = wanted
        self.id = 0  # the books give it
        self.status = state_pb2.REQUEST_STATUS_WAITING
        self.arrival_time_us = now_us()
        self.deadline_us = 0 if left_s is None else self.arrival_time_us + int(left_s * 1e6)
        self.num_computed_tokens = self.num_blocks = self.num_preemptions = 0
        self.last_run_iteration = self.times_overtaken = 0
        self.output: list[int] = []
        self.has_ended = False
        self.is_finished = False  # it has ended with a whole answer
        self.first_run_us = self._first_token_us = 0
        self._events: asyncio.Queue[inference_pb2.GenerateResponse | RefusalError] = asyncio.Queue()
        self._text, self._num_sent, self._num_unsearched = "", 0, 0

    @property
    def name(self) -> str:
        """What its client calls it."""
        return self.wanted.name

    @property
    def tokens(self) -> tuple[int, ...]:
        """Prompt and output."""
        return (*self.wanted.prompt, *self.output)

    @property
    def is_computed(self) -> bool:
        """Whether all its tokens have KV, so that the next one is due."""
        return self.num_computed_tokens == len(self.wanted.prompt) + len(self.output)

    def append(self, token_id: int, text: str, *, is_end: bool = False) -> None:
        """Take and tell the next token; the answer ends with it where it must.

        `text`: what it adds, whole characters. `is_end`: it is an end token, whose text is not sent. One that comes
        after the end is dropped.
        """
        if self.has_ended:
            return
        self.output.append(token_id)
        self._first_token_us = self._first_token_us or now_us()
        self._text += "" if is_end else text
        stop, end = self._stop()
        is_last = is_end or stop or len(self.output) == self.wanted.max_tokens
        if not is_last:
            end -= self._num_held_back()
        sent = self._text[self._num_sent : end]
        self._num_sent = max(end, self._num_sent)
        delta = inference_pb2.Delta(text="" if self.wanted.omit_text else sent, token_ids=[token_id])
        self._events.put_nowait(inference_pb2.GenerateResponse(delta=delta))
        if is_last:
            self._finish(stop, is_stop=is_end or bool(stop))

    def refuse(self, error: RefusalError) -> None:
        """End it with an error. The first end counts."""
        if not self.has_ended:
            self.has_ended = True
            self._events.put_nowait(error)

    async def events(self) -> AsyncIterator[inference_pb2.GenerateResponse]:
        """The messages of its stream: numbered, `started` first, `finished` last. Raises what it was refused with."""
        wanted = self.wanted
        started = inference_pb2.Started(
            request_id=wanted.name,
            num_prompt_tokens=len(wanted.prompt),
            sampling=wanted.sampling,
            max_tokens=wanted.max_tokens,
        )
        yield inference_pb2.GenerateResponse(started=started)
        for sequence in itertools.count(1):
            event = await self._events.get()
            if isinstance(event, RefusalError):
                raise event
            event.sequence = sequence
            yield event
            if event.HasField("finished"):
                return

    def _finish(self, stop: str, *, is_stop: bool) -> None:
        usage = inference_pb2.Usage(
            num_prompt_tokens=len(self.wanted.prompt),
            num_output_tokens=len(self.output),
            num_preemptions=self.num_preemptions,
            queue_time_us=self.first_run_us - self.arrival_time_us,
            time_to_first_token_us=self._first_token_us - self.arrival_time_us,
            total_time_us=now_us() - self.arrival_time_us,
        )
        reason = inference_pb2.FINISH_REASON_STOP if is_stop else inference_pb2.FINISH_REASON_LENGTH
        finished = inference_pb2.Finished(finish_reason=reason, matched_stop=stop, usage=usage)
        self._events.put_nowait(inference_pb2.GenerateResponse(finished=finished))
        self.has_ended = self.is_finished = True

    def _stop(self) -> tuple[str, int]:
        """The stop string that appears first, and where; "" and the end of the text where there is none."""
        if len(self.output) < self.wanted.min_tokens:
            self._num_unsearched = len(self._text)
        found = [(self._text.find(stop, self._num_unsearched), stop) for stop in self.wanted.stop]
        start, stop = min((one for one in found if one[0] >= 0), default=(len(self._text), ""))
        return stop, start

    def _num_held_back(self) -> int:
        """Characters at the end that may become a stop string yet."""
        text = self._text[self._num_unsearched :]
        sizes = (n for stop in self.wanted.stop for n in range(1, len(stop)) if text.endswith(stop[:n]))
        return max(sizes, default=0)


def rejection(reason: str, estimated_wait_us: int) -> RefusalError:
    """What a request ends with that a plan rejects. `reason`: as the contract has it, without its prefix."""
    is_final = reason.startswith("REJECTED_EXCEEDS") or reason == "REJECTED_DEADLINE"
    return RefusalError(
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        "REJECTED_BY_SCHEDULER",
        "the scheduler turned it away",
        metadata={"scheduler_reason": reason},
        retry_delay_s=None if is_final else max(1.0, estimated_wait_us / 1e6),
    )


def now_us() -> int:
    """Unix time in microseconds."""
    return time.time_ns() // 1000
