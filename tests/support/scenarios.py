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
and prints a line an iteration.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from itertools import groupby
from typing import Any

from scheduler_service.convert import POLICY_ENUMS
from scheduler_service.core.executor_plan import EvictMode, ExecutorPlan, Reason
from scheduler_service.core.explain import explain_executor
from scheduler_service.core.plan import plan_executor
from scheduler_service.core.policy import Policy
from scheduler_service.core.state import NOBODY_NAMED, ExecutorState, LatencyModel, RequestStatus, Tenant, Tenants
from scheduler_service.core.validate import validate
from scheduler_service.core.verify import verify
from support.arithmetic_executor import ArithmeticExecutor
from support.states import cluster_of, executor_of

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
    state: ExecutorState
    policy: Policy
    commands: tuple[str, ...]


def parse(text: str) -> Scenario:
    """Read a scenario. Raises ValueError or KeyError for what makes no sense."""
    preamble, *rest = text.split("\n> ")
    sizes: dict[str, Any] = {"max_model_len": 256}
    settings: dict[str, Any] = {}
    latency: dict[str, float] = {}
    tenants: list[Tenant] = []
    prefixes: list[tuple[int, int]] = []
    names: list[str] = []
    rows: list[dict[str, int]] = []
    for line in preamble.splitlines():
        words = line.split()
        if not words or words[0] == "#":
            continue
        if words[0] == "executor":
            sizes |= {name: int(value) for name, value in _settings(words[1:])}
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
            rows.append(_row(dict(zip(names, words, strict=True))))
    model = LatencyModel(**latency) if latency else None
    state = executor_of(*rows, **sizes, latency=model, tenants=Tenants.of(*tenants), prefixes=prefixes)
    commands = tuple(command.splitlines()[0] for command in rest)
    return Scenario(preamble=preamble, state=state, policy=Policy(**settings), commands=commands)


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


def render(scenario: Scenario) -> str:
    """The file as it should be: the preamble as it is, and each command with what it prints now."""
    validate(cluster_of(scenario.state))
    parts = [scenario.preamble.rstrip("\n")]
    parts += [f"> {command}\n" + "\n".join(_COMMANDS[command](scenario)) for command in scenario.commands]
    return "\n\n".join(parts) + "\n"


def _plan(scenario: Scenario) -> Iterator[str]:
    plan = plan_executor(scenario.state, scenario.policy)
    assert verify(scenario.state, plan, scenario.policy) == ()
    yield from _lists(plan)
    composition = plan.composition
    yield (
        f"pass       {composition.num_prefill_tokens} prefill tokens of {composition.num_prefill_requests},"
        f" {composition.num_decode_tokens} decode tokens of {composition.num_decode_requests}"
    )
    if plan.shortfall is not None:
        short = plan.shortfall
        yield f"shortfall  {short.id} {short.reason.name}: needs {short.needed}, {short.available} available"


def _lists(plan: ExecutorPlan) -> Iterator[str]:
    reject, evict = plan.reject, plan.evict
    for id, reason, needed, available in zip(
        *(column.tolist() for column in (reject.id, reject.reason, reject.needed, reject.available)), strict=True
    ):
        yield f"reject     {id} {Reason(reason).name}: needs {needed}, {available} available"
    for id, mode, reason in zip(evict.id.tolist(), evict.mode.tolist(), evict.reason.tolist(), strict=True):
        yield f"evict      {id} {EvictMode(mode).name} ({Reason(reason).name})"
    for name, table in (("resume", plan.resume), ("admit", plan.admit)):
        for id, reason in zip(table.id.tolist(), table.reason.tolist(), strict=True):
            yield f"{name:<10} {id} ({Reason(reason).name})"
    scheduled = plan.scheduled
    for id, num_tokens, reason in zip(
        scheduled.id.tolist(), scheduled.num_tokens.tolist(), scheduled.reason.tolist(), strict=True
    ):
        yield f"run        {id} {num_tokens} tokens ({Reason(reason).name})"
    if len(scheduled.id) == 0:
        yield "run        nobody"


def _explain(scenario: Scenario) -> Iterator[str]:
    explained = explain_executor(scenario.state, plan_executor(scenario.state, scenario.policy), scenario.policy)
    for id, reason, needed, available, behind in zip(
        *(getattr(explained, name).tolist() for name in explained.__slots__), strict=True
    ):
        figures = f", needs {needed}, {available} available" if needed else ""
        yield f"{id:<10} {Reason(reason).name}{figures}" + (f", behind {behind}" if behind else "")


def _run(scenario: Scenario) -> Iterator[str]:
    state = scenario.state
    tenants = state.tenants if len(state.tenants) > 0 else NOBODY_NAMED
    executor = ArithmeticExecutor(
        limits=state.limits,
        policy=scenario.policy,
        latency=state.latency,
        weights=tuple(tenant.weight for tenant in tenants),
        services=[tenant.service for tenant in tenants],
    )
    _load(executor, state)
    lines: list[str] = []
    while executor.requests:
        plan = executor.step()
        assert len(plan.scheduled.id) > 0 or not executor.requests, "an iteration ran nothing"
        lines.append(f"{_line(plan):<40}  free {executor.num_free_blocks}")
    yield from _numbered(lines)
    yield f"finished {' '.join(map(str, sorted(executor.finished)))}" + "".join(
        f", {id} evicted {times}x" for id, times in sorted(executor.num_evictions.items())
    )


def _numbered(lines: list[str]) -> Iterator[str]:
    """Each line with the iterations that it is true of, since most iterations are like the one before."""
    number = 1
    for line, like in groupby(lines):
        last = number + len(list(like)) - 1
        span = f"{number}" if last == number else f"{number}-{last}"
        yield f"{span:<8} {line}"
        number = last + 1


_KEPT = (
    "arrival_time_us",
    "num_preemptions",
    "priority",
    "tenant",
    "expected_output_tokens",
    "num_draft_tokens",
    "deadline_us",
    "times_overtaken",
)


def _load(executor: ArithmeticExecutor, state: ExecutorState) -> None:
    table = state.requests
    for row in range(len(table)):
        executor.submit(
            int(table.id[row]),
            prompt=int(table.num_prompt_tokens[row]),
            new=int(table.max_output_tokens[row]),
            status=RequestStatus(int(table.status[row])),
            num_output_tokens=int(table.num_output_tokens[row]),
            num_computed_tokens=int(table.num_computed_tokens[row]),
            num_blocks=int(table.num_blocks[row]),
            **{name: int(getattr(table, name)[row]) for name in _KEPT},
        )


def _line(plan: ExecutorPlan) -> str:
    words = [f"!{id}" for id in plan.reject.id]
    words += [
        f"-{id}{'s' if mode == EvictMode.SWAP else 'r'}"
        for id, mode in zip(plan.evict.id.tolist(), plan.evict.mode.tolist(), strict=True)
    ]
    entering = {*plan.admit.id.tolist(), *plan.resume.id.tolist()}
    words += [
        f"{'+' if id in entering else ''}{id}:{num_tokens}"
        for id, num_tokens in zip(plan.scheduled.id.tolist(), plan.scheduled.num_tokens.tolist(), strict=True)
    ]
    return " ".join(words)


_COMMANDS: dict[str, Callable[[Scenario], Iterator[str]]] = {"plan": _plan, "explain": _explain, "run": _run}
