"""Policies to play: the scheduler's own profiles, files, and settings in a line."""

from __future__ import annotations

import json
from pathlib import Path

from google.protobuf import json_format

from metronome.scheduler.v1 import policy_pb2
from metronome_client import SchedulerClient
from metronome_lab.errors import LabError
from scheduler_service.convert import policy_from
from scheduler_service.core.errors import SchedulerError
from scheduler_service.core.policy import Policy, check_policy
from scheduler_service.profiles import load_profiles


def profile_names() -> tuple[str, ...]:
    """Those that the scheduler comes with."""
    return tuple(load_profiles().by_name)


def named_policy(name: str) -> Policy:
    """The policy of one of the scheduler's profiles. Raises LabError."""
    profiles = load_profiles().by_name
    if name not in profiles:
        raise LabError(f"no profile is named {name!r}", f"give one of {', '.join(profiles)}")
    return profiles[name].policy


def policy_from_text(text: str) -> tuple[str, Policy]:
    """A policy with a name for it: from the settings in `text`, or else from the file there. Raises LabError."""
    if "=" in text:
        return text, policy_with(text)
    path = Path(text)
    return path.stem, policy_in_file(path)


def policy_with(settings: str) -> Policy:
    """The policy of some settings, `ordering=FAIR,chunk_size_tokens=256`: the names of policy.proto, and values as in a
    profile. Those that are left out have their defaults. Raises LabError.
    """
    fields, values = policy_pb2.Policy.DESCRIPTOR.fields_by_name, {}
    for setting in settings.split(","):
        name, _, value = setting.partition("=")
        enum = fields[name].enum_type if name in fields else None
        prefix = enum.values_by_number[0].name.removesuffix("UNSPECIFIED") if enum is not None else ""
        values[name] = _BOOLEANS.get(value, prefix + value)
    message = policy_pb2.Policy()
    try:
        json_format.ParseDict(values, message)
    except json_format.ParseError as error:
        raise LabError(f"policy {settings}: {error}") from None
    return _checked(message, f"policy {settings}")


_BOOLEANS = {"true": True, "false": False}


def policy_in_file(path: Path) -> Policy:
    """A Policy in the JSON form of protobuf; settings that are left out have their defaults. Raises LabError."""
    message = policy_pb2.Policy()
    try:
        json_format.ParseDict(json.loads(path.read_text(encoding="utf-8")), message)
    except OSError as error:
        raise LabError(f"cannot read {path}: {error.strerror}") from None
    except (ValueError, RecursionError, json_format.ParseError) as error:
        raise LabError(f"{path}: {error}") from None
    return _checked(message, str(path))


def profile_of_service(client: SchedulerClient, name: str) -> Policy:
    """What a service has under this name. Raises LabError, and MetronomeError where it does not answer."""
    profiles = {profile.name: profile.policy for profile in client.list_profiles()}
    if name not in profiles:
        raise LabError(f"the scheduler has no profile {name!r}", f"give one of {', '.join(profiles)}")
    return _checked(profiles[name], f"profile {name}")


def _checked(message: policy_pb2.Policy, place: str) -> Policy:
    try:
        policy = policy_from(message, "policy")
        check_policy(policy, "policy")
    except SchedulerError as error:
        raise LabError(f"{place}: {error}") from None
    return policy
