"""Spans of recorded plans.

A recording has the time at which each plan was asked for, and no times of passes: a pass is drawn from the one to the
next. Where plans are asked for ahead (docs/adr/0006) that is while the pass before runs, so that all is a pass early.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from metronome.scheduler.v1 import plan_pb2, record_pb2, state_pb2
from metronome_cli.columns import at
from metronome_cli.reasons import reason_in_words
from metronome_cli.timeline.spans import Mark, PassSpan, RequestSpan, Span, resting_phase, running_phase

# Of the last pass before a pause nobody knows when it ended: it is drawn as long as predicted.
PAUSE_FACTOR = 10
_UNKNOWN_US = 1_000  # and where nothing was predicted


@dataclass(frozen=True, slots=True)
class _Planned:
    asked_us: int
    state: state_pb2.ExecutorState
    plan: plan_pb2.ExecutorPlan


def spans_of_recording(records: Iterable[record_pb2.PlanRecord]) -> Iterator[Span]:
    """The spans of each executor in the order of its passes; of a plan that was asked for twice, the last."""
    open_plans: dict[str, _Planned] = {}
    for record in records:
        for state, plan in zip(record.request.state.executors, record.response.plans, strict=False):
            planned = _Planned(record.request.state.now_us, state, plan)
            before = open_plans.get(state.executor_id)
            if before is not None and before.state.iteration != state.iteration:
                yield from _spans(before, _end_of(before, planned.asked_us))
            open_plans[state.executor_id] = planned
    for planned in open_plans.values():
        yield from _spans(planned, planned.asked_us + (planned.plan.predicted_time_us or _UNKNOWN_US))


def _end_of(planned: _Planned, next_us: int) -> int:
    predicted_us = planned.plan.predicted_time_us
    is_pause = predicted_us and next_us - planned.asked_us > PAUSE_FACTOR * predicted_us
    return planned.asked_us + predicted_us if is_pause else max(next_us, planned.asked_us)


def _spans(planned: _Planned, end_us: int) -> Iterator[Span]:
    state, plan, start_us = planned.state, planned.plan, planned.asked_us
    limits, batch = state.limits, plan.composition
    yield PassSpan(
        executor_id=state.executor_id,
        iteration=state.iteration,
        start_us=start_us,
        end_us=end_us,
        num_prefill_tokens=batch.num_prefill_tokens,
        num_decode_tokens=batch.num_decode_tokens,
        num_used_blocks=limits.num_blocks - state.num_free_blocks,
        num_used_swap_blocks=limits.num_swap_blocks - state.num_free_swap_blocks,
        facts={
            "prefill requests": batch.num_prefill_requests,
            "decode requests": batch.num_decode_requests,
            "predicted µs": plan.predicted_time_us,
        },
    )
    yield from (_mark(planned, *decision) for decision in _decisions(plan))
    yield from _request_spans(planned, end_us)


def _request_spans(planned: _Planned, end_us: int) -> Iterator[RequestSpan]:
    state, plan = planned.state, planned.plan
    table = state.requests
    scheduled = dict(zip(plan.scheduled.id, plan.scheduled.num_tokens, strict=True))
    after = {
        request_id: state_pb2.REQUEST_STATUS_SWAPPED
        if mode == plan_pb2.EVICT_MODE_SWAP
        else state_pb2.REQUEST_STATUS_WAITING
        for request_id, mode in zip(plan.evict.id, plan.evict.mode, strict=True)
    }
    rejected = set(plan.reject.id)
    for row, request_id in enumerate(table.id):
        if request_id in rejected:
            continue
        status = after.get(request_id, at(table.status, row))
        num_output, num_computed = at(table.num_output_tokens, row), at(table.num_computed_tokens, row)
        phase = resting_phase(status)
        if request_id in scheduled:
            num_lacking = at(table.num_prompt_tokens, row) + num_output - num_computed
            phase = running_phase(num_output_tokens=num_output, num_lacking_tokens=num_lacking)
        yield RequestSpan(
            executor_id=state.executor_id,
            request_id=request_id,
            name="",
            start_us=planned.asked_us,
            end_us=end_us,
            phase=phase,
            num_tokens=scheduled.get(request_id, 0),
        )


def _decisions(plan: plan_pb2.ExecutorPlan) -> Iterator[tuple[int, str, int]]:
    """(request, what was decided, why)."""
    for request_id, mode, reason in zip(plan.evict.id, plan.evict.mode, plan.evict.reason, strict=False):
        to = "swap" if mode == plan_pb2.EVICT_MODE_SWAP else "recompute"
        yield request_id, f"evicted by {to}", reason
    for verb, table in (("resumed", plan.resume), ("admitted", plan.admit), ("rejected", plan.reject)):
        yield from ((request_id, verb, reason) for request_id, reason in zip(table.id, table.reason, strict=False))


def _mark(planned: _Planned, request_id: int, what: str, reason: int) -> Mark:
    return Mark(
        executor_id=planned.state.executor_id,
        request_id=request_id,
        time_us=planned.asked_us,
        text=f"{what}: {reason_in_words(reason)}",
    )
