"""Every request of a state with what was decided on it and why: the numbers, who is ahead, since when."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from metronome.scheduler.v1 import plan_pb2, state_pb2
from metronome_cli.bars import seconds
from metronome_cli.columns import at
from metronome_cli.plan_view import Decision, decisions, facts_view
from metronome_cli.reasons import reason_in_words, shortage_in_words


def explain_view(executor: state_pb2.ExecutorState, plan: plan_pb2.ExecutorPlan, now_us: int) -> RenderableType:
    """Draw one executor's requests, in order of arrival, from a plan that was asked to explain itself."""
    title = Text.assemble(("Explanation", "bold"), f" for {plan.executor_id}, iteration {plan.iteration}")
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("request", justify="right")
    for heading in ("is", "gets", "why"):
        table.add_column(heading)
    requests, fates, reasons = executor.requests, _fates(plan), _reasons(plan)
    for _, request, row in sorted((at(requests.arrival_time_us, row), id_, row) for row, id_ in enumerate(requests.id)):
        fate = fates.get(request, ())
        why = "; ".join(map(_why, fate)) if fate else reasons.get(request, "")
        table.add_row(str(request), _standing(requests, row, now_us), _gets(fate), why)
    return Group(title, *([table] if table.row_count else []), facts_view(plan))


def _fates(plan: plan_pb2.ExecutorPlan) -> Mapping[int, Sequence[Decision]]:
    """Collect what happens to each request, in the order in which it happens; nothing does to those who wait."""
    fates: dict[int, list[Decision]] = defaultdict(list)
    for decision in decisions(plan):
        fates[decision.request].append(decision)
    return fates


def _reasons(plan: plan_pb2.ExecutorPlan) -> Mapping[int, str]:
    """Say of each request why, in full: "waits behind another: request 7 is ahead (waits for blocks)"."""
    table = plan.explanations
    in_words = {request: reason_in_words(reason) for request, reason in zip(table.id, table.reason, strict=True)}
    reasons = {}
    for row, (request, reason) in enumerate(zip(table.id, table.reason, strict=True)):
        figures = [shortage_in_words(reason, at(table.needed, row), at(table.available, row))]
        if ahead := at(table.behind_id, row):
            figures.append(f"request {ahead} is ahead ({in_words.get(ahead, 'unknown')})")
        details = ", ".join(filter(None, figures))
        reasons[request] = f"{in_words[request]}: {details}" if details else in_words[request]
    return reasons


def _standing(requests: state_pb2.RequestTable, row: int, now_us: int) -> str:
    """Say where a request stands, and since when: "waiting for 4.00 s"."""
    age = seconds(max(0, now_us - at(requests.arrival_time_us, row)))
    last_run = at(requests.last_run_iteration, row)
    when = f"last ran in {last_run:,}" if last_run else f"{age} old"
    match at(requests.status, row):
        case state_pb2.REQUEST_STATUS_WAITING if at(requests.num_preemptions, row):
            return f"evicted, {when}"
        case state_pb2.REQUEST_STATUS_WAITING:
            return f"waiting for {age}"
        case state_pb2.REQUEST_STATUS_SWAPPED:
            return f"swapped out, {when}"
        case state_pb2.REQUEST_STATUS_LOADING:
            return f"loading its KV, {age} old"
        case _:
            return f"running, {age} old"


def _gets(fate: Sequence[Decision]) -> str:
    """Say what a request gets: "resume, 1 token"."""
    if not fate:
        return "nothing"
    words = {"run": "{detail}", "evict": "evict {detail}"}
    return ", ".join(words.get(decision.action, decision.action).format(detail=decision.detail) for decision in fate)


def _why(decision: Decision) -> str:
    in_full = decision.action in ("admit", "reject") and decision.detail
    return f"{decision.why}: {decision.detail}" if in_full else decision.why
