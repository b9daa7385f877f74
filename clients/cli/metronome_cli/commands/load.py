"""`metronome load`: a workload on a real executor, like a user's traffic."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from metronome_cli.consoles import table_console
from metronome_cli.errors import executor_errors
from metronome_cli.figures_view import figures_view
from metronome_cli.lab_options import (
    lab_errors,
    progress_bar,
    scenario_from,
    scenario_options,
    target_options,
    targets_from,
)
from metronome_cli.options import executor_option
from metronome_cli.trust import Trust, trust_options
from metronome_client import AsyncInferenceClient

if TYPE_CHECKING:
    from metronome_lab.records import Records


@click.command()
@scenario_options
@executor_option
@trust_options
@target_options
@click.option("--out", type=click.Path(path_type=Path), help="Directory for a row per request and per iteration.")
@click.option("--json", "as_json", is_flag=True, help="Print the figures as JSON.")
def load(executor: str, trust: Trust, out: Path | None, as_json: bool, **options: Any) -> None:
    """Send the requests of WORKLOAD to an executor when they are due, and measure what comes back.

    Prompts are random tokens of the recorded lengths, equal where the workload says that prompts begin alike. Figures
    are those of `metronome simulate`, as a client sees them.
    """
    with lab_errors(), executor_errors(executor):
        from metronome_lab.figures import figures_of
        from metronome_lab.live.replay import replay
        from metronome_lab.order_promise import OrderPromise
        from metronome_lab.report.table import rows_of
        from metronome_lab.result_files import Format, write_results

        targets, scenario = targets_from(options), scenario_from(options)
        workload = scenario.workload()

        async def run() -> Records:
            async with AsyncInferenceClient(executor, tls=trust.tls, token=trust.token) as client:
                with progress_bar("requests", len(workload)) as show:
                    return (await replay(client, workload, seed=scenario.seed, on_progress=show))[0]

        records = asyncio.run(run())
        figures = figures_of(records, targets)
        paths = write_results(records, out, Format.PARQUET) if out is not None else ()
    if as_json:
        click.echo(json.dumps({"name": executor, **dataclasses.asdict(figures)}, indent=2))
        return
    table_console().print(figures_view(rows_of([figures], [OrderPromise(num_broken=None)]), [executor]))
    for path in paths:
        click.echo(f"wrote {path}")
