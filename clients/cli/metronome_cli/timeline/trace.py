"""Spans as trace events, in the JSON that Perfetto and Chrome's tracing open.

An executor is a process of the trace. Its threads are the passes and its requests, in the order in which they came;
its counters are the batch (prefill and decode tokens) and the blocks (KV cache and swap space).
"""

from __future__ import annotations

import json
from collections.abc import Generator, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, TextIO

from metronome_cli.timeline.spans import Mark, PassSpan, Phase, RequestSpan, Span

Event = dict[str, Any]

PASSES_THREAD = 1
_FIRST_REQUEST_THREAD = 10
# By name: Perfetto's own palette. What waits is grey, so that work stands out.
_COLOURS = {
    Phase.WAITING: "grey",
    Phase.LOADING: "grey",
    Phase.PREFILL: "thread_state_runnable",
    Phase.DECODE: "thread_state_running",
    Phase.SWAPPED: "terrible",
    Phase.STALLED: "bad",
}
_RUNS = (Phase.PREFILL, Phase.DECODE)


@dataclass(slots=True, kw_only=True)
class Summary:
    """What is in a trace."""

    num_passes: int = 0
    requests: set[tuple[str, int]] = field(default_factory=set)
    executors: list[str] = field(default_factory=list)


class TraceEvents:
    """Makes events of spans, in the order in which they come. The first span is at 0."""

    def __init__(self) -> None:
        self.summary = Summary()
        self._started_us: int | None = None
        self._threads: dict[tuple[str, int], int] = {}
        self._resting: dict[tuple[str, int], RequestSpan] = {}  # as long as it goes on

    def of(self, spans: Iterable[Span]) -> Iterator[Event]:
        """The events of all spans; call once."""
        for span in spans:
            if isinstance(span, PassSpan):
                yield from self._of_pass(span)
            elif isinstance(span, Mark):
                yield from self._of_mark(span)
            else:
                yield from self._of_request(span)
        for rest in self._resting.values():
            yield self._slice(rest)

    def _of_pass(self, span: PassSpan) -> Iterator[Event]:
        self._started_us = span.start_us if self._started_us is None else self._started_us
        process = yield from self._process(span.executor_id)
        self.summary.num_passes += 1
        yield {
            "ph": "X",
            "pid": process,
            "tid": PASSES_THREAD,
            "name": f"iteration {span.iteration}",
            "ts": self._at(span.start_us),
            "dur": span.end_us - span.start_us,
            "args": dict(span.facts),
        }
        counters = {
            "batch": {"prefill tokens": span.num_prefill_tokens, "decode tokens": span.num_decode_tokens},
            "blocks": {"KV cache": span.num_used_blocks, "swap space": span.num_used_swap_blocks},
        }
        for name, values in counters.items():
            yield {"ph": "C", "pid": process, "name": name, "ts": self._at(span.start_us), "args": values}

    def _of_request(self, span: RequestSpan) -> Iterator[Event]:
        yield from self._thread(span.executor_id, span.request_id, span.name)
        key = (span.executor_id, span.request_id)
        rest = self._resting.pop(key, None)
        if rest is not None and rest.phase is span.phase:
            self._resting[key] = _joined(rest, span)
            return
        if rest is not None:  # it goes on until the next thing begins
            yield self._slice(_joined(rest, span, end_us=span.start_us))
        if span.phase in _RUNS:
            yield self._slice(span)
        else:
            self._resting[key] = span

    def _of_mark(self, mark: Mark) -> Iterator[Event]:
        yield from self._thread(mark.executor_id, mark.request_id, "")
        yield {
            "ph": "i",
            "s": "t",
            "pid": self._process_of(mark.executor_id),
            "tid": self._threads[mark.executor_id, mark.request_id],
            "name": mark.text,
            "ts": self._at(mark.time_us),
        }

    def _slice(self, span: RequestSpan) -> Event:
        event: Event = {
            "ph": "X",
            "pid": self._process_of(span.executor_id),
            "tid": self._threads[span.executor_id, span.request_id],
            "name": f"{span.phase.value} {span.num_tokens}" if span.phase is Phase.PREFILL else span.phase.value,
            "cat": span.phase.value,
            "cname": _COLOURS[span.phase],
            "ts": self._at(span.start_us),
            "dur": max(0, span.end_us - span.start_us),
        }
        if span.num_tokens:
            event["args"] = {"tokens": span.num_tokens}
        return event

    def _process(self, executor_id: str) -> Generator[Event, None, int]:
        """Its number; yields what names it, once."""
        if executor_id not in self.summary.executors:
            self.summary.executors.append(executor_id)
            process = self._process_of(executor_id)
            yield _named("process_name", process, 0, executor_id)
            yield _named("thread_name", process, PASSES_THREAD, "iterations")
        return self._process_of(executor_id)

    def _process_of(self, executor_id: str) -> int:
        return self.summary.executors.index(executor_id) + 1

    def _thread(self, executor_id: str, request_id: int, name: str) -> Iterator[Event]:
        key = (executor_id, request_id)
        if key in self._threads:
            return
        self.summary.requests.add(key)
        self._threads[key] = _FIRST_REQUEST_THREAD + len(self._threads)
        process, thread = self._process_of(executor_id), self._threads[key]
        yield _named("thread_name", process, thread, f"request {request_id}" + (f": {name}" if name else ""))
        sorting = {"sort_index": thread}
        yield {"ph": "M", "pid": process, "tid": thread, "name": "thread_sort_index", "args": sorting}

    def _at(self, time_us: int) -> int:
        return time_us - (self._started_us or 0)


def write_trace(spans: Iterable[Span], file: TextIO) -> Summary:
    """Write a trace, an event a line."""
    events = TraceEvents()
    file.write('{"displayTimeUnit": "ms", "traceEvents": [\n')
    separator = ""
    for event in events.of(spans):
        file.write(separator + json.dumps(event, ensure_ascii=False))
        separator = ",\n"
    file.write("\n]}\n")
    return events.summary


def _joined(first: RequestSpan, last: RequestSpan, *, end_us: int | None = None) -> RequestSpan:
    return RequestSpan(
        executor_id=first.executor_id,
        request_id=first.request_id,
        name=first.name,
        start_us=first.start_us,
        end_us=last.end_us if end_us is None else end_us,
        phase=first.phase,
    )


def _named(kind: str, process: int, thread: int, name: str) -> Event:
    return {"ph": "M", "pid": process, "tid": thread, "name": kind, "args": {"name": name}}
