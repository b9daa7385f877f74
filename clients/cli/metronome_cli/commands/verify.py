"""`metronome verify`: check a plan, made by any scheduler, against the invariants of the contract."""

from __future__ import annotations

from collections.abc import Sequence

import click
from rich.table import Table

from metronome.scheduler.v1 import scheduler_pb2
from metronome_cli.consoles import table_console
from metronome_cli.documents import read_plan_request, read_plans
from metronome_cli.errors import scheduler_errors
from metronome_cli.options import scheduler_option
from metronome_cli.policy_choice import choose_policy, policy_options
from metronome_cli.trust import Trust, trust_options
from metronome_client import SchedulerClient

EXIT_BROKEN = 1


@click.command()
@click.argument("state_file", metavar="STATE.json")
@click.argument("plan_file", metavar="PLAN.json")
@scheduler_option
@trust_options
@policy_options
@click.pass_context
def verify(
    context: click.Context,
    state_file: str,
    plan_file: str,
    scheduler: str,
    trust: Trust,
    profile: str | None,
    policy_file: str | None,
) -> None:
    """Check that PLAN.json keeps all invariants for STATE.json (`-`: stdin).

    PLAN.json holds what `metronome plan --json` printed: a PlanResponse in the JSON form of protobuf. Some invariants
    depend on the policy: name the one that the plan was made with. The exit status is 1 where something is broken.
    """
    asked = read_plan_request(state_file)
    request = scheduler_pb2.VerifyRequest(state=asked.state, plans=read_plans(plan_file))
    match asked.WhichOneof("policy_choice"):
        case "policy":
            request.policy.CopyFrom(asked.policy)
        case "profile":
            request.profile = asked.profile
    choose_policy(request, profile, policy_file)
    with (
        scheduler_errors(scheduler, state_file),
        SchedulerClient(scheduler, tls=trust.tls, token=trust.token) as client,
    ):
        violations = client.verify(request)
    if not violations:
        click.echo("keeps all invariants")
        return
    table_console().print(_violations_table(violations))
    context.exit(EXIT_BROKEN)


def _violations_table(violations: Sequence[scheduler_pb2.Violation]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for heading in ("executor", "invariant", "requests", "what is broken"):
        table.add_column(heading, overflow="fold")
    for violation in violations:
        requests = ", ".join(map(str, violation.ids))
        table.add_row(violation.executor_id, _name(violation.invariant), requests, violation.description)
    return table


def _name(invariant: int) -> str:
    """Write "2 blocks"; an invariant of a later contract as its number."""
    known = scheduler_pb2.Invariant.DESCRIPTOR.values_by_number.get(invariant)
    name = known.name.removeprefix("INVARIANT_").lower().replace("_", " ") if known else ""
    return f"{invariant} {name}".strip()
