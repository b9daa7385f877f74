"""The front desk: requests come in, tokens and endings go out. Every accepted request ends exactly once, here."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from executor_service.engine.batch_builder import PassInputs
from executor_service.engine.books import Books
from executor_service.engine.plan import Rejection
from executor_service.engine.read_logprobs import ReadLogprobs, read_logprobs
from executor_service.engine.record import Counters, Ending, Measures, Observer
from executor_service.engine.request import (
    EndCause,
    EndedEvent,
    Event,
    FinishedEvent,
    FinishReason,
    TokenLogprobs,
    TokensEvent,
    Usage,
)
from executor_service.engine.sequence import Output, Sequence
from executor_service.model.runner import ExecuteResult
from executor_service.sampling.sampler import NOTHING_ALLOWED

_NO_NUMBERS = "the model gave logits that are no numbers"


class Desk:
    """Runs on the engine's thread. Events are gathered and handed to ``sink`` once a pass, by ``flush``."""

    def __init__(
        self, books: Books, *, sink: Callable[[list[Event]], None], observer: Observer, clock_us: Callable[[], int]
    ) -> None:
        self.counters = Counters()
        self.measures = Measures()  # since the end of the pass before
        # Ids that ended since the state of the pending plan was taken: that plan may still name them.
        self.ended: set[int] = set()
        self._books = books
        self._sink = sink
        self._observer = observer
        self._clock_us = clock_us
        self._events: list[Event] = []

    def accept(self, sequence: Sequence) -> None:
        self._books.add(sequence)
        self.counters.num_accepted += 1

    def deliver(self, inputs: PassInputs, result: ExecuteResult, counts: NDArray[np.bool_]) -> int:
        """Give each row its new tokens. Returns how many answers are complete; what they held is free.

        ``counts``: [S] which of the tokens that were sampled continue an answer; what comes after its end does not.
        """
        now_us = self._clock_us()
        num_finished = 0
        read = read_logprobs(result.logprobs, inputs)
        gone = self._keep_prompt_logprobs(read)
        columns = (inputs.sampled_rows, result.next_token_ids, result.non_finite)
        rows, token_ids, non_finite = (column.tolist() for column in columns)
        for place in np.flatnonzero(counts).tolist():
            row, token_id = rows[place], token_ids[place]
            if row in gone:
                continue
            sequence = self._books.sequence(row)
            if non_finite[place]:
                self.end(sequence.request.id, EndCause.INVALID_LOGITS, _NO_NUMBERS)
            elif token_id == NOTHING_ALLOWED:
                self.end(sequence.request.id, EndCause.NO_TOKEN_ALLOWED, _why_nothing(sequence))
            else:
                num_finished += self._push(row, token_id, read.of_new_tokens.get(place), now_us)
            if sequence.request.id not in self._books:
                gone.add(row)
        return num_finished

    def _push(self, row: int, token_id: int, logprobs: TokenLogprobs | None, now_us: int) -> bool:
        """Add a token to its answer and tell of it. Returns whether the answer is complete."""
        sequence = self._books.sequence(row)
        request_id = sequence.request.id
        try:
            output = sequence.push(token_id)
        except Exception as error:  # whatever a tokenizer raises is this request's fault alone
            self._observer.requests_failed(self._books.iteration, [sequence.request.name], error)
            self.end(request_id, EndCause.FAILED, "its text could not be decoded")
            return False
        self._books["num_output_tokens"][row] += 1
        self.counters.num_output_tokens += 1
        is_first = sequence.num_output_tokens == 1
        if is_first:
            sequence.first_token_us = now_us
            self.measures.first_token_times_us.append(max(0, now_us - sequence.request.arrival_time_us))
        else:
            self.measures.token_gaps_us.append(now_us - sequence.newest_token_us)
        sequence.newest_token_us = now_us
        self._events.append(
            TokensEvent(
                request_id=request_id,
                token_ids=(token_id,),
                text=output.text,
                logprobs=() if logprobs is None else (logprobs,),
                prompt_logprobs=tuple(sequence.prompt_logprobs) if is_first else (),
            )
        )
        if output.finish_reason is not None:
            self._finish(row, output, output.finish_reason, now_us)
        return output.finish_reason is not None

    def end(self, request_id: int, cause: EndCause, detail: str, rejection: Rejection | None = None) -> None:
        """End a request without an answer, and free what it holds. One that has ended already is left alone."""
        if request_id not in self._books:
            return
        if cause is EndCause.INVALID_LOGITS:
            self._books.forget_prefix(request_id)
        num_preemptions = self._books.num_preemptions(request_id)
        sequence = self._books.end(request_id)
        self.ended.add(request_id)
        usage = sequence.usage(num_preemptions=num_preemptions, now_us=self._clock_us())
        self._observer.request_ended(_ending(sequence, self._books.iteration, cause.name, usage, is_answered=False))
        self._events.append(EndedEvent(request_id=request_id, cause=cause, detail=detail, rejection=rejection))
        counters = self.counters
        if cause is EndCause.CANCELLED:
            counters.num_cancelled += 1
        elif cause is EndCause.DEADLINE:
            counters.num_expired += 1
        elif cause is EndCause.REJECTED:
            counters.num_rejected += 1
        else:
            counters.num_failed += 1

    def expire(self) -> None:
        """End the requests whose deadline has passed."""
        rows = self._books.rows()
        deadlines = self._books["deadline_us"][rows]
        late = rows[(deadlines > 0) & (deadlines <= self._clock_us())]
        for request_id in self._books["id"][late].tolist():
            self.end(request_id, EndCause.DEADLINE, "its deadline passed")

    def flush(self) -> None:
        if self._events:
            events, self._events = self._events, []
            self._sink(events)

    def _keep_prompt_logprobs(self, read: ReadLogprobs) -> set[int]:
        """Keep what the pass told of prompts until the first token is sent. Returns the rows that this has ended."""
        broken = {row for row, told in read.of_prompts if math.isnan(told.logprob)}
        for row, told in read.of_prompts:
            self._books.sequence(row).prompt_logprobs.append(told)
        for row in broken:
            self.end(int(self._books["id"][row]), EndCause.INVALID_LOGITS, _NO_NUMBERS)
        return broken

    def _finish(self, row: int, output: Output, reason: FinishReason, now_us: int) -> None:
        num_preemptions = int(self._books["num_preemptions"][row])
        sequence = self._books.end(int(self._books["id"][row]))
        usage = sequence.usage(num_preemptions=num_preemptions, now_us=now_us)
        self._observer.request_ended(_ending(sequence, self._books.iteration, reason.name, usage, is_answered=True))
        self.ended.add(sequence.request.id)
        self.counters.num_finished += 1
        self._events.append(
            FinishedEvent(
                request_id=sequence.request.id,
                finish_reason=reason,
                matched_stop=output.matched_stop,
                usage=usage,
            )
        )


def _ending(sequence: Sequence, iteration: int, reason: str, usage: Usage, *, is_answered: bool) -> Ending:
    has_token = sequence.first_token_us > 0
    return Ending(
        request_id=sequence.request.name,
        iteration=iteration,
        tenant=sequence.request.tenant,
        reason=reason,
        is_answered=is_answered,
        usage=usage,
        prefill_time_us=max(0, sequence.first_token_us - sequence.first_run_us) if has_token else 0,
        decode_time_us=max(0, usage.total_time_us - usage.time_to_first_token_us) if has_token else 0,
    )


def _why_nothing(sequence: Sequence) -> str:
    failure = sequence.adjuster.failure if sequence.adjuster is not None else ""
    return failure or "its constraint, allowed, banned and least tokens together leave no token to choose"
