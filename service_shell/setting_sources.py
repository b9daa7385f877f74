"""Where settings come from: a flag, else the environment, else a file (`--config`), else the default.

The table of settings makes the flags and their help, says which variables and keys there are, and is printed with
what is in force. What is unknown in any of the three is refused, with the name that it may have been meant to be: a
setting that is misspelt must not become a default in silence.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from itertools import groupby
from pathlib import Path
from typing import Any, TypeVar

from service_shell.setting import Setting, switch

Config = TypeVar("Config")

_NUMBER = re.compile(r"(0|[1-9][0-9]*)(\.[0-9]+)?")  # as TOML writes it too

CONFIG = "config"  # names the file, so it cannot stand in it


class SettingError(Exception):
    """A setting that cannot be. The text names it, where it comes from, and why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """What has settings. `prefix`: of its variables in the environment."""

    name: str
    description: str
    prefix: str
    settings: tuple[Setting, ...]

    def variable(self, name: str) -> str:
        return self.prefix + name.upper()


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """A value that somebody gave. `source`: who, for people."""

    text: str
    source: str


class Values:
    """The settings in force, by name."""

    def __init__(self, program: Program, given: Mapping[str, Given]) -> None:
        """Raises SettingError for a value that its kind does not take."""
        self._program = program
        self._given = given
        self._values = {setting.name: self._value(setting) for setting in program.settings}

    def __getitem__(self, name: str) -> Any:
        return self._values[name]

    def printed(self) -> str:
        """All of them as TOML that can be given back as a file, each with where it comes from."""
        lines = [f"# The settings of {self._program.name}, and where each comes from."]
        for group, settings in groupby(self._program.settings, key=lambda setting: setting.group):
            lines += ["", f"# {group}"]
            for setting in settings:
                given = self._given.get(setting.name)
                value = setting.default if given is None else given.text
                source = "default" if given is None else given.source
                if value is None:
                    lines.append(f"# {setting.name} is not set")
                else:
                    lines.append(f"{setting.name} = {_toml(setting, value, self[setting.name])}  # {source}")
        return "\n".join(lines) + "\n"

    def _value(self, setting: Setting) -> Any:
        given = self._given.get(setting.name)
        value = setting.default if given is None else given.text
        if value is None:
            return None
        try:
            return setting.kind(value)
        except ValueError as error:
            source = "default" if given is None else given.source
            raise SettingError(f"argument {setting.flag} ({source}): {value!r} {error}") from error


def configure(
    program: Program, argv: Sequence[str], environ: Mapping[str, str], build: Callable[[Values], Config]
) -> Config:
    """What `build` makes of the settings; it raises SettingError where they do not go together.

    Exits with status 2 and a message where a setting is wrong, and with 0 where settings or help were to be printed.
    """
    try:
        values, is_to_be_printed = _read(program, argv, environ)
        config = build(values)
    except SettingError as error:
        print(f"{program.name}: error: {error}", file=sys.stderr)
        sys.exit(2)
    if is_to_be_printed:
        print(values.printed(), end="")
        sys.exit(0)
    return config


def _read(program: Program, argv: Sequence[str], environ: Mapping[str, str]) -> tuple[Values, bool]:
    flags = _flags(program, argv)
    printing = flags.pop("print_config", None) is not None
    environment = _environment(program, environ)
    file = flags.pop(CONFIG, None) or environment.pop(CONFIG, None)
    contents = {} if file is None else _file(program, Path(file.text))
    return Values(program, contents | environment | flags), printing


def _flags(program: Program, argv: Sequence[str]) -> dict[str, Given]:
    parser = argparse.ArgumentParser(
        prog=program.name,
        description=program.description,
        epilog=f"Each setting can be given in the environment too, as in {program.variable('port')}=50051, and in a "
        "TOML file by its name, as in port = 50051. A flag goes before the environment, and that before the file.",
        allow_abbrev=False,
        exit_on_error=False,
        argument_default=argparse.SUPPRESS,
    )
    parser.add_argument("--config", metavar="FILE", help="TOML file with settings")
    parser.add_argument(
        "--print-config", action="store_const", const="on", help="print the settings in force, and exit"
    )
    for group, settings in groupby(program.settings, key=lambda setting: setting.group):
        part = parser.add_argument_group(group)
        for setting in settings:
            alone: dict[str, Any] = {"nargs": "?", "const": "on"} if setting.kind is switch else {}
            help_text = setting.described.replace("%", "%%")
            part.add_argument(setting.flag, help=help_text, action="append" if setting.is_list else "store", **alone)
    try:
        values, unknown = parser.parse_known_args(argv)
    except argparse.ArgumentError as error:
        raise SettingError(str(error)) from error
    if unknown:
        known = [CONFIG, "print_config", *(setting.name for setting in program.settings)]
        flags = [f"--{name.replace('_', '-')}" for name in known]
        raise SettingError(
            f"unrecognized arguments: {' '.join(unknown)}{_nearest(unknown[0].partition('=')[0], flags)}"
        )
    return {
        name: Given(text=",".join(value) if isinstance(value, list) else value, source="flag")
        for name, value in vars(values).items()
    }


def _environment(program: Program, environ: Mapping[str, str]) -> dict[str, Given]:
    by_variable = {program.variable(setting.name): setting for setting in program.settings}
    known = {variable: setting.name for variable, setting in by_variable.items()} | {program.variable(CONFIG): CONFIG}
    given = {}
    for variable, value in environ.items():
        if not variable.startswith(program.prefix):
            continue
        if variable not in known:
            raise SettingError(
                f"{variable} in the environment is no setting{_nearest(variable, known, program.prefix)}"
            )
        if variable in by_variable and by_variable[variable].is_list and not value.strip(" ,"):
            continue
        given[known[variable]] = Given(text=value, source=variable)
    return given


def _file(program: Program, path: Path) -> dict[str, Given]:
    try:
        contents = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingError(f"cannot read --config {path}: {error.strerror}") from error
    except ValueError as error:  # no TOML, or no UTF-8
        raise SettingError(f"--config {path} is no TOML: {error}") from error
    known = {setting.name for setting in program.settings}
    for key in contents:
        if key not in known:
            raise SettingError(f"{key!r} in {path} is no setting{_nearest(key, known)}")
    return {key: Given(text=_text_of(key, value, path), source=str(path)) for key, value in contents.items()}


def _text_of(key: str, value: object, path: Path) -> str:
    match value:
        case bool():
            return "on" if value else "off"
        case str() | int() | float():
            return str(value)
        case list() if all(isinstance(part, str) for part in value):
            return ",".join(value)
        case _:
            raise SettingError(f"{key!r} in {path} must be a text, a number, true or false, or a list of texts")


def _nearest(name: str, known: Iterable[str], begin: str = "") -> str:
    """`begin`: of all of them, which makes none the nearer."""
    close = get_close_matches(name.removeprefix(begin), [each.removeprefix(begin) for each in known], n=1)
    return f"; did you mean {begin}{close[0]}?" if close else ""


def _toml(setting: Setting, text: str, value: Any) -> str:
    if setting.is_list:
        return f"[{', '.join(map(_quoted, text.split(',')))}]"
    if isinstance(value, bool):
        return str(value).lower()
    return text if isinstance(value, int | float) and _NUMBER.fullmatch(text) else _quoted(text)


def _quoted(text: str) -> str:
    # A basic string of TOML is one of JSON, but for DEL and that it knows no surrogates.
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
