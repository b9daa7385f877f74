"""How two plans for one executor differ, for counting and for reading."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from google.protobuf.message import Message
from rich.table import Table

from metronome.scheduler.v1 import plan_pb2
from metronome_cli.plan_view import Decision, decisions

ACTIONS: Mapping[str, str] = {
    "reject": "rejected",
    "evict": "evicted",
    "resume": "resumed",
    "admit": "admitted",
    "run": "tokens scheduled",
}
"""What a plan decides, as `plan_view.decisions` calls it, and in the words of a summary."""

_FIGURES = ("composition", "predicted_time_us", "shortfall", "explanations", "digest")


@dataclass(slots=True, kw_only=True)
class Tally:
    """Counts over pairs of plans. By action: plans that differ in it; requests (of `run`: tokens) on either side."""

    num_plans: int = 0
    num_different: int = 0
    num_plans_with: dict[str, int] = field(default_factory=lambda: dict.fromkeys(ACTIONS, 0))
    recorded: dict[str, int] = field(default_factory=lambda: dict.fromkeys(ACTIONS, 0))
    replayed: dict[str, int] = field(default_factory=lambda: dict.fromkeys(ACTIONS, 0))

    def add(self, recorded: plan_pb2.ExecutorPlan, replayed: plan_pb2.ExecutorPlan) -> None:
        one, other = _decided(recorded), _decided(replayed)
        self.num_plans += 1
        self.num_different += one.keys() != other.keys()
        for action in {action for action, _, _ in one.keys() ^ other.keys()}:
            self.num_plans_with[action] += 1
        for counts, plan in ((self.recorded, recorded), (self.replayed, replayed)):
            for action, count in _counts(plan).items():
                counts[action] += count


def decision_lines(recorded: plan_pb2.ExecutorPlan, replayed: plan_pb2.ExecutorPlan) -> Iterator[str]:
    """Write the decisions that differ as lines, `-` as recorded and `+` as replayed."""
    one, other = _decided(recorded), _decided(replayed)
    order = list(ACTIONS)
    for key in sorted(one.keys() ^ other.keys(), key=lambda key: (order.index(key[0]), key[1], key in other)):
        yield f"+ {_line(other[key])}" if key in other else f"- {_line(one[key])}"


def difference_lines(recorded: plan_pb2.ExecutorPlan, replayed: plan_pb2.ExecutorPlan) -> Iterator[str]:
    """Write any difference as lines: decisions, or where all are the same, whatever else is not."""
    lines = list(decision_lines(recorded, replayed))
    yield from lines or _figure_lines(recorded, replayed)


def tally_view(tally: Tally) -> Table:
    """Draw the counts."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("")
    for heading in ("plans that differ", "recorded", "replayed"):
        table.add_column(heading, justify="right")
    for action, words in ACTIONS.items():
        row = (tally.num_plans_with[action], tally.recorded[action], tally.replayed[action])
        table.add_row(words, *(f"{figure:,}" for figure in row))
    return table


def _decided(plan: plan_pb2.ExecutorPlan) -> Mapping[tuple[str, int, str], Decision]:
    return {(decision.action, decision.request, decision.detail): decision for decision in decisions(plan)}


def _counts(plan: plan_pb2.ExecutorPlan) -> Mapping[str, int]:
    tables = {action: len(getattr(plan, action).id) for action in ACTIONS if action != "run"}
    return {**tables, "run": sum(plan.scheduled.num_tokens)}


def _line(decision: Decision) -> str:
    detail = f": {decision.detail}" if decision.detail else ""
    return f"{decision.action} {decision.request}{detail} ({decision.why})"


def _figure_lines(recorded: plan_pb2.ExecutorPlan, replayed: plan_pb2.ExecutorPlan) -> Iterator[str]:
    """Name what differs besides the decisions; their order and their reasons are what is left where no figure does."""
    differing = [name for name in _FIGURES if getattr(recorded, name) != getattr(replayed, name)]
    for name in differing:
        yield f"- {name}: {_text(getattr(recorded, name))}"
        yield f"+ {name}: {_text(getattr(replayed, name))}"
    if not differing and recorded != replayed:
        yield "the same decisions, in another order or for other reasons"


def _text(figure: object) -> str:
    return " ".join(str(figure).split()) if isinstance(figure, Message) else str(figure)
