"""A plan as a person reads it: one table of what happens to whom and why, and under it what the pass will be."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from metronome.scheduler.v1 import plan_pb2
from metronome_cli.bars import counted
from metronome_cli.columns import at
from metronome_cli.reasons import reason_in_words, shortage_in_words

_STYLES = {"run": "green", "admit": "cyan", "resume": "cyan", "evict": "yellow", "reject": "red", "wait": "dim"}
_MODES = {plan_pb2.EVICT_MODE_SWAP: "to swap space", plan_pb2.EVICT_MODE_RECOMPUTE: "to recompute"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """One line of the table: what happens to one request, how much of it, and why."""

    action: str
    request: int
    detail: str
    why: str


def decisions(plan: plan_pb2.ExecutorPlan) -> Iterator[Decision]:
    """List what the plan does, in the order in which an executor applies it: reject, evict, resume, admit, run."""
    reject = plan.reject
    for row, (request, reason) in enumerate(zip(reject.id, reject.reason, strict=True)):
        shortage = shortage_in_words(reason, at(reject.needed, row), at(reject.available, row))
        yield Decision(action="reject", request=request, detail=shortage, why=reason_in_words(reason))
    for request, mode, reason in zip(plan.evict.id, plan.evict.mode, plan.evict.reason, strict=True):
        yield Decision(action="evict", request=request, detail=_MODES.get(mode, str(mode)), why=reason_in_words(reason))
    num_passed = dict(zip(plan.explanations.id, plan.explanations.needed, strict=False))
    for action, table in (("resume", plan.resume), ("admit", plan.admit)):
        for request, reason in zip(table.id, table.reason, strict=True):
            detail = shortage_in_words(reason, num_passed.get(request, 0), 0)
            yield Decision(action=action, request=request, detail=detail, why=reason_in_words(reason))
    scheduled = plan.scheduled
    for request, num_tokens, reason in zip(scheduled.id, scheduled.num_tokens, scheduled.reason, strict=True):
        detail = counted(num_tokens, "token")
        yield Decision(action="run", request=request, detail=detail, why=reason_in_words(reason))


def explanations(plan: plan_pb2.ExecutorPlan) -> Iterator[Decision]:
    """List why those who stay out do; the others are in `decisions` already. Empty unless the plan explains itself."""
    table = plan.explanations
    for row, (request, reason) in enumerate(zip(table.id, table.reason, strict=True)):
        if plan_pb2.REASON_WAITING_FOR_BLOCKS <= reason < plan_pb2.REASON_REJECTED_EXCEEDS_BLOCKS:
            behind = at(table.behind_id, row)
            detail = shortage_in_words(reason, at(table.needed, row), at(table.available, row))
            detail = detail or (f"behind request {behind}" if behind else "")
            yield Decision(action="wait", request=request, detail=detail, why=reason_in_words(reason))


def composition_in_words(plan: plan_pb2.ExecutorPlan) -> str:
    """Say what the pass holds: "512 prefill tokens of 1 request, 7 decode tokens of 7 requests; about 412 ms"."""
    pass_ = plan.composition
    parts = [
        f"{counted(tokens, f'{phase} token')} of {counted(requests, 'request')}"
        for phase, tokens, requests in (
            ("prefill", pass_.num_prefill_tokens, pass_.num_prefill_requests),
            ("decode", pass_.num_decode_tokens, pass_.num_decode_requests),
        )
        if requests
    ]
    if not parts:
        return "nothing runs"
    prediction = f"; about {plan.predicted_time_us / 1000:,.1f} ms" if plan.predicted_time_us else ""
    return ", ".join(parts) + prediction


def shortfall_in_words(shortfall: plan_pb2.Shortfall) -> str:
    """Say what keeps the best one out: "request 7 needs 14 blocks, 9 free"."""
    shortage = shortage_in_words(shortfall.reason, shortfall.needed, shortfall.available)
    return f"request {shortfall.id} {shortage or reason_in_words(shortfall.reason)}"


def plan_view(plan: plan_pb2.ExecutorPlan) -> RenderableType:
    """Draw one executor's plan."""
    title = Text.assemble(("Plan", "bold"), f" for {plan.executor_id}, iteration {plan.iteration}")
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("")
    table.add_column("request", justify="right")
    table.add_column("what")
    table.add_column("why")
    for line in (*decisions(plan), *explanations(plan)):
        action = Text(line.action, style=_STYLES[line.action])
        table.add_row(action, str(line.request), line.detail, line.why)
    return Group(title, *([table] if table.row_count else []), facts_view(plan))


def facts_view(plan: plan_pb2.ExecutorPlan) -> RenderableType:
    """Draw what concerns the plan as a whole."""
    facts = Table.grid(padding=(0, 2))
    facts.add_column(style="dim")
    facts.add_row("pass", composition_in_words(plan))
    if plan.HasField("shortfall"):
        facts.add_row("shortfall", shortfall_in_words(plan.shortfall))
    facts.add_row("digest", f"{plan.digest & (2**64 - 1):016x}")
    return facts
