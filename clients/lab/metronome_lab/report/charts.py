"""What the charts of a report show, as values: whoever draws them decides nothing.

Chart: one question            Panel: one pair of axes            Series: one run, or one part of it
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metronome_lab.figures import Figures
from metronome_lab.planning import FLEETS, PlanningTimes
from metronome_lab.records import Outcome, Records

Values = NDArray[Any]
NUM_BINS = 200
# Okabe and Ito's, which people with any colour vision tell apart.
_COLOURS = ("#0a84d0", "#e08a00", "#009e73", "#cc79a7", "#d55e00", "#56b4e9", "#8a7500", "#7d8590")
# Lines of fewer points show them.
FEW_POINTS = 12
# More requests than fit on a page tell nothing in a Gantt chart.
NUM_GANTT_REQUESTS = 80


class Mark(Enum):
    LINE = "line"
    AREA = "area"  # on top of the areas before it
    DOTS = "dots"
    SPANS = "spans"  # bars from x to x_end at the height y


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Series:
    """[n] each. Equal names have one colour and one entry in the legend, over all panels of a chart."""

    name: str
    x: Values
    y: Values
    mark: Mark = Mark.LINE
    x_end: Values | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    title: str
    x_label: str
    y_label: str
    series: tuple[Series, ...]
    log_x: bool = False
    log_y: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """`name`: of its picture's file."""

    name: str
    title: str
    panels: tuple[Panel, ...]

    @property
    def colours(self) -> dict[str, str]:
        """A colour for each name in it."""
        names = dict.fromkeys(series.name for panel in self.panels for series in panel.series)
        return {name: _COLOURS[number % len(_COLOURS)] for number, name in enumerate(names)}


def charts_of(
    runs: Mapping[str, Records], num_blocks: int, goodput: Mapping[str, Mapping[float, Figures]]
) -> tuple[Chart, ...]:
    """`runs`: by name, with their iterations. `num_blocks`: of an executor. `goodput`: by name and rate, empty where
    only one rate was played.
    """
    charts = [
        latency_distributions(runs),
        batch_composition(runs),
        kv_use(runs, num_blocks),
        queue_length(runs),
        tenant_service(runs),
        gantt(runs),
    ]
    if goodput:
        charts.insert(1, goodput_against_load(goodput))
    return tuple(charts)


def latency_distributions(runs: Mapping[str, Records]) -> Chart:
    """Which share of requests, or of gaps between tokens, took no longer."""
    ttft, itl, e2e = [], [], []
    for name, records in runs.items():
        requests, arrival_us = records.requests, records.requests.workload.arrival_us
        finished = requests.outcome == Outcome.FINISHED
        ttft.append(_distribution(name, (requests.first_token_us - arrival_us)[finished] / 1e6))
        e2e.append(_distribution(name, (requests.end_us - arrival_us)[finished] / 1e6))
        gaps_us, shares = records.gaps.distribution()
        itl.append(Series(name=name, x=gaps_us / 1e3, y=shares))
    panels = (
        Panel(title="Time to first token", x_label="s", y_label="share", series=tuple(ttft), log_x=True),
        Panel(title="Time between tokens", x_label="ms", y_label="share", series=tuple(itl), log_x=True),
        Panel(title="Whole answer", x_label="s", y_label="share", series=tuple(e2e), log_x=True),
    )
    return Chart(name="latency", title="Latency: the share that took no longer", panels=panels)


def batch_composition(runs: Mapping[str, Records]) -> Chart:
    """Tokens a second of each phase, over time."""
    panels = []
    for name, records in runs.items():
        columns, edges = records.iterations.columns(), _edges(records)
        areas = []
        for phase in ("decode", "prefill"):
            rates = columns[f"num_{phase}_tokens"] / (columns["duration_us"] / 1e6)
            tokens = _integrals(columns, rates, edges)
            areas.append(Series(name=phase, x=edges[:-1], y=tokens / np.diff(edges), mark=Mark.AREA))
        panels.append(Panel(title=name, x_label="s", y_label="tokens/s", series=tuple(areas)))
    return Chart(name="composition", title="What the batch is made of", panels=tuple(panels))


def kv_use(runs: Mapping[str, Records], num_blocks: int) -> Chart:
    """The share of an executor's blocks that requests hold."""
    lines = tuple(
        _mean_over_time(name, records, "num_free_blocks", lambda free: 1 - free / num_blocks)
        for name, records in runs.items()
    )
    panel = Panel(title="", x_label="s", y_label="share of the blocks", series=lines)
    return Chart(name="kv", title="KV cache in use", panels=(panel,))


def queue_length(runs: Mapping[str, Records]) -> Chart:
    """Requests that wait, and those that run, of an executor."""
    panels = tuple(
        Panel(
            title=title,
            x_label="s",
            y_label="requests an executor",
            series=tuple(_mean_over_time(name, records, column, lambda v: v) for name, records in runs.items()),
        )
        for title, column in (("waiting", "num_waiting"), ("running", "num_running"))
    )
    return Chart(name="queue", title="Queue and running set", panels=panels)


