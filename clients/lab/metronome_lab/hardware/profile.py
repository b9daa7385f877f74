"""A hardware profile: the sizes of an executor and what its passes cost, read from a TOML file.

description = "One sentence for people."
sources = ["where the figures come from"]

[latency]                  microseconds: a pass, a prefill token, a decoding request, a KV token that decodes read,
pass_us = 9850.0           a block copied one way between device and swap space
...
[limits]                   as an executor reports them
num_blocks = 24800
...
[cost]                     optional, of a device whose passes were measured: see cost.py. The executor then learns its
pass_us = 29850.0          latency model from its passes, as a real one does, and [latency] is what it knew last
...
ratio_quantiles = [0.8,    optional: how far passes lie from what they cost, see spread.py; without it each takes that
...]
[executor]                 optional
prefix_scope = "TENANT"    whose prefixes a request may reuse: TENANT, SHARED or OFF
plan_wait_us = 0           what a pass waits for its plan where it could not be asked for during the pass before
"""

from __future__ import annotations

import dataclasses
import math
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from executor_service.engine.limits import Limits
from executor_service.engine.snapshot import Latency
from executor_service.kv.prefix_cache import PrefixScope
from metronome_lab.errors import LabError
from metronome_lab.hardware.cost import PassCost
from metronome_lab.hardware.spread import SHARES

HARDWARE_DIRECTORY = Path(__file__).parent / "profiles"
_MOST = 2**31 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardware:
    """One kind of executor. `latency` is both what a pass takes and what the executor tells the scheduler, unless there
    is a `cost`: then a pass takes that, and the executor tells what it learns.
    """

    name: str
    description: str
    sources: tuple[str, ...]
    latency: Latency
    limits: Limits
    cost: PassCost | None = None
    prefix_scope: PrefixScope = PrefixScope.TENANT
    plan_wait_us: int = 0


def hardware_names() -> tuple[str, ...]:
    """The profiles that come with the lab."""
    return tuple(sorted(path.stem for path in HARDWARE_DIRECTORY.glob("*.toml")))


def load_hardware(name_or_path: str) -> Hardware:
    """A profile by its name, or the path of a file that ends with .toml. Raises LabError."""
    path = Path(name_or_path)
    if path.suffix != ".toml":
        path = HARDWARE_DIRECTORY / f"{name_or_path}.toml"
        if name_or_path not in hardware_names():
            raise LabError(
                f"no hardware profile is named {name_or_path!r}",
                f"give a .toml or one of {', '.join(hardware_names())}",
            )
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise LabError(f"cannot read {path}: {error.strerror}") from None
    except ValueError as error:
        raise LabError(f"{path}: {error}") from None
    return _hardware(content, path)


def with_limits(hardware: Hardware, settings: Iterable[str]) -> Hardware:
    """The same with other limits, `num_blocks=1000` each. Raises LabError."""
    table: dict[str, Any] = {n: v for n, v in dataclasses.asdict(hardware.limits).items() if v is not None}
    for setting in settings:
        name, _, value = setting.partition("=")
        table[name] = int(value) if value.isdecimal() else value
    return dataclasses.replace(hardware, limits=_limits(table, "limit"))


def write_hardware(hardware: Hardware, path: Path) -> None:
    """Write a profile that `load_hardware` reads. Raises OSError."""
    limits = {name: str(value) for name, value in dataclasses.asdict(hardware.limits).items() if value is not None}
    tables: dict[str, dict[str, str]] = {
        "latency": _figures(hardware.latency),
        "limits": limits,
        "executor": {
            "prefix_scope": f'"{hardware.prefix_scope.name}"',
            "plan_wait_us": str(hardware.plan_wait_us),
        },
    }
    if hardware.cost is not None:
        tables["cost"] = _figures(hardware.cost)
    lines = [f"description = {_text(hardware.description)}"]
    lines.append(f"sources = [{', '.join(map(_text, hardware.sources))}]")
    for table, values in tables.items():
        lines += ["", f"[{table}]", *(f"{name} = {value}" for name, value in values.items())]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _figures(costs: Latency | PassCost) -> dict[str, str]:
    """As they stand in a file; without lists that are empty."""
    figures = dataclasses.asdict(costs)
    return {name: _figure(value) for name, value in figures.items() if value != ()}


def _figure(value: float | tuple[float, ...]) -> str:
    return f"[{', '.join(map(_figure, value))}]" if isinstance(value, tuple) else f"{value:.6g}"


