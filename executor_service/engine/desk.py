"""The front desk: requests come in, tokens and endings go out. Every accepted request ends exactly once, here."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from executor_service.engine.books import Books, Rows
from executor_service.engine.record import Counters, Observer
from executor_service.engine.request import EndCause, EndedEvent, Event, FinishedEvent, FinishReason, TokensEvent
from executor_service.engine.sequence import Output, Sequence


class Desk:
    """Runs on the engine's thread. Events are gathered and handed to ``sink`` once a pass, by ``flush``."""

    def __init__(
        self, books: Books, *, sink: Callable[[list[Event]], None], observer: Observer, clock_us: Callable[[], int]
    ) -> None:
        self.counters = Counters()
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

    def deliver(self, rows: Rows, token_ids: NDArray[np.int64], non_finite: NDArray[np.bool_]) -> int:
        """Give each row its new token. Returns how many answers are complete; what they held is free."""
        now_us = self._clock_us()
        num_finished = 0
        for row, token_id, is_broken in zip(rows.tolist(), token_ids.tolist(), non_finite.tolist(), strict=True):
            sequence = self._books.sequence(row)
            request_id = sequence.request.id
            if is_broken:
                self.end(request_id, EndCause.INVALID_LOGITS, "the model gave logits that are no numbers")
                continue
            try:
                output = sequence.push(token_id)
            except Exception as error:  # whatever a tokenizer raises is this request's fault alone
                self._observer.requests_failed([request_id], error)
                self.end(request_id, EndCause.FAILED, "its text could not be decoded")
                continue
            self._books["num_output_tokens"][row] += 1
            self.counters.num_output_tokens += 1
            sequence.first_token_us = sequence.first_token_us or now_us
            self._events.append(TokensEvent(request_id=request_id, token_ids=(token_id,), text=output.text))
            if output.finish_reason is not None:
                self._finish(row, output, output.finish_reason, now_us)
                num_finished += 1
        return num_finished

    def end(self, request_id: int, cause: EndCause, detail: str) -> None:
        """End a request without an answer, and free what it holds. One that has ended already is left alone."""
        if request_id not in self._books:
            return
        if cause is EndCause.INVALID_LOGITS:
            self._books.forget_prefix(request_id)
        self._books.end(request_id)
        self.ended.add(request_id)
        self._events.append(EndedEvent(request_id=request_id, cause=cause, detail=detail))
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

    def _finish(self, row: int, output: Output, reason: FinishReason, now_us: int) -> None:
        num_preemptions = int(self._books["num_preemptions"][row])
        sequence = self._books.end(int(self._books["id"][row]))
        self.ended.add(sequence.request.id)
        self.counters.num_finished += 1
        self._events.append(
            FinishedEvent(
                request_id=sequence.request.id,
                finish_reason=reason,
                matched_stop=output.matched_stop,
                usage=sequence.usage(num_preemptions=num_preemptions, now_us=now_us),
            )
        )
