"""Requests that are drawn: arrivals and lengths by named distributions, one stream or several.

    num_requests = 1000                                       of all streams together

    [[streams]]
    tenant = "chat"                                           optional, as are the next three
    priority = 0
    deadline_s = 20.0                                         after its arrival: then it is ended, complete or not
    shared_prefix_tokens = 1024                               that all prompts of the stream begin with
    arrivals = { kind = "poisson", rate = 5.0 }               requests a second
    prompt_tokens = { kind = "lognormal", median = 800, sigma = 1.0, most = 8192 }
    output_tokens = { kind = "fixed", tokens = 100 }

Arrivals: `poisson` (rate); `gamma` (rate, cv: standard deviation of the gaps over their mean, above 1 for bursts);
`on_off` (rate while on, on_s, off_s: both exponential with these means); `diurnal` (rate, swing: 0 to 1 of it,
period_s: a sine). Lengths: `fixed` (tokens), `uniform` (least, most), `lognormal` (median, sigma, most), `pareto`
(least, alpha, most: a heavy tail).
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metronome_lab.errors import LabError
from metronome_lab.workload.requests import MAX_TOKENS, PREFIX_BLOCK_TOKENS, TokenArray, Workload

FloatArray = NDArray[np.float64]
_MOST_REQUESTS = 10_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kind:
    """A distribution: the least value of each parameter, and how to draw."""

    least: Mapping[str, float]
    draw: Callable[[np.random.Generator, int, Mapping[str, float]], FloatArray]


def read_generated(path: Path, seed: int) -> Workload:
    """Draw what a file describes: the same from the same seed. Raises LabError, and OSError."""
    try:
        description = tomllib.loads(path.read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as error:
        raise LabError(f"{path}: {error}") from None
    return generate(description, name=path.stem, seed=seed, place=str(path))


def generate(description: Mapping[str, Any], *, name: str, seed: int, place: str = "workload") -> Workload:
    """Draw a workload. `description`: as a file has it. Raises LabError that begins with `place`."""
    _refuse_unknown(description, ("num_requests", "streams"), place)
    count, streams = description.get("num_requests"), description.get("streams")
    if not isinstance(count, int) or isinstance(count, bool) or not 1 <= count <= _MOST_REQUESTS:
        raise LabError(f"{place}: num_requests is {count!r}", f"give 1 to {_MOST_REQUESTS:,}")
    if not isinstance(streams, list) or not streams or not all(isinstance(stream, dict) for stream in streams):
        raise LabError(f"{place}: needs at least one [[streams]]")
    drawn = [_Stream.drawn(s, i, count, seed, f"{place}, stream {i + 1}") for i, s in enumerate(streams)]
    arrival_us = np.concatenate([stream.arrival_us for stream in drawn])
    first = np.argsort(arrival_us, kind="stable")[:count]
    of_stream = np.concatenate([np.full(count, number) for number in range(len(drawn))])[first]
    tenants = tuple(dict.fromkeys(stream.tenant for stream in drawn))
    prompts = np.concatenate([stream.num_prompt_tokens for stream in drawn])[first]
    return Workload.of(
        name=name,
        arrival_us=arrival_us[first],
        num_prompt_tokens=prompts,
        num_output_tokens=np.concatenate([stream.num_output_tokens for stream in drawn])[first],
        tenant=np.array([tenants.index(stream.tenant) for stream in drawn])[of_stream],
        priority=np.array([stream.priority for stream in drawn])[of_stream],
        deadline_us=np.array([stream.deadline_us for stream in drawn])[of_stream],
        tenants=tenants,
        prefixes=_prefixes(drawn, of_stream, prompts),
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Stream:
    """[num_requests] each."""

    tenant: str
    priority: int
    deadline_us: int
    num_shared_blocks: int
    arrival_us: FloatArray
    num_prompt_tokens: FloatArray
    num_output_tokens: FloatArray

    @classmethod
    def drawn(cls, description: Mapping[str, Any], number: int, count: int, seed: int, place: str) -> _Stream:
        columns = ("arrivals", "prompt_tokens", "output_tokens")
        known = ("tenant", "priority", "deadline_s", "shared_prefix_tokens", *columns)
        _refuse_unknown(description, known, place)
        tenant, priority = description.get("tenant", ""), description.get("priority", 0)
        shared, deadline_s = description.get("shared_prefix_tokens", 0), description.get("deadline_s", 0)
        if not isinstance(tenant, str) or not isinstance(priority, int) or not isinstance(shared, int):
            raise LabError(f"{place}: tenant is a text, priority and shared_prefix_tokens are whole numbers")
        if not 0 <= shared <= MAX_TOKENS or not -(2**31) <= priority < 2**31:
            raise LabError(f"{place}: priority or shared_prefix_tokens is out of range")
        if isinstance(deadline_s, bool) or not isinstance(deadline_s, int | float) or not 0 <= deadline_s <= 1e9:
            raise LabError(f"{place}: deadline_s is {deadline_s!r}", "give seconds, 0 for none")
        # A generator for each column, so that a change of one leaves the others as they were.
        arrivals, prompts, outputs = (np.random.default_rng((seed, number, column)) for column in range(3))
        own_prompt = _draw(description, "prompt_tokens", _LENGTHS, prompts, count, place)
        return cls(
            tenant=tenant,
            priority=priority,
            deadline_us=round(deadline_s * 1e6),
            num_shared_blocks=shared // PREFIX_BLOCK_TOKENS,
            arrival_us=np.cumsum(_draw(description, "arrivals", _ARRIVALS, arrivals, count, place)) * 1e6,
            num_prompt_tokens=shared + own_prompt,
            num_output_tokens=_draw(description, "output_tokens", _LENGTHS, outputs, count, place),
        )


def _prefixes(streams: list[_Stream], of_stream: NDArray[Any], prompts: FloatArray) -> list[TokenArray]:
    """The blocks that each shares with others of its stream; none at all where no stream shares any."""
    if not any(stream.num_shared_blocks for stream in streams):
        return []
    first_ids = np.cumsum([0] + [stream.num_shared_blocks for stream in streams])
    whole = [
        np.arange(first, first + stream.num_shared_blocks, dtype=np.int32)
        for first, stream in zip(first_ids[:-1], streams, strict=True)
    ]
    most = prompts // PREFIX_BLOCK_TOKENS
    return [whole[number][: int(blocks)] for number, blocks in zip(of_stream.tolist(), most.tolist(), strict=True)]


def _draw(
    description: Mapping[str, Any],
    key: str,
    kinds: Mapping[str, _Kind],
    generator: np.random.Generator,
    count: int,
    place: str,
) -> FloatArray:
    """[count] values of the distribution under `key`."""
    chosen = description.get(key)
    if not isinstance(chosen, dict) or chosen.get("kind") not in kinds:
        raise LabError(f"{place}: {key} needs a kind", f"give one of {', '.join(kinds)}")
    kind, place = kinds[chosen["kind"]], f"{place}, {key}"
    _refuse_unknown(chosen, ("kind", *kind.least), place)
    for name, least in kind.least.items():
        value = chosen.get(name)
        if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= 1e9:
            raise LabError(f"{place}: {name} is {value!r}", f"give a number from {least:g} on")
    if chosen.get("swing", 0) > 1 or chosen.get("least", 0) > chosen.get("most", np.inf):
        raise LabError(f"{place}: its figures contradict each other")
    return kind.draw(generator, count, chosen)


def _refuse_unknown(description: Mapping[str, Any], known: tuple[str, ...], place: str) -> None:
    unknown = sorted(set(description) - set(known))
    if unknown:
        raise LabError(f"{place}: unknown key {unknown[0]!r}", f"known are {', '.join(known)}")


def _poisson(generator: np.random.Generator, count: int, p: Mapping[str, float]) -> FloatArray:
    return generator.exponential(1 / p["rate"], count)


def _gamma(generator: np.random.Generator, count: int, p: Mapping[str, float]) -> FloatArray:
    shape = 1 / p["cv"] ** 2
    return generator.gamma(shape, 1 / (p["rate"] * shape), count)


def _on_off(generator: np.random.Generator, count: int, p: Mapping[str, float]) -> FloatArray:
    """Arrivals in the time that is on, and the pauses put between them."""
    on_time = np.cumsum(_poisson(generator, count, p))
    num_periods = int(on_time[-1] / p["on_s"] * 2) + 16
    ends = np.cumsum(generator.exponential(p["on_s"], num_periods))
    pauses = np.cumsum(generator.exponential(p["off_s"], num_periods))
    num_pauses = np.searchsorted(ends, on_time)
    times = on_time + np.where(num_pauses > 0, pauses[np.minimum(num_pauses, num_periods) - 1], 0.0)
    return np.diff(times, prepend=0.0)


def _diurnal(generator: np.random.Generator, count: int, p: Mapping[str, float]) -> FloatArray:
    """Candidates at the highest rate, thinned to the rate of their time (Lewis and Shedler 1979)."""
    highest, kept, now = p["rate"] * (1 + p["swing"]), [np.empty(0)], 0.0
    while sum(map(len, kept)) < count:
        times = now + np.cumsum(generator.exponential(1 / highest, count))
        rate = p["rate"] * (1 + p["swing"] * np.sin(2 * np.pi * times / p["period_s"]))
        kept.append(times[generator.random(count) * highest < rate])
        now = float(times[-1])
    return np.diff(np.concatenate(kept)[:count], prepend=0.0)


def _fixed(generator: np.random.Generator, count: int, p: Mapping[str, float]) -> FloatArray:
    return np.full(count, np.floor(p["tokens"]))


def _uniform(generator: np.random.Generator, count: int, p: Mapping[str, float]) -> FloatArray:
    return np.floor(generator.uniform(p["least"], p["most"] + 1, count))


def _lognormal(generator: np.random.Generator, count: int, p: Mapping[str, float]) -> FloatArray:
    return np.clip(np.rint(p["median"] * generator.lognormal(0.0, p["sigma"], count)), 1, p["most"])


def _pareto(generator: np.random.Generator, count: int, p: Mapping[str, float]) -> FloatArray:
    return np.clip(np.rint(p["least"] * (1 + generator.pareto(p["alpha"], count))), 1, p["most"])


_ARRIVALS = {
    "poisson": _Kind(least={"rate": 1e-6}, draw=_poisson),
    "gamma": _Kind(least={"rate": 1e-6, "cv": 0.01}, draw=_gamma),
    "on_off": _Kind(least={"rate": 1e-6, "on_s": 1e-3, "off_s": 1e-3}, draw=_on_off),
    "diurnal": _Kind(least={"rate": 1e-6, "swing": 0, "period_s": 1e-3}, draw=_diurnal),
}
_LENGTHS = {
    "fixed": _Kind(least={"tokens": 1}, draw=_fixed),
    "uniform": _Kind(least={"least": 1, "most": 1}, draw=_uniform),
    "lognormal": _Kind(least={"median": 1, "sigma": 0, "most": 1}, draw=_lognormal),
    "pareto": _Kind(least={"least": 1, "alpha": 0.1, "most": 1}, draw=_pareto),
}
