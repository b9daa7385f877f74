"""Scenarios: one YAML file each, of the form that clients/conformance/README.md describes.

Values may hold short forms, so that files stay readable: `{$repeat: x, times: n}` (a list of n x), `{$text: x,
times: n}` (the string x n times), `{$range: [first, last]}` (a list of numbers), `{$rows: [...]}` (a table of requests,
row by row), and `{$of: name.text, from: a, to: b}` (part of what an earlier step was answered).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

SCENARIOS = Path(__file__).parent / "scenarios"

_KEYS = {"promise", "source", "needs", "destructive", "slow", "steps"}
_KEYS_OF_CLIENTS = _KEYS | {"servers", "client"}


class ScenarioError(Exception):
    """A file is no scenario."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """One promise and how to see whether it is kept.

    `promise`: the sentence of the contract; `source`: where it stands; `needs`: what the server must have for it
    ("swap", "queue_limit"), without which it is skipped; `destructive`: the server serves nobody afterwards; `slow`: it
    takes half a minute or more. Of a client: `servers`, what they do (fault_server.py), and `client`, its settings.
    """

    name: str
    kind: str
    promise: str
    source: str
    needs: tuple[str, ...]
    destructive: bool
    slow: bool
    steps: tuple[Mapping[str, Any], ...]
    servers: tuple[Mapping[str, Any], ...] = ()
    client: Mapping[str, Any] = field(default_factory=dict)


def load_scenarios(
    kind: str, *, only: Sequence[str] = (), slow: bool = False, directory: Path = SCENARIOS
) -> tuple[Scenario, ...]:
    """All of a kind by name, destructive ones last; `slow`, or by name: those that take half a minute, too.

    Raises ScenarioError, also where `only` names a stranger.
    """
    found = [_load(file, kind) for file in sorted((directory / kind).glob("*.yaml"))]
    unknown = set(only) - {scenario.name for scenario in found}
    if unknown:
        raise ScenarioError(f"no scenario is named {', '.join(sorted(unknown))}")
    chosen = [one for one in found if (one.name in only if only else slow or not one.slow)]
    return tuple(sorted(chosen, key=lambda scenario: scenario.destructive))


def _load(file: Path, kind: str) -> Scenario:
    try:
        content = yaml.safe_load(file.read_text(encoding="utf-8"))
    except yaml.YAMLError as error:
        raise ScenarioError(f"{file.name}: {error}") from None
    keys = _KEYS_OF_CLIENTS if kind == "client" else _KEYS
    if not isinstance(content, dict) or not {"promise", "source", "steps"} <= set(content) <= keys:
        raise ScenarioError(f"{file.name}: needs promise, source and steps, and may have {', '.join(sorted(keys))}")
    return Scenario(
        name=file.stem,
        kind=kind,
        promise=" ".join(content["promise"].split()),
        source=content["source"],
        needs=tuple(content.get("needs", ())),
        destructive=bool(content.get("destructive", False)),
        slow=bool(content.get("slow", False)),
        steps=tuple(content["steps"]),
        servers=tuple(content.get("servers", ())),
        client=content.get("client", {}),
    )


def expanded(value: Any, answers: Mapping[str, Mapping[str, Any]]) -> Any:
    """The value with its short forms written out. `answers`: what earlier steps were answered, by their names."""
    if isinstance(value, list):
        return [expanded(item, answers) for item in value]
    if not isinstance(value, dict):
        return value
    if "$repeat" in value:
        return [expanded(value["$repeat"], answers)] * int(value["times"])
    if "$text" in value:
        return str(value["$text"]) * int(value["times"])
    if "$range" in value:
        first, last = value["$range"]
        return list(range(first, last + 1))
    if "$rows" in value:
        return _columns(value["$rows"])
    if "$of" in value:
        name, _, part = value["$of"].partition(".")
        answer = answers[name][part]
        return answer[value.get("from") : value.get("to")] if "from" in value or "to" in value else answer
    return {key: expanded(item, answers) for key, item in value.items()}


def _columns(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """A RequestTable with the columns that any row names; WAITING where no row has a status."""
    names = list(dict.fromkeys([*(name for row in rows for name in row), "status"]))
    columns = {name: [row.get(name, 0) for row in rows] for name in names}
    columns["status"] = [f"REQUEST_STATUS_{row.get('status', 'WAITING')}" for row in rows]
    return columns
