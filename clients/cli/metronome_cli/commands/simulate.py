"""`metronome simulate`: a workload through the planner and the executor's books, in virtual time."""

from __future__ import annotations

import dataclasses
import json
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from metronome_cli.consoles import table_console
from metronome_cli.errors import scheduler_errors
from metronome_cli.figures_view import figures_view
from metronome_cli.lab_options import (
    DEFAULT_PROFILE,
    POLICY,
    POLICY_HELP,
    fleet_from,
    fleet_options,
    lab_errors,
    progress_bar,
    scenario_from,
    scenario_options,
    target_options,
    targets_from,
)
from metronome_cli.options import ADDRESS, NAME
from metronome_cli.trust import Trust, trust_options
from metronome_client import SchedulerClient

if TYPE_CHECKING:
    from scheduler_service.core.policy import Policy


@click.command()
@scenario_options
@fleet_options
@click.option("--profile", type=NAME, help=f"Policy, by the name of a profile.  [default: {DEFAULT_PROFILE}]")
@click.option("--policy", "policy_text", metavar=POLICY, type=NAME, help=POLICY_HELP)
@click.option("--scheduler", metavar="HOST:PORT", type=ADDRESS, help="Have this service plan.  [default: in process]")
@trust_options
@target_options
@click.option("--out", type=click.Path(path_type=Path), help="Directory for a row per request and per iteration.")
@click.option("--format", "file_format", type=click.Choice(["parquet", "csv"]), default="parquet", show_default=True)
@click.option("--no-iterations", is_flag=True, help="Keep no row per iteration: there may be millions.")
@click.option("--json", "as_json", is_flag=True, help="Print the figures as JSON.")
def simulate(
    profile: str | None,
    policy_text: str | None,
    scheduler: str | None,
    trust: Trust,
    out: Path | None,
    file_format: str,
    no_iterations: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Play WORKLOAD in virtual time.

    WORKLOAD is a trace (.csv, or .jsonl of Mooncake) or a description of requests to draw (.toml); docs/lab/README.md
    has both. The same settings give the same result, byte for byte.
    """
    if profile is not None and policy_text is not None:
        raise click.UsageError("Give either --profile or --policy.")
    with lab_errors(), ExitStack() as stack:
        from metronome_lab.figures import figures_of
        from metronome_lab.order_promise import order_promise
        from metronome_lab.report.table import rows_of
        from metronome_lab.result_files import Format, write_results
        from metronome_lab.runs import Run
        from metronome_lab.simulated.planners import ServicePlanner

        scenario, fleet, targets = scenario_from(options), fleet_from(options), targets_from(options)
        workload = scenario.workload()
        planner = client = None
        if scheduler is not None:
            stack.enter_context(scheduler_errors(scheduler))
            client = stack.enter_context(SchedulerClient(scheduler, tls=trust.tls, token=trust.token))
        name, policy = _policy(profile, policy_text, client)
        if client is not None:
            planner = ServicePlanner(client, policy)
        run = Run(name=name, scenario=scenario, fleet=fleet, policy=policy, keep_iterations=not no_iterations)
        show = stack.enter_context(progress_bar(name, len(workload)))
        records = run.play(workload, planner=planner, on_progress=show)
        figures = figures_of(records, targets)
        paths = write_results(records, out, Format(file_format)) if out is not None else ()
    if as_json:
        click.echo(json.dumps({"name": name, **dataclasses.asdict(figures)}, indent=2))
        return
    table_console().print(figures_view(rows_of([figures], [order_promise(records, policy)]), [name]))
    for path in paths:
        click.echo(f"wrote {path}")


def _policy(profile: str | None, policy_text: str | None, client: SchedulerClient | None) -> tuple[str, Policy]:
    """The policy that was asked for, with a name for it; a profile is the service's own where one plans."""
    from metronome_lab.policies import named_policy, policy_from_text, profile_of_service

    if policy_text is not None:
        return policy_from_text(policy_text)
    name = profile or DEFAULT_PROFILE
    return name, named_policy(name) if client is None else profile_of_service(client, name)
