"""What the commands of golden scenarios print; see `scenarios.py`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import groupby

import numpy as np

from scheduler_service.core.executor_plan import EvictMode, ExecutorPlan, Reason
from scheduler_service.core.explain import explain_executor
from scheduler_service.core.placement import Placement, place
from scheduler_service.core.plan import plan_executor
from scheduler_service.core.state import NOBODY_NAMED, ExecutorState, RequestStatus
from scheduler_service.core.validate import validate
from scheduler_service.core.verify import verify
from support.arithmetic_executor import ArithmeticExecutor
from support.scenarios import Scenario
from support.states import cluster_of


def render(scenario: Scenario) -> str:
    """The file as it should be: the preamble as it is, and each command with what it prints now."""
    validate(cluster_of(*scenario.executors))
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


def _place(scenario: Scenario) -> Iterator[str]:
    requests, cluster = scenario.without_executor, cluster_of(*scenario.executors)
    nothing_cached = np.zeros((len(requests), len(scenario.executors)), dtype=np.int64)
    for placement in Placement:
        placed = place(cluster, requests, nothing_cached, placement, seed=0, excluded=frozenset())
        where = (
            f"{one.id} on {one.executor_id}" if one.reason is None else f"{one.id} {one.reason.name}" for one in placed
        )
        yield f"{placement.name:<22} {', '.join(where)}"


_COMMANDS: dict[str, Callable[[Scenario], Iterator[str]]] = {
    "plan": _plan,
    "explain": _explain,
    "run": _run,
    "place": _place,
}
