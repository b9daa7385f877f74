"""Golden scenarios: a state that a person can read, commands, and what they print.

    # Why this scenario exists, in a sentence or two.

    executor num_blocks=4 max_num_batched_tokens=64
    policy eviction=RECOMPUTE

    id  status   arrival  prompt  output  computed  blocks
    1   RUNNING  0        30      3       32        2

    > plan
    evict      2 RECOMPUTE (EVICTED_OUT_OF_BLOCKS)

`executor` takes sizes (block_size 16, 8 places, a budget of 64 tokens and a model length of 256 unless said), `policy`
takes settings of policy.proto, `latency` figures of a latency model, `tenant` the weight and service of one, from 0,
`prefix` the free blocks of a cached prefix, from 1, and which one it continues, if any; the table has the columns that
matter, by the names in `COLUMNS`; arrival and deadline are milliseconds, now being 1000.
Commands: `plan`, `explain`, and `run`, which plays the state to its end on the arithmetic executor, 10 ms an iteration,
and prints a line an iteration (`scenario_commands.py`). For `place`, which says which executor each request goes to,
there are several: `executor` and a name, and a column `on` with the name of each request's, `-` if it has none yet.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any

from scheduler_service.convert import POLICY_ENUMS
from scheduler_service.core.policy import Policy
from scheduler_service.core.state import (
    ExecutorState,
    LatencyModel,
    Requests,
    RequestStatus,
    Tenant,
    Tenants,
)
from support.states import Row, executor_of, requests_of

COLUMNS = {
    "id": "id",
    "arrival": "arrival_time_us",
    "prompt": "num_prompt_tokens",
    "output": "num_output_tokens",
    "computed": "num_computed_tokens",
    "max": "max_output_tokens",
    "drafts": "num_draft_tokens",
    "blocks": "num_blocks",
    "shared": "num_shared_blocks",
    "preemptions": "num_preemptions",
    "last_run": "last_run_iteration",
    "priority": "priority",
    "tenant": "tenant",
    "expected": "expected_output_tokens",
    "deadline": "deadline_us",
    "overtaken": "times_overtaken",
    "next_hash": "next_block_hash",
    "prefix": "cached_prefix",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """A parsed file: its text up to the first command, and its commands."""

    preamble: str
    executors: tuple[ExecutorState, ...]
    without_executor: Requests
    policy: Policy
    commands: tuple[str, ...]

    @property
    def state(self) -> ExecutorState:
        (executor,) = self.executors
        return executor


def parse(text: str) -> Scenario:
    """Read a scenario. Raises ValueError or KeyError for what makes no sense."""
    preamble, *rest = text.split("\n> ")
    sizes: dict[str, dict[str, int]] = {}
    settings: dict[str, Any] = {}
    latency: dict[str, float] = {}
    tenants: list[Tenant] = []
    prefixes: list[tuple[int, int]] = []
    names: list[str] = []
    rows: dict[str, list[Row]] = defaultdict(list)
    for line in preamble.splitlines():
        words = line.split()
        if not words or words[0] == "#":
            continue
        if words[0] == "executor":
            named = len(words) > 1 and "=" not in words[1]
            of = sizes.setdefault(words[1] if named else _ONLY, {})
            of |= {name: int(value) for name, value in _settings(words[1 + named :])}
        elif words[0] == "policy":
            settings |= {name: _setting(name, value) for name, value in _settings(words[1:])}
        elif words[0] == "latency":
            latency |= {name: float(value) for name, value in _settings(words[1:])}
        elif words[0] == "tenant":
            figures = {name: float(value) for name, value in _settings(words[1:])}
            tenants.append(Tenant(name=f"tenant-{len(tenants)}", **figures))
        elif words[0] == "prefix":
            numbers = {name: int(value) for name, value in _settings(words[1:])}
            prefixes.append((numbers.get("continues", 0), numbers["free_blocks"]))
        elif not names:
            names = words
        else:
            row = dict(zip(names, words, strict=True))
            rows[row.pop("on", _ONLY)].append(_row(row))
    model = LatencyModel(**latency) if latency else None
    common = {"max_model_len": 256, "latency": model, "tenants": Tenants.of(*tenants), "prefixes": prefixes}
    executors = tuple(
        executor_of(*rows[name], executor_id=name, **common, **figures)
        for name, figures in (sizes or {_ONLY: {}}).items()
    )
    return Scenario(
        preamble=preamble,
        executors=executors,
        without_executor=requests_of(*rows["-"]),
        policy=Policy(**settings),
        commands=tuple(command.splitlines()[0] for command in rest),
    )


_ONLY = "executor-0"


def _settings(words: list[str]) -> Iterator[tuple[str, str]]:
    for word in words:
        name, value = word.split("=")
        yield name, value


def _setting(name: str, value: str) -> Any:
    if name in POLICY_ENUMS:
        return POLICY_ENUMS[name][value]
    kind = {field.name: field.type for field in fields(Policy)}[name]
    if kind == "bool":
        return value == "true"
    return float(value) if kind == "float" else int(value)


def _row(words: dict[str, str]) -> dict[str, int]:
    status = RequestStatus[words.pop("status")]
    scale = {"arrival": 1000, "deadline": 1000}
    return {"status": status, **{COLUMNS[name]: int(word) * scale.get(name, 1) for name, word in words.items()}}
