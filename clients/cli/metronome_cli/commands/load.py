"""`metronome load`: a workload on a real executor, or the executors of a fleet on a real scheduler."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from metronome_cli.consoles import table_console
from metronome_cli.errors import executor_errors, scheduler_errors
from metronome_cli.figures_view import figures_view
from metronome_cli.lab_options import (
    DEFAULT_PROFILE,
    fleet_from,
    fleet_options,
    lab_errors,
    progress_bar,
    scenario_from,
    scenario_options,
    target_options,
    targets_from,
)
from metronome_cli.options import ADDRESS, NAME, POSITIVE, executor_option
from metronome_cli.trust import Trust, trust_options
from metronome_client import AsyncInferenceClient, AsyncSchedulerClient

if TYPE_CHECKING:
    from metronome_lab.live.drive import DriveFigures
    from metronome_lab.records import Records
    from metronome_lab.runs import Scenario
    from metronome_lab.simulation import Fleet

# Of the time, where who asks has none left to wait in.
_BUSY = 0.9


@click.command()
@scenario_options
@executor_option
@click.option("--scheduler", metavar="HOST:PORT", type=ADDRESS, help="Load this scheduler instead, with --executors.")
@trust_options
@fleet_options
@click.option("--profile", type=NAME, default=DEFAULT_PROFILE, show_default=True, help="Policy to ask a scheduler for.")
@click.option("--seconds", type=POSITIVE, default=10, show_default=True, help="How long to load a scheduler.")
@target_options
@click.option("--out", type=click.Path(path_type=Path), help="Directory for a row per request and per iteration.")
@click.option("--json", "as_json", is_flag=True, help="Print the figures as JSON.")
def load(
    executor: str,
    scheduler: str | None,
    trust: Trust,
    profile: str,
    seconds: int,
    out: Path | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Send the requests of WORKLOAD to an executor when they are due, and measure what comes back.

    Prompts are random tokens of the recorded lengths, equal where the workload says that prompts begin alike. Figures
    are those of `metronome simulate`, as a client sees them.

    With --scheduler: ask that service for the plans of --executors simulated executors that play WORKLOAD, at the pace
    of their passes, and measure how many it gives and how fast.
    """
    with lab_errors():
        scenario, fleet, targets = scenario_from(options), fleet_from(options), targets_from(options)
        if scheduler is not None:
            _load_scheduler(scheduler, trust, scenario, fleet, profile, seconds, as_json)
            return
        from metronome_lab.figures import figures_of
        from metronome_lab.order_promise import OrderPromise
        from metronome_lab.report.table import rows_of
        from metronome_lab.result_files import Format, write_results

        with executor_errors(executor):
            records = asyncio.run(_replay(executor, trust, scenario))
        figures = figures_of(records, targets)
        paths = write_results(records, out, Format.PARQUET) if out is not None else ()
    if as_json:
        click.echo(json.dumps({"name": executor, **dataclasses.asdict(figures)}, indent=2))
        return
    table_console().print(figures_view(rows_of([figures], [OrderPromise(num_broken=None)]), [executor]))
    for path in paths:
        click.echo(f"wrote {path}")


async def _replay(executor: str, trust: Trust, scenario: Scenario) -> Records:
    from metronome_lab.live.replay import replay

    workload = scenario.workload()
    async with AsyncInferenceClient(executor, tls=trust.tls, token=trust.token) as client:
        with progress_bar("requests", len(workload)) as show:
            return (await replay(client, workload, seed=scenario.seed, on_progress=show))[0]


def _load_scheduler(
    scheduler: str, trust: Trust, scenario: Scenario, fleet: Fleet, profile: str, seconds: int, as_json: bool
) -> None:
    from metronome_lab.live.drive import drive, plan_calls
    from metronome_lab.policies import named_policy

    workload, policy = scenario.workload(), named_policy(profile)
    with progress_bar("requests played", len(workload)) as show:
        calls = plan_calls(workload, fleet.hardware, policy, on_progress=show)

    async def run() -> DriveFigures:
        async with AsyncSchedulerClient(scheduler, tls=trust.tls, token=trust.token) as client:
            return await drive(client, calls, num_executors=fleet.num_executors, seconds=seconds, seed=scenario.seed)

    with scheduler_errors(scheduler):
        figures = asyncio.run(run())
    percentiles = {f"p{percent}_ms": figures.percentile_ms(percent) for percent in (50, 99)}
    if as_json:
        named = ("num_executors", "asked_per_s", "plans_per_s", "num_unanswered", "client_busy")
        click.echo(json.dumps({name: getattr(figures, name) for name in named} | percentiles))
        return
    click.echo(
        f"{figures.num_executors:,} executors asked for {figures.asked_per_s:,.0f} plans/s and got "
        f"{figures.plans_per_s:,.0f}, half of them within {percentiles['p50_ms']:.2f} ms, "
        f"99 of 100 within {percentiles['p99_ms']:.2f} ms"
    )
    if figures.num_unanswered:
        click.echo(f"{figures.num_unanswered:,} calls were not answered in time, or turned away")
    if figures.client_busy > _BUSY:
        click.echo(
            "this side was busy all the time, so it is not known what the scheduler sustains: load it by several"
        )
