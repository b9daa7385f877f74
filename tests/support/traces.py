"""Published request traces, played on the arithmetic executor in virtual time.

The excerpts are described in `tests/data/traces/README.md`. Their arrivals are stretched or pressed together, all by
one factor, until the load is a given share of what the executor can do: bursts follow each other as recorded.
"""

from __future__ import annotations

import csv
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from scheduler_service.core.executor_plan import ExecutorPlan
from support.arithmetic_executor import ArithmeticExecutor, Request

TRACES = Path(__file__).parents[1] / "data" / "traces"


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceRequest:
    """A recorded request. `arrival_us`: after the first one. What no trace publishes is made up by who plays it:

    the priority, the bound on the answer and its expected length (0: the recorded one, both), and the deadline, counted
    from the arrival (0: none).
    """

    id: int
    arrival_us: int
    num_prompt_tokens: int
    num_output_tokens: int
    tenant: int = 0
    priority: int = 0
    max_output_tokens: int = 0
    expected_output_tokens: int = 0
    deadline_us: int = 0


Trace = tuple[TraceRequest, ...]


def read_trace(path: Path, count: int | None = None) -> Trace:
    """The first `count` requests of a trace (None: all), in order of arrival; tenants numbered as they turn up."""
    tenants: dict[str, int] = {}
    with path.open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))[:count]
    return tuple(
        TraceRequest(
            id=id,
            arrival_us=round(float(row["arrival_s"]) * 1e6),
            num_prompt_tokens=int(row["prompt_tokens"]),
            num_output_tokens=int(row["output_tokens"]),
            tenant=tenants.setdefault(row["tenant"], len(tenants)),
        )
        for id, row in enumerate(rows, 1)
    )


def at_load(trace: Trace, load: float, executor: ArithmeticExecutor) -> Trace:
    """The trace with its arrivals spread over 1 / `load` of the time that `executor` takes with all there at once."""
    start_us = executor.now_us
    for _ in played(executor, [replace(request, arrival_us=0) for request in trace]):
        pass
    stretch = (executor.now_us - start_us) / load / trace[-1].arrival_us
    return tuple(replace(request, arrival_us=round(request.arrival_us * stretch)) for request in trace)


def played(
    executor: ArithmeticExecutor, trace: Sequence[TraceRequest], on_submit: Callable[[Request], None] = lambda _: None
) -> Iterator[ExecutorPlan]:
    """Play a trace to its end; yields each plan once it is carried out.

    `on_submit` is called for each request just before it stands in the books: at the first plan after its arrival.
    """
    start_us, pending = executor.now_us, deque(trace)
    while pending or executor.requests:
        if not executor.requests:
            executor.now_us = max(executor.now_us, start_us + pending[0].arrival_us)
        while pending and start_us + pending[0].arrival_us <= executor.now_us:
            _submit(executor, pending.popleft(), start_us, on_submit)
        yield executor.step()


def _submit(
    executor: ArithmeticExecutor, request: TraceRequest, start_us: int, on_submit: Callable[[Request], None]
) -> None:
    arrival_us = start_us + request.arrival_us
    executor.submit(
        request.id,
        prompt=request.num_prompt_tokens,
        new=request.max_output_tokens or request.num_output_tokens,
        stops_after=request.num_output_tokens,
        arrival_time_us=arrival_us,
        expected_output_tokens=request.expected_output_tokens or request.num_output_tokens,
        tenant=request.tenant,
        priority=request.priority,
        deadline_us=arrival_us + request.deadline_us if request.deadline_us > 0 else 0,
    )
    on_submit(executor.requests[request.id])
