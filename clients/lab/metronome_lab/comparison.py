"""Policies side by side on one workload and one fleet: the runs, and all that a report shows of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from metronome_lab.figures import Figures, Targets, figures_of
from metronome_lab.order_promise import order_promise
from metronome_lab.planning import PlanningTimes, planning_times
from metronome_lab.records import Records
from metronome_lab.report.charts import Chart, charts_of, planning_against_fleet
from metronome_lab.report.page import page
from metronome_lab.report.table import planning_rows, rows_of
from metronome_lab.runs import Run
from metronome_lab.sweep import play, play_all


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Comparison:
    """`runs`, that differ in name and policy alone, and `records` of each. `goodput`: by name and multiple of the rate;
    empty where only one rate was played. `planning`: by name, empty where it was not measured.
    """

    runs: Sequence[Run]
    records: Sequence[Records]
    targets: Targets
    goodput: dict[str, dict[float, Figures]]
    planning: Mapping[str, PlanningTimes] = field(default_factory=dict)

    def with_planning_times(self) -> Comparison:
        """The same, and what the planning core takes for a fleet, measured now. Raises LabError."""
        pairs = zip(self.runs, self.records, strict=True)
        times = {run.name: planning_times(of.requests.workload, run.fleet, run.policy) for run, of in pairs}
        return replace(self, planning=times)

    def figures(self) -> list[Figures]:
        return [figures_of(records, self.targets) for records in self.records]

    def rows(self) -> dict[str, list[str]]:
        """Of the table, by label."""
        pairs = zip(self.runs, self.records, strict=True)
        rows = rows_of(self.figures(), [order_promise(records, run.policy) for run, records in pairs])
        return rows | planning_rows(self.planning)

    def charts(self) -> tuple[Chart, ...]:
        records = {run.name: of_run for run, of_run in zip(self.runs, self.records, strict=True)}
        charts = charts_of(records, self.runs[0].fleet.hardware.limits.num_blocks, self.goodput)
        return (*charts, planning_against_fleet(self.planning)) if self.planning else charts

    def page(self) -> str:
        """The report as HTML that needs nothing else."""
        scenario, fleet = self.runs[0].scenario, self.runs[0].fleet
        workload = self.records[0].requests.workload
        settings = (
            f"{len(workload):,} of {workload.name} at {scenario.rate:g} times their rate, seed {scenario.seed}.",
            f"{fleet.num_executors:,} x {fleet.hardware.name}: {fleet.hardware.description} "
            f"Placement {fleet.placement.name}.",
            f"Goodput: first token within {self.targets.ttft_us / 1e6:g} s, "
            f"mean time between tokens at most {self.targets.itl_us / 1e3:g} ms.",
        )
        return page(f"Policies on {workload.name}", settings, self.rows(), [r.name for r in self.runs], self.charts())


def compare_runs(
    runs: Sequence[Run],
    targets: Targets,
    *,
    rates: Sequence[float] = (),
    jobs: int = 1,
    on_progress: Callable[[int], None] = lambda num_done: None,
) -> Comparison:
    """Play each run, and each at multiples of its rate for the goodput. Raises LabError."""
    records = play_all({run.name: run for run in runs}, play, jobs=jobs, on_progress=on_progress)
    at_rates = {
        (run.name, rate): run.at_rate(run.scenario.rate * rate).without_iterations() for run in runs for rate in rates
    }
    done = len(runs)
    figures = play_all(
        at_rates, partial(_figures, targets=targets), jobs=jobs, on_progress=lambda more: on_progress(done + more)
    )
    goodput: dict[str, dict[float, Figures]] = {}
    for (name, rate), of_run in figures.items():
        goodput.setdefault(name, {})[rate] = of_run
    return Comparison(runs=runs, records=[records[run.name] for run in runs], targets=targets, goodput=goodput)


def _figures(run: Run, targets: Targets) -> Figures:
    return figures_of(run.play(), targets)
