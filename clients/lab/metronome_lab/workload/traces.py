"""Published traces, read: CSV in one schema, and the JSON lines of Mooncake.

    request_id, arrival_s, prompt_tokens, output_tokens, tenant, prefix_hashes      a CSV; the last two may be left out

`arrival_s` is in seconds from the first request; `prefix_hashes` are ids of 512-token blocks of the prompt, each for
the block and all before it, with blanks between them. A line of Mooncake's has `timestamp` (ms), `input_length`,
`output_length` and `hash_ids`, which mean the same.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from metronome_lab.errors import LabError
from metronome_lab.workload.generate import read_generated
from metronome_lab.workload.requests import PREFIX_BLOCK_TOKENS, TokenArray, Workload

_REQUIRED = ("arrival_s", "prompt_tokens", "output_tokens")


def read_workload(path: Path, seed: int = 0) -> Workload:
    """Read a trace (.csv, .jsonl) or draw what a description asks for (.toml). Raises LabError."""
    try:
        match path.suffix:
            case ".csv":
                return read_csv(path)
            case ".jsonl":
                return read_mooncake(path)
            case ".toml":
                return read_generated(path, seed)
    except OSError as error:
        raise LabError(f"cannot read {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise LabError(f"{path} is not UTF-8 text") from None
    raise LabError(f"{path} is no trace", "give a .csv, a .jsonl of Mooncake, or a .toml that describes requests")


def read_csv(path: Path) -> Workload:
    """Raises LabError with the line at fault."""
    with path.open(encoding="utf-8", newline="") as file:
        rows = csv.DictReader(file)
        missing = [name for name in _REQUIRED if name not in (rows.fieldnames or ())]
        if missing:
            raise LabError(f"{path} has no column {missing[0]}", f"its header must name {', '.join(_REQUIRED)}")
        found = _Found()
        try:
            for row in rows:
                found.add_csv_row(row, f"{path}, line {rows.line_num}")
        except csv.Error as error:
            raise LabError(f"{path}, line {rows.line_num}: {error}") from None
    return found.workload(path.stem)


def read_mooncake(path: Path) -> Workload:
    """Raises LabError with the line at fault."""
    found = _Found()
    with path.open(encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            if line.strip():
                found.add_mooncake_row(line, f"{path}, line {number}", f"r{number}")
    return found.workload(path.stem)


@dataclass(slots=True)
class _Found:
    """What has been read so far."""

    ids: list[str] = field(default_factory=list)
    arrival_us: list[int] = field(default_factory=list)
    num_prompt_tokens: list[int] = field(default_factory=list)
    num_output_tokens: list[int] = field(default_factory=list)
    tenant: list[int] = field(default_factory=list)
    tenants: dict[str, int] = field(default_factory=dict)
    prefixes: list[TokenArray] = field(default_factory=list)
    has_prefixes: bool = False

    def add_csv_row(self, row: Mapping[str, Any], place: str) -> None:
        if None in row or None in row.values():
            raise LabError(f"{place}: not as many fields as the header has")
        hashes = (row.get("prefix_hashes") or "").split()
        self._add(
            place,
            id=row.get("request_id") or str(len(self.ids) + 1),
            arrival_us=_number(row["arrival_s"], "arrival_s", place) * 1e6,
            num_prompt_tokens=_whole(row["prompt_tokens"], "prompt_tokens", place),
            num_output_tokens=_whole(row["output_tokens"], "output_tokens", place),
            tenant=row.get("tenant") or "",
            hashes=[_whole(number, "prefix_hashes", place) for number in hashes],
        )

    def add_mooncake_row(self, line: str, place: str, id: str) -> None:
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise LabError(f"{place}: no JSON: {error}") from None
        if not isinstance(row, dict) or not {"timestamp", "input_length", "output_length"} <= row.keys():
            raise LabError(f"{place}: needs timestamp, input_length and output_length")
        hashes = row.get("hash_ids", [])
        if not isinstance(hashes, list):
            raise LabError(f"{place}: hash_ids is no list")
        self._add(
            place,
            id=id,
            arrival_us=_number(row["timestamp"], "timestamp", place) * 1e3,
            num_prompt_tokens=_whole(row["input_length"], "input_length", place),
            num_output_tokens=_whole(row["output_length"], "output_length", place),
            tenant="",
            hashes=[_whole(number, "hash_ids", place) for number in hashes],
        )

    def workload(self, name: str) -> Workload:
        return Workload.of(
            name=name,
            ids=self.ids,
            arrival_us=np.array(self.arrival_us, dtype=np.int64),
            num_prompt_tokens=np.array(self.num_prompt_tokens, dtype=np.int64),
            num_output_tokens=np.array(self.num_output_tokens, dtype=np.int64),
            tenant=np.array(self.tenant, dtype=np.int64),
            tenants=tuple(self.tenants) or ("",),
            prefixes=self.prefixes if self.has_prefixes else (),
        )

    def _add(
        self,
        place: str,
        *,
        id: str,
        arrival_us: float,
        num_prompt_tokens: int,
        num_output_tokens: int,
        tenant: str,
        hashes: list[int],
    ) -> None:
        if not 0 <= arrival_us < 2**53:
            raise LabError(f"{place}: an arrival at {arrival_us / 1e6:g} s is out of range")
        if num_prompt_tokens < 1 or num_output_tokens < 1:
            raise LabError(f"{place}: a prompt and an answer have at least one token")
        if len(hashes) > -(-num_prompt_tokens // PREFIX_BLOCK_TOKENS):
            raise LabError(
                f"{place}: {len(hashes)} blocks of {PREFIX_BLOCK_TOKENS} tokens are more than the prompt has"
            )
        if any(not 0 <= number < 2**31 for number in hashes):
            raise LabError(f"{place}: a block id is out of range")
        self.ids.append(id)
        self.arrival_us.append(round(arrival_us))
        self.num_prompt_tokens.append(num_prompt_tokens)
        self.num_output_tokens.append(num_output_tokens)
        self.tenant.append(self.tenants.setdefault(tenant, len(self.tenants)))
        self.prefixes.append(np.array(hashes, dtype=np.int32))
        self.has_prefixes |= bool(hashes)


def _number(value: Any, name: str, place: str) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        raise LabError(f"{place}: {name} is {value!r}, and no number") from None


def _whole(value: Any, name: str, place: str) -> int:
    try:
        number = int(value)
    except (TypeError, ValueError, OverflowError):
        raise LabError(f"{place}: {name} is {value!r}, and no whole number") from None
    if isinstance(value, float) and value != number:
        raise LabError(f"{place}: {name} is {value!r}, and no whole number")
    return number
