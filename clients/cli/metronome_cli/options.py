"""The options that several commands share."""

from __future__ import annotations

import click

INT32 = click.IntRange(-(2**31), 2**31 - 1)
"""What the contract's int32 fields hold; the services check the narrower ranges."""
INT64 = click.IntRange(-(2**63), 2**63 - 1)

DEFAULT_SCHEDULER = "127.0.0.1:50051"
DEFAULT_EXECUTOR = "127.0.0.1:50052"

executor_option = click.option(
    "--executor",
    metavar="HOST:PORT",
    default=DEFAULT_EXECUTOR,
    show_default=True,
    envvar="METRONOME_EXECUTOR",
    show_envvar=True,
    help="Executor to call.",
)

scheduler_option = click.option(
    "--scheduler",
    metavar="HOST:PORT",
    default=DEFAULT_SCHEDULER,
    show_default=True,
    envvar="METRONOME_SCHEDULER",
    show_envvar=True,
    help="Scheduler to call.",
)
