"""The options that choose a policy, the same for every command that plans or verifies."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import click

from metronome.scheduler.v1 import scheduler_pb2
from metronome_cli.documents import read_policy
from metronome_cli.options import NAME

_Command = TypeVar("_Command", bound=Callable[..., None])


def policy_options(command: _Command) -> _Command:
    """Add --profile and --policy, which arrive as `profile` and `policy_file`."""
    profile = click.option("--profile", type=NAME, help="Policy, by the name of one of the scheduler's profiles.")
    policy = click.option("--policy", "policy_file", metavar="POLICY.json", help="Policy, as a file with its settings.")
    return profile(policy(command))


def choose_policy(
    request: scheduler_pb2.PlanRequest | scheduler_pb2.VerifyRequest, profile: str | None, policy_file: str | None
) -> None:
    """Put the policy that was asked for into the request; what it had stays where none was."""
    if profile is not None and policy_file is not None:
        raise click.UsageError("Give either --profile or --policy.")
    if profile is not None:
        request.profile = profile
    elif policy_file is not None:
        request.policy.CopyFrom(read_policy(policy_file))
