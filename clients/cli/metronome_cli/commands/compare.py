"""`metronome compare`: a workload under several policies, in one report."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from metronome_cli.command_error import CommandError
from metronome_cli.consoles import table_console
from metronome_cli.figures_view import figures_view
from metronome_cli.lab_options import (
    Rates,
    fleet_from,
    fleet_options,
    jobs_from,
    jobs_option,
    lab_errors,
    policies_from,
    policies_options,
    progress_bar,
    scenario_from,
    scenario_options,
    target_options,
    targets_from,
)

if TYPE_CHECKING:
    from metronome_lab.comparison import Comparison


@click.command()
@scenario_options
@fleet_options
@policies_options
@target_options
@jobs_option
@click.option(
    "--rates", metavar="R,R,...", type=Rates(), default="", help="Goodput at these multiples of the rate, too."
)
@click.option("--report", type=click.Path(path_type=Path), help="HTML file for table and charts; opens offline.")
@click.option("--png", type=click.Path(path_type=Path), help="Directory for the charts as PNG.")
def compare(jobs: int, rates: tuple[float, ...], report: Path | None, png: Path | None, **options: Any) -> None:
    """Play WORKLOAD under several policies and put the figures side by side.

    Name each with --profile or --policy; with none, every profile is played.
    """
    with lab_errors():
        from metronome_lab.comparison import compare_runs
        from metronome_lab.runs import Run

        policies, targets = policies_from(options), targets_from(options)
        scenario, fleet = scenario_from(options), fleet_from(options)
        runs = [Run(name=name, scenario=scenario, fleet=fleet, policy=policy) for name, policy in policies.items()]
        with progress_bar("runs", len(runs) * (1 + len(rates))) as show:
            comparison = compare_runs(runs, targets, rates=rates, jobs=jobs_from(jobs), on_progress=show)
        if report is not None or png is not None:
            comparison = comparison.with_planning_times()
        table_console().print(figures_view(comparison.rows(), list(policies)))
        _write(comparison, report, png)


def _write(comparison: Comparison, report: Path | None, png: Path | None) -> None:
    from metronome_lab.report.drawn import write_picture

    try:
        if report is not None:
            report.parent.mkdir(parents=True, exist_ok=True)
            report.write_text(comparison.page(), encoding="utf-8")
            click.echo(f"wrote {report}")
        if png is not None:
            png.mkdir(parents=True, exist_ok=True)
            for chart in comparison.charts():
                write_picture(chart, png / f"{chart.name}.png")
                click.echo(f"wrote {png / chart.name}.png")
    except OSError as error:
        raise CommandError(f"cannot write the report: {error.strerror or error}") from None
