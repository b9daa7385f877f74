"""The JSON files that commands read: states, plans, policies.

A document that cannot be read is a `CommandError` that names the file and the place in it.
"""

from __future__ import annotations

import json
import re
from typing import Any

from google.protobuf import json_format
from google.protobuf.message import Message

from metronome.scheduler.v1 import plan_pb2, policy_pb2, scheduler_pb2, state_pb2
from metronome_cli.errors import CommandError
from metronome_cli.inputs import read_text

_CLUSTER_STATE_FIELDS = {
    name for field in state_pb2.ClusterState.DESCRIPTOR.fields for name in (field.name, field.json_name)
}
# How protobuf's JSON parser tells the place of a fault: outside in, and in some messages once more at the end.
_FAILED_FIELD = re.compile(r"Failed to parse (\w+) field: ")
_NO_NUMBER = re.compile(r"invalid literal for int\(\) with base 10: (.*)|could not convert string to float: (.*)")
_PLACE = re.compile(r' at "?(?:PlanRequest|PlanResponse|Policy)[\w.\[\]]*"?')


def read_plan_request(source: str) -> scheduler_pb2.PlanRequest:
    """Read a PlanRequest, a ClusterState or what `metronome state --json` prints."""
    document = _read_object(source, "a ClusterState or a PlanRequest")
    if "counters" in document:  # the books of an executor, which have a state inside
        document = {"state": document.get("state")}
    elif "state" not in document and document.keys() & _CLUSTER_STATE_FIELDS:
        document = {"state": document}
    request = scheduler_pb2.PlanRequest()
    _parse(document, request, source)
    return request


def read_plans(source: str) -> list[plan_pb2.ExecutorPlan]:
    """Read a PlanResponse, which is what `metronome plan --json` prints, or one ExecutorPlan."""
    document = _read_object(source, "a PlanResponse or an ExecutorPlan")
    response = scheduler_pb2.PlanResponse()
    _parse(document if "plans" in document or not document else {"plans": [document]}, response, source)
    return list(response.plans)


def read_policy(source: str) -> policy_pb2.Policy:
    """Read a Policy."""
    policy = policy_pb2.Policy()
    _parse(_read_object(source, "a Policy"), policy, source)
    return policy


def _read_object(source: str, expected: str) -> dict[str, Any]:
    try:
        document = json.loads(read_text(source))
    except json.JSONDecodeError as error:
        raise CommandError(f"{source}, line {error.lineno}, column {error.colno}: {error.msg}") from None
    except RecursionError:
        raise CommandError(f"{source} is nested too deeply", f"give {expected}") from None
    except ValueError:  # json reads whole numbers with int(), which has a limit
        raise CommandError(f"{source} holds a number of too many digits") from None
    if not isinstance(document, dict):
        raise CommandError(f"{source} holds no JSON object", f"give {expected}")
    return document


def _parse(document: dict[str, Any], message: Message, source: str) -> None:
    try:
        json_format.ParseDict(document, message)
    except json_format.ParseError as error:
        raise CommandError(f"{source}: {_place_and_fault(error)}") from None


def _place_and_fault(error: json_format.ParseError) -> str:
    """Shorten "Failed to parse state field: Failed to parse nowUs field: …" to "state.nowUs: …"."""
    first_line = str(error).partition("\n")[0]
    path = ".".join(_FAILED_FIELD.findall(first_line))
    fault = _PLACE.sub("", _FAILED_FIELD.sub("", first_line)).rstrip(".")
    if no_number := _NO_NUMBER.fullmatch(fault):
        fault = f"{no_number[1] or no_number[2]} is no number"
    return f"{path}: {fault}" if path else fault
