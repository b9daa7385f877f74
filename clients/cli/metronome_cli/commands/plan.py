"""`metronome plan`: send a state to a scheduler and print what it would do."""

from __future__ import annotations

import click
from google.protobuf import json_format

from metronome_cli.consoles import table_console
from metronome_cli.documents import read_plan_request
from metronome_cli.errors import scheduler_errors
from metronome_cli.options import scheduler_option
from metronome_cli.plan_view import plan_view
from metronome_cli.policy_choice import choose_policy, policy_options
from metronome_cli.trust import Trust, trust_options
from metronome_client import SchedulerClient


@click.command()
@click.argument("state_file", metavar="STATE.json")
@scheduler_option
@trust_options
@policy_options
@click.option("--explain", is_flag=True, help="Say why each request that stays out does.")
@click.option("--json", "as_json", is_flag=True, help="Print the answer as JSON, which `metronome verify` reads.")
def plan(
    state_file: str,
    scheduler: str,
    trust: Trust,
    profile: str | None,
    policy_file: str | None,
    explain: bool,
    as_json: bool,
) -> None:
    """Plan one iteration of STATE.json (`-`: stdin).

    The file holds a ClusterState or a whole PlanRequest in the JSON form of protobuf, or what `metronome state --json`
    printed.
    """
    request = read_plan_request(state_file)
    choose_policy(request, profile, policy_file)
    request.explain |= explain
    with (
        scheduler_errors(scheduler, state_file),
        SchedulerClient(scheduler, tls=trust.tls, token=trust.token) as client,
    ):
        response = client.plan(request)
    if as_json:
        click.echo(json_format.MessageToJson(response))
        return
    console = table_console()
    for executor_plan in response.plans:
        console.print(plan_view(executor_plan))
