"""`metronome capacity`: the highest load, or the smallest fleet, that meets targets."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import click
from rich.box import SIMPLE
from rich.table import Table

from metronome_cli.consoles import table_console
from metronome_cli.lab_options import (
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
)
from metronome_cli.options import POSITIVE

if TYPE_CHECKING:
    from metronome_lab.capacity import Capacity


@click.command()
@scenario_options
@fleet_options
@policies_options
@click.option("--ttft-p99", type=POSITIVE, default=2000, show_default=True, help="To the first token, ms.")
@click.option("--itl-p99", type=POSITIVE, default=100, show_default=True, help="Between two tokens, ms.")
@click.option(
    "--fewest-executors", is_flag=True, help="Search for the smallest fleet at --rate, not for the highest rate."
)
@jobs_option
def capacity(ttft_p99: int, itl_p99: int, fewest_executors: bool, jobs: int, **options: Any) -> None:
    """Find the highest rate of WORKLOAD at which 99 of 100 meet the targets, under each policy.

    All requests have to be answered. 99 of 100 first tokens must be in time, and 99 of 100 gaps between tokens.
    """
    with lab_errors():
        from metronome_lab import capacity as search
        from metronome_lab.figures import Targets
        from metronome_lab.runs import Run
        from metronome_lab.sweep import play_all

        policies, targets = policies_from(options), Targets(ttft_us=ttft_p99 * 1000, itl_us=itl_p99 * 1000)
        scenario, fleet = scenario_from(options), fleet_from(options)
        runs = {name: Run(name=name, scenario=scenario, fleet=fleet, policy=policies[name]) for name in policies}
        find = partial(search.fewest_executors if fewest_executors else search.highest_rate, targets=targets)
        with progress_bar("searches", len(runs)) as show:
            found = play_all(runs, find, jobs=jobs_from(jobs), on_progress=show)
        table_console().print(_view(found))


def _view(found: dict[str, Capacity]) -> Table:
    table = Table(box=SIMPLE)
    table.add_column("")
    for heading in ("executors", "rate", "requests/s", "TTFT p99, ms", "ITL p99, ms", "runs"):
        table.add_column(heading, justify="right")
    for name, capacity in found.items():
        figures = capacity.figures
        table.add_row(
            name,
            f"{capacity.num_executors:,}",
            f"{capacity.rate:.3g}" if capacity.rate else "none",
            f"{figures.offered_per_s:.3f}" if capacity.rate else "",
            f"{figures.ttft.p99_ms:,.0f}",
            f"{figures.itl.p99_ms:,.1f}",
            str(capacity.num_runs),
        )
    return table