def tenant_service(runs: Mapping[str, Records]) -> Chart:
    """Tokens computed for each tenant since the start."""
    panels = []
    for name, records in runs.items():
        tokens, span_s = records.service.tokens, records.service.span_us / 1e6
        times = np.arange(1, tokens.shape[1] + 1) * span_s
        tenants = records.requests.workload.tenants
        lines = (
            Series(name=tenant or "everybody", x=times, y=np.cumsum(tokens[number]))
            for number, tenant in enumerate(tenants)
        )
        panels.append(Panel(title=name, x_label="s", y_label="tokens", series=tuple(lines)))
    return Chart(name="tenants", title="Service of each tenant, summed up", panels=tuple(panels))


def gantt(runs: Mapping[str, Records]) -> Chart:
    """Each request from its arrival to its end, the first so many."""
    panels = []
    for name, records in runs.items():
        requests, arrival_us = records.requests, records.requests.workload.arrival_us
        shown = np.flatnonzero(requests.outcome == Outcome.FINISHED)[:NUM_GANTT_REQUESTS]
        moments = (arrival_us, requests.first_run_us, requests.first_token_us, requests.end_us)
        times = [column[shown] / 1e6 for column in moments]
        parts = zip(("waits", "prefill", "answer"), times[:-1], times[1:], strict=True)
        spans = (Series(name=part, x=x, x_end=end, y=shown + 1, mark=Mark.SPANS) for part, x, end in parts)
        panels.append(Panel(title=name, x_label="s", y_label="request", series=tuple(spans)))
    return Chart(name="gantt", title=f"The first {NUM_GANTT_REQUESTS} requests", panels=tuple(panels))


def goodput_against_load(goodput: Mapping[str, Mapping[float, Figures]]) -> Chart:
    """Requests a second that meet both targets, against those that arrive."""
    lines = []
    for name, by_rate in goodput.items():
        offered = [figures.offered_per_s for figures in by_rate.values()]
        lines.append(Series(name=name, x=np.array(offered), y=np.array([f.goodput_per_s for f in by_rate.values()])))
    panel = Panel(title="", x_label="requests/s that arrive", y_label="requests/s in time", series=tuple(lines))
    return Chart(name="goodput", title="Goodput against load", panels=(panel,))


def planning_against_fleet(times: Mapping[str, PlanningTimes]) -> Chart:
    """What the planning core takes, on one core of this machine, by the number of executors."""
    panels = (
        _fleet_panel("A plan for each executor", {name: of_run.plan_ms for name, of_run in times.items()}),
        _fleet_panel("One request placed over all", {name: of_run.place_ms for name, of_run in times.items()}),
    )
    return Chart(name="planning", title="Planning time against the size of the fleet", panels=panels)


def _fleet_panel(title: str, times_ms: Mapping[str, Sequence[float]]) -> Panel:
    fleets = np.array(FLEETS)
    lines = (Series(name=name, x=fleets, y=np.array(of_run)) for name, of_run in times_ms.items())
    return Panel(title=title, x_label="executors", y_label="ms", series=tuple(lines), log_x=True, log_y=True)


def _distribution(name: str, times: Values) -> Series:
    """A thousand points are as good as a million."""
    shares = np.linspace(0, 1, min(len(times), 1000)) if len(times) else np.empty(0)
    return Series(name=name, x=np.quantile(times, shares) if len(times) else shares, y=shares)


def _edges(records: Records) -> Values:
    """[NUM_BINS + 1] of equal spans of time, seconds."""
    return np.linspace(0, max(records.end_us, 1) / 1e6, NUM_BINS + 1)


def _integrals(columns: Mapping[str, Values], rates: Values, edges: Values) -> Values:
    """[NUM_BINS] what each span gets of passes that give `rates`, [num_iterations], a second while they last."""
    starts_s = columns["start_us"] / 1e6
    times_s = np.concatenate([[0.0], starts_s, starts_s + columns["duration_us"] / 1e6])
    changes = np.concatenate([[0.0], rates, -np.asarray(rates, dtype=np.float64)])
    order = np.argsort(times_s, kind="stable")
    times_s, slopes = times_s[order], np.cumsum(changes[order])
    totals = np.concatenate([[0.0], np.cumsum(slopes[:-1] * np.diff(times_s))])
    integrals: Values = np.diff(np.interp(edges, times_s, totals))
    return integrals


def _mean_over_time(name: str, records: Records, column: str, of: Callable[[Values], Values]) -> Series:
    """The mean over the passes of a span, as long as each lasts in it; spans without a pass are left out."""
    columns, edges = records.iterations.columns(), _edges(records)
    values = of(columns[column])
    busy_s = _integrals(columns, np.ones(len(values)), edges)
    used = np.flatnonzero(busy_s > 1e-9)
    return Series(name=name, x=edges[used], y=_integrals(columns, values, edges)[used] / busy_s[used])
