"""`metronome explain`: every request of a state with its reason and the numbers behind it."""

from __future__ import annotations

import click

from metronome_cli.consoles import table_console
from metronome_cli.documents import read_plan_request
from metronome_cli.errors import scheduler_errors
from metronome_cli.explain_view import explain_view
from metronome_cli.options import scheduler_option
from metronome_cli.policy_choice import choose_policy, policy_options
from metronome_cli.trust import Trust, trust_options
from metronome_client import SchedulerClient


@click.command()
@click.argument("state_file", metavar="STATE.json")
@scheduler_option
@trust_options
@policy_options
def explain(state_file: str, scheduler: str, trust: Trust, profile: str | None, policy_file: str | None) -> None:
    """Plan one iteration of STATE.json (`-`: stdin) and explain what happens to every request.

    That is where it stands and since when, what it gets, and why: what it needs of what is free, and who is ahead.
    """
    request = read_plan_request(state_file)
    choose_policy(request, profile, policy_file)
    request.explain = True
    with (
        scheduler_errors(scheduler, state_file),
        SchedulerClient(scheduler, tls=trust.tls, token=trust.token) as client,
    ):
        response = client.plan(request)
    console = table_console()
    for executor, plan in zip(request.state.executors, response.plans, strict=True):
        console.print(explain_view(executor, plan, request.state.now_us))