def _text(value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _hardware(content: Mapping[str, Any], path: Path) -> Hardware:
    _refuse_unknown(content, ("description", "sources", "latency", "limits", "cost", "executor"), path)
    description, sources = content.get("description"), content.get("sources")
    if not isinstance(description, str) or not isinstance(sources, list):
        raise LabError(f"{path}: needs a text `description` and a list `sources`")
    executor = _table(content, "executor", path)
    _refuse_unknown(executor, ("prefix_scope", "plan_wait_us"), path)
    scope = executor.get("prefix_scope", PrefixScope.TENANT.name)
    if scope not in PrefixScope.__members__:
        raise LabError(f"{path}: prefix_scope is {scope!r}", f"give one of {', '.join(PrefixScope.__members__)}")
    return Hardware(
        name=path.stem,
        description=description,
        sources=tuple(map(str, sources)),
        latency=_latency(_table(content, "latency", path), path),
        limits=_limits(_table(content, "limits", path), path),
        cost=_cost(_table(content, "cost", path), path) if "cost" in content else None,
        prefix_scope=PrefixScope[scope],
        plan_wait_us=_whole(executor, "plan_wait_us", 0, path, default=0),
    )


def _latency(table: Mapping[str, Any], path: Path) -> Latency:
    return Latency(**_microseconds(table, "latency", tuple(field.name for field in dataclasses.fields(Latency)), path))


def _cost(table: Mapping[str, Any], path: Path) -> PassCost:
    figures = dict(table)
    group = _whole(figures, "logits_group", 1, path, default=1)
    figures.pop("logits_group", None)
    quantiles = _ratio_quantiles(figures.pop("ratio_quantiles", []), path)
    others = ("logits_group", "ratio_quantiles")
    names = tuple(field.name for field in dataclasses.fields(PassCost) if field.name not in others)
    return PassCost(**_microseconds(figures, "cost", names, path), logits_group=group, ratio_quantiles=quantiles)


def _ratio_quantiles(value: object, path: Path) -> tuple[float, ...]:
    if value == []:
        return ()
    if (
        not isinstance(value, list)
        or len(value) != len(SHARES)
        or not all(_is_number(quantile) and quantile > 0 for quantile in value)
        or sorted(value) != value
    ):
        shares = ", ".join(f"{share:.0%}" for share in SHARES)
        raise LabError(
            f"{path}: cost.ratio_quantiles is {value!r}",
            f"give {len(SHARES)} ascending numbers above 0: the ratios that {shares} of the passes lie below",
        )
    return tuple(map(float, value))


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _microseconds(table: Mapping[str, Any], where: str, names: tuple[str, ...], path: Path) -> dict[str, float]:
    """The figures of a table by name, 0 where one is not given."""
    _refuse_unknown(table, names, path)
    for name in names:
        value = table.get(name, 0.0)
        if not _is_number(value) or value < 0:
            raise LabError(f"{path}: {where}.{name} is {value!r}", "give microseconds, at least 0")
    if not table.get("pass_us", 0):
        raise LabError(f"{path}: {where}.pass_us is 0", "time would stand still")
    return {name: float(table.get(name, 0.0)) for name in names}


def _limits(table: Mapping[str, Any], path: Path | str) -> Limits:
    names = [field.name for field in dataclasses.fields(Limits)]
    _refuse_unknown(table, names, path)
    optional = {"num_swap_blocks": 0, "max_num_waiting": None}
    sizes = {
        name: _whole(table, name, 0 if name in optional else 1, path, default=optional.get(name, -1)) for name in names
    }
    return Limits(**sizes)


def _whole(table: Mapping[str, Any], name: str, least: int, path: Path | str, *, default: int | None) -> Any:
    value = table.get(name, default)
    if name not in table and value != -1:
        return value
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= _MOST:
        raise LabError(f"{path}: {name} is {table.get(name)!r}", f"give a whole number from {least} on")
    return value


def _table(content: Mapping[str, Any], name: str, path: Path) -> Mapping[str, Any]:
    table = content.get(name, {})
    if not isinstance(table, dict):
        raise LabError(f"{path}: {name} is no table")
    return table


def _refuse_unknown(content: Mapping[str, Any], known: tuple[str, ...] | list[str], path: Path | str) -> None:
    unknown = sorted(set(content) - set(known))
    if unknown:
        raise LabError(f"{path}: unknown key {unknown[0]!r}", f"known are {', '.join(known)}")
