"""Spans of a live executor, from what it tells those who watch it: passes with their times, and the books after them.

What a request did follows from how the books changed, and its times from the passes in between. Books and passes of a
message are not of the same moment: the books are looked at later, and what ran meanwhile comes with the next message.
Where several passes lie between two looks a request is drawn over all of them at once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from metronome.executor.v1 import executor_pb2
from metronome.scheduler.v1 import state_pb2
from metronome_cli.columns import at
from metronome_cli.timeline.spans import PassSpan, Phase, RequestSpan, Span, resting_phase, running_phase

_SOURCES = {
    executor_pb2.PLAN_SOURCE_OVERLAPPED: "overlapped",
    executor_pb2.PLAN_SOURCE_DIRECT: "direct",
    executor_pb2.PLAN_SOURCE_SAFE: "safe",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Row:
    """What the books say of a request."""

    status: int
    num_tokens: int
    num_output_tokens: int
    num_computed_tokens: int
    last_run_iteration: int

    @property
    def next_phase(self) -> Phase:
        num_lacking = self.num_tokens - self.num_computed_tokens
        return running_phase(num_output_tokens=self.num_output_tokens, num_lacking_tokens=num_lacking)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Change:
    """The books before the pass `first`, and after the pass `last`."""

    first: int
    last: int
    before: dict[int, _Row]
    after: dict[int, _Row]
    names: dict[int, str]


def spans_of_watch(messages: Iterable[executor_pb2.WatchStateResponse]) -> Iterator[Span]:
    """Spans from the second message on: the first has the books to begin with."""
    passes: dict[int, PassSpan] = {}  # of changes that are still to be told
    changes: deque[_Change] = deque()
    iteration, before, names, end_us = 0, dict[int, _Row](), dict[int, str](), 0
    for message in messages:
        state = message.state.state.executors[0]
        for span in _pass_spans(message.passes, state):
            # A pass starts by the clock of the day and lasts by another, which may be apart by some microseconds.
            start_us = max(span.start_us, end_us)
            end_us = max(span.end_us, start_us)
            span = replace(span, start_us=start_us, end_us=end_us)
            passes[span.iteration] = span
            yield span
        after = _rows(state.requests)
        names = names | {name.id: name.request_id for name in message.state.request_names}
        if iteration and state.iteration > iteration:
            last = state.iteration - 1
            changes.append(_Change(first=iteration, last=last, before=before, after=after, names=names))
        names = {request_id: name for request_id, name in names.items() if request_id in after}
        iteration, before = state.iteration, after
        while changes and changes[0].last in passes:
            change = changes.popleft()
            yield from _request_spans(change, passes)
            passes = {number: span for number, span in passes.items() if number > change.last}


def _pass_spans(passes: Iterable[executor_pb2.Pass], state: state_pb2.ExecutorState) -> Iterator[PassSpan]:
    for one in passes:
        yield PassSpan(
            executor_id=state.executor_id,
            iteration=one.iteration,
            start_us=one.start_time_us,
            # Copies are among the forward part and come before the start.
            end_us=one.start_time_us + one.build_us + one.forward_us + one.emit_us,
            num_prefill_tokens=one.num_prefill_tokens,
            num_decode_tokens=one.num_decode_tokens,
            num_used_blocks=state.limits.num_blocks - one.num_free_blocks,
            num_used_swap_blocks=state.limits.num_swap_blocks - one.num_free_swap_blocks,
            facts={
                "plan": _SOURCES.get(one.plan_source, str(one.plan_source)),
                "prefill requests": one.num_prefill_requests,
                "decode requests": one.num_decode_requests,
                "running": one.num_running,
                "waiting": one.num_waiting,
                "waited for the plan µs": one.plan_wait_us,
                "build µs": one.build_us,
                "forward µs": one.forward_us,
                "emit µs": one.emit_us,
                "predicted µs": one.predicted_us,
            },
        )


def _request_spans(change: _Change, passes: dict[int, PassSpan]) -> Iterator[RequestSpan]:
    during = [span for number, span in passes.items() if change.first <= number <= change.last]
    for request_id in sorted(change.before.keys() | change.after.keys()):
        phase, num_tokens = _what_it_did(change, change.before.get(request_id), change.after.get(request_id))
        yield RequestSpan(
            executor_id=during[0].executor_id,
            request_id=request_id,
            name=change.names.get(request_id, ""),
            start_us=during[0].start_us,
            end_us=during[-1].end_us,
            phase=phase,
            num_tokens=num_tokens,
        )


def _what_it_did(change: _Change, was: _Row | None, is_now: _Row | None) -> tuple[Phase, int]:
    if is_now is None:  # it has ended: with its last token, or by a cancel
        assert was is not None, "a request is in the books before or after"
        if was.status == state_pb2.REQUEST_STATUS_RUNNING:
            return was.next_phase, max(1, was.num_tokens - was.num_computed_tokens)
        return resting_phase(was.status), 0
    if is_now.last_run_iteration < change.first:
        return resting_phase(is_now.status), 0
    num_tokens = is_now.num_computed_tokens - (was.num_computed_tokens if was is not None else 0)
    # One that came back after an eviction has fewer tokens than it had.
    return (was.next_phase if was is not None else Phase.PREFILL), max(1, num_tokens)


def _rows(table: state_pb2.RequestTable) -> dict[int, _Row]:
    return {
        request_id: _Row(
            status=at(table.status, row),
            num_tokens=at(table.num_prompt_tokens, row) + at(table.num_output_tokens, row),
            num_output_tokens=at(table.num_output_tokens, row),
            num_computed_tokens=at(table.num_computed_tokens, row),
            last_run_iteration=at(table.last_run_iteration, row),
        )
        for row, request_id in enumerate(table.id)
    }
