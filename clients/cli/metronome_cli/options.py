"""The options that several commands share, and the types of their values.

A value that cannot be is refused here where the reason needs no service, in words that name what is wanted.
"""

from __future__ import annotations

import re
import sys

import click

_ADDRESS = re.compile(r"[^\s:/]+:\d{1,5}|\[[0-9a-fA-F:.]+\]:\d{1,5}|(unix|unix-abstract|dns|ipv4|ipv6):\S+")


class WholeNumber(click.ParamType):  # type: ignore[type-arg]  # click 8.1 has no parameter here
    """A whole number from `least` to `most`."""

    name = "integer"

    def __init__(self, least: int, most: int = sys.maxsize) -> None:
        self._least = least
        self._most = most

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Read the number."""
        try:
            number = int(str(value))
        except ValueError:
            self.fail(f"{value!r} is no whole number.", param, ctx)
        if number < self._least:
            self.fail(f"{number} is less than {self._least}.", param, ctx)
        if number > self._most:
            self.fail(f"{number} is more than {self._most}.", param, ctx)
        return number


class Utf8Text(click.ParamType):  # type: ignore[type-arg]  # click 8.1 has no parameter here
    """Text that can be sent: a shell may pass bytes that are none."""

    name = "text"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Check the text."""
        text = str(value)
        try:
            text.encode()
        except UnicodeEncodeError:
            self.fail(f"{text!a} is not UTF-8 text.", param, ctx)
        return text


class NameText(Utf8Text):
    """Text that names something, so it is not empty."""

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Check the name."""
        text = super().convert(value, param, ctx)
        if not text.strip():
            self.fail("the name is empty.", param, ctx)
        return text


class AddressText(Utf8Text):
    """Where a service listens, as gRPC takes it."""

    name = "address"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Check the form of the address; whether anybody answers there is another question."""
        text = super().convert(value, param, ctx)
        if not _ADDRESS.fullmatch(text):
            self.fail(f"{text!r} is no address; give HOST:PORT.", param, ctx)
        return text


INT32 = WholeNumber(-(2**31), 2**31 - 1)
"""What the contract's int32 fields hold."""
WHOLE = WholeNumber(0, 2**31 - 1)
POSITIVE = WholeNumber(1, 2**31 - 1)
INT64 = WholeNumber(-(2**63), 2**63 - 1)
PORT = WholeNumber(0, 65535)
TEXT = Utf8Text()
NAME = NameText()
ADDRESS = AddressText()

DEFAULT_SCHEDULER = "127.0.0.1:50051"
DEFAULT_EXECUTOR = "127.0.0.1:50052"

executor_option = click.option(
    "--executor",
    metavar="HOST:PORT",
    type=ADDRESS,
    default=DEFAULT_EXECUTOR,
    show_default=True,
    envvar="METRONOME_EXECUTOR",
    show_envvar=True,
    help="Executor to call.",
)

scheduler_option = click.option(
    "--scheduler",
    metavar="HOST:PORT",
    type=ADDRESS,
    default=DEFAULT_SCHEDULER,
    show_default=True,
    envvar="METRONOME_SCHEDULER",
    show_envvar=True,
    help="Scheduler to call.",
)
