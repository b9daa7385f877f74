"""What a setting is: one name for flag, environment and file, and a kind that reads its value from text.

A kind is a function from text to a value that raises ValueError with the end of a sentence that begins with the text:
"'many' is not a whole number above 0".
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from enum import Enum
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

Kind: TypeAlias = Callable[[str], Any]
Choice = TypeVar("Choice", bound=Enum)

_SIZE = re.compile(r"([0-9.e+]+)(KiB|MiB|GiB|TiB|)")
_BYTES = {"": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
_ON, _OFF = ("1", "true", "yes", "on"), ("0", "false", "no", "off")


@dataclass(frozen=True, slots=True)
class Setting:
    """`name`: as in the file; the flag is `--a-name`, the variable `<PREFIX>A_NAME`.

    `default`: as text; None: not set, and `help` says what happens then. `is_list`: the flag may be given more than
    once, and text separates by commas.
    """

    name: str
    group: str
    kind: Kind
    help: str
    _: KW_ONLY
    default: str | None = None
    is_list: bool = False

    @property
    def flag(self) -> str:
        return f"--{self.name.replace('_', '-')}"

    @property
    def described(self) -> str:
        """The help, with the default where there is one."""
        return self.help if self.default is None else f"{self.help} (default: {self.default})"


def text(value: str) -> str:
    """Anything but nothing."""
    if not value.strip():
        raise ValueError("is empty")
    return value


def text_or_none(value: str) -> str | None:
    """None where it is empty."""
    return value or None


def path(value: str) -> Path:
    """A path, whatever is there."""
    return Path(text(value))


def switch(value: str) -> bool:
    """A flag of this kind may stand alone, which is on."""
    if value.lower() not in (*_ON, *_OFF):
        raise ValueError("is neither on nor off")
    return value.lower() in _ON


def whole(low: int, high: int | None = None) -> Kind:
    """A whole number in [low, high]."""
    if high is not None:
        wanted = f"a whole number, {low} to {high}"
    else:
        wanted = "a whole number above 0" if low == 1 else f"a whole number, {low} or above"

    def read(value: str) -> int:
        try:
            number = int(value)
        except ValueError:
            number = low - 1
        if number < low or (high is not None and number > high):
            raise ValueError(f"is not {wanted}")
        return number

    return read


def port(value: str) -> int:
    """0: any free one."""
    try:
        return int(whole(0, 65535)(value))
    except ValueError:
        raise ValueError("is not a port, 0 to 65535") from None


def seconds(value: str) -> float:
    """0 or more, and an end."""
    try:
        number = float(value)
    except ValueError:
        number = math.nan
    if not 0 <= number < math.inf:
        raise ValueError("is not a number of seconds")
    return number


def positive_seconds(value: str) -> float:
    """More than 0, and an end."""
    number = seconds(value)
    if number == 0:
        raise ValueError("is not a number of seconds above 0")
    return number


def size(value: str) -> int:
    """Bytes of `512MiB`, `2GiB` or a plain number; above 0."""
    match = _SIZE.fullmatch(value)
    try:
        number = int(float(match[1]) * _BYTES[match[2]]) if match else 0
    except (ValueError, OverflowError):
        number = 0
    if number <= 0:
        raise ValueError("is not a size, such as 512MiB or 2GiB")
    return number


def message_size(value: str) -> int:
    """Bytes of a message of gRPC, which counts them in 32 bits."""
    number = size(value)
    if number >= 2**31:
        raise ValueError("is more than 2147483647 bytes")
    return number


def one_of(*choices: str) -> Kind:
    """One of these words."""

    def read(value: str) -> str:
        if value not in choices:
            raise ValueError(f"is none of {', '.join(choices)}")
        return value

    return read


def member(choices: type[Choice]) -> Callable[[str], Choice]:
    """One of an enum's values, which are words."""
    known = one_of(*(choice.value for choice in choices))
    return lambda value: choices(known(value))
