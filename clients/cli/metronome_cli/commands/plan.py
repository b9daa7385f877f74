"""`metronome plan`: send a state to a scheduler and print what it would do."""

from __future__ import annotations

import json
import re

import click
from google.protobuf import json_format
from rich.console import Console

from metronome.scheduler.v1 import scheduler_pb2, state_pb2
from metronome_cli.errors import CommandError, scheduler_errors
from metronome_cli.inputs import read_text
from metronome_cli.options import scheduler_option
from metronome_cli.plan_view import plan_view
from metronome_client import SchedulerClient

_CLUSTER_STATE_FIELDS = {
    name for field in state_pb2.ClusterState.DESCRIPTOR.fields for name in (field.name, field.json_name)
}
# How protobuf's JSON parser tells the place of a fault: outside in, and in some messages once more at the end.
_FAILED_FIELD = re.compile(r"Failed to parse (\w+) field: ")
_PLACE = re.compile(r' at "?PlanRequest[\w.\[\]]*"?')


@click.command()
@click.argument("state_file", metavar="STATE.json")
@scheduler_option
@click.option("--profile", help="Policy to plan with, by the name of one of the scheduler's profiles.")
@click.option("--explain", is_flag=True, help="Say why each request that stays out does.")
@click.option("--json", "as_json", is_flag=True, help="Print the answer as JSON.")
def plan(state_file: str, scheduler: str, profile: str | None, explain: bool, as_json: bool) -> None:
    """Plan one iteration of STATE.json (`-`: stdin).

    The file holds a ClusterState or a whole PlanRequest in the JSON form of protobuf, or what `metronome state --json`
    printed.
    """
    request = parse_plan_request(read_text(state_file), state_file)
    if profile is not None:
        request.profile = profile
    request.explain |= explain
    with scheduler_errors(scheduler), SchedulerClient(scheduler) as client:
        response = client.plan(request)
    if as_json:
        click.echo(json_format.MessageToJson(response))
        return
    console = Console(highlight=False)
    for executor_plan in response.plans:
        console.print(plan_view(executor_plan))


def parse_plan_request(text: str, source: str) -> scheduler_pb2.PlanRequest:
    """Read a PlanRequest, a ClusterState or what `metronome state --json` prints.

    Raises `CommandError` that names the place.
    """
    try:
        document = json.loads(text)
    except json.JSONDecodeError as error:
        raise CommandError(f"{source}, line {error.lineno}, column {error.colno}: {error.msg}") from None
    if not isinstance(document, dict):
        raise CommandError(f"{source} holds no JSON object", "give a ClusterState or a PlanRequest")
    if "counters" in document:  # the books of an executor, which have a state inside
        document = {"state": document.get("state")}
    elif "state" not in document and document.keys() & _CLUSTER_STATE_FIELDS:
        document = {"state": document}
    request = scheduler_pb2.PlanRequest()
    try:
        json_format.ParseDict(document, request)
    except json_format.ParseError as error:
        raise CommandError(f"{source}: {_place_and_fault(error)}") from None
    return request


def _place_and_fault(error: json_format.ParseError) -> str:
    """Shorten "Failed to parse state field: Failed to parse nowUs field: …" to "state.nowUs: …"."""
    first_line = str(error).partition("\n")[0]
    path = ".".join(_FAILED_FIELD.findall(first_line))
    fault = _PLACE.sub("", _FAILED_FIELD.sub("", first_line)).rstrip(".")
    return f"{path}: {fault}" if path else fault
