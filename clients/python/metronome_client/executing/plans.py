"""What to do with a plan before it is trusted with memory, and what to run without one.

Written over the messages: a state as the executor sent it, and the plan that came back. An executor that shares blocks
between requests or speculates has more to check than is here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

from metronome.scheduler.v1 import plan_pb2, state_pb2

_WAITING = state_pb2.REQUEST_STATUS_WAITING
_RUNNING = state_pb2.REQUEST_STATUS_RUNNING
_SWAPPED = state_pb2.REQUEST_STATUS_SWAPPED
_COLUMNS = ("id", "status", "num_prompt_tokens", "num_output_tokens", "num_computed_tokens", "num_blocks")

_Row = Mapping[str, int]


def plan_fault(state: state_pb2.ExecutorState, plan: plan_pb2.ExecutorPlan) -> str | None:
    """Why a plan cannot be carried out, in a sentence; None: it can. Nothing of one that cannot is carried out."""
    return next(_faults(state, plan), None)


def _faults(state: state_pb2.ExecutorState, plan: plan_pb2.ExecutorPlan) -> Iterator[str]:
    if (plan.executor_id, plan.iteration) != (state.executor_id, state.iteration):
        yield f"it is for pass {plan.iteration} of {plan.executor_id!r}"
    scheduled, evict, reject = plan.scheduled, plan.evict, plan.reject
    if len(scheduled.id) != len(scheduled.num_tokens) or len(evict.id) != len(evict.mode):
        yield "its columns have unequal lengths"
        return
    rows, entering = _rows(state), {*plan.admit.id, *plan.resume.id}
    lists: tuple[tuple[list[int], tuple[int, ...]], ...] = (
        ([id for id in scheduled.id if id not in entering], (_RUNNING,)),
        (list(plan.admit.id), (_WAITING,)),
        (list(plan.resume.id), (_SWAPPED,)),
        (list(evict.id), (_RUNNING,)),
        (list(reject.id), (_WAITING, _SWAPPED)),
    )
    for id, times in Counter(id for ids, _ in lists for id in ids).items():
        if id not in rows or times > 1:
            yield f"request {id} is not here, or in more than one of its lists"
            return
    if any(rows[id]["status"] not in statuses for ids, statuses in lists for id in ids):
        yield "a request does not stand where a list takes it from"
    if Counter(scheduled.id) != Counter({*scheduled.id}) or not entering <= {*scheduled.id}:
        yield "a request is scheduled twice, or enters and does not run"
        return
    tokens = dict(zip(scheduled.id, scheduled.num_tokens, strict=True))
    if any(not 1 <= n <= _lacking(rows[id]) for id, n in tokens.items()):
        yield "a request runs more tokens than it lacks, or none"
        return
    if sum(tokens.values()) > state.limits.max_num_batched_tokens:
        yield f"{sum(tokens.values())} tokens are over the budget"
    num_running = sum(row["status"] == _RUNNING for row in rows.values())
    if num_running - len(evict.id) + len(entering) > state.limits.max_num_seqs:
        yield "too many requests would run"
    free = state.num_free_blocks + sum(rows[id]["num_blocks"] for id in evict.id)
    if sum(_new_blocks(rows[id], n, state) for id, n in tokens.items()) > free:
        yield f"it needs more than the {free} blocks that are free"
    swaps = [id for id, mode in zip(evict.id, evict.mode, strict=True) if mode == plan_pb2.EVICT_MODE_SWAP]
    if sum(rows[id]["num_blocks"] for id in swaps) > state.num_free_swap_blocks:
        yield f"it swaps more than the {state.num_free_swap_blocks} blocks that are free"
    if plan_pb2.EVICT_MODE_UNSPECIFIED in evict.mode:
        yield "an eviction does not say how"


def safe_plan(state: state_pb2.ExecutorState) -> plan_pb2.ExecutorPlan:
    """What to run where no scheduler answers: those that began go on as far as blocks reach, and nobody new starts.

    Where nobody can go on the last to arrive makes room. Requests are taken to stand in the order of arrival.
    """
    plan = plan_pb2.ExecutorPlan(executor_id=state.executor_id, iteration=state.iteration)
    free, budget = state.num_free_blocks, state.limits.max_num_batched_tokens
    rows = list(_rows(state).values())
    running = [row for row in rows if row["status"] == _RUNNING]
    first = running[0] if running else None
    while first is not None and len(running) > 1 and all(_new_blocks(row, 1, state) > free for row in running):
        victim = running.pop()
        plan.evict.id.append(victim["id"])
        plan.evict.mode.append(plan_pb2.EVICT_MODE_RECOMPUTE)
        free += victim["num_blocks"]
    num_running = len(running)
    for row in [*running, *(row for row in rows if row["status"] == _SWAPPED and not plan.evict.id)]:
        is_running = row["status"] == _RUNNING
        num_tokens = min(_lacking(row), budget)
        needed = _new_blocks(row, num_tokens, state)
        if num_tokens < 1 or needed > free or (not is_running and num_running >= state.limits.max_num_seqs):
            continue
        if not is_running:
            plan.resume.id.append(row["id"])
            num_running += 1
        plan.scheduled.id.append(row["id"])
        plan.scheduled.num_tokens.append(num_tokens)
        free, budget = free - needed, budget - num_tokens
    return plan


def _rows(state: state_pb2.ExecutorState) -> dict[int, _Row]:
    columns = [list(getattr(state.requests, name)) or [0] * len(state.requests.id) for name in _COLUMNS]
    return {values[0]: dict(zip(_COLUMNS, values, strict=True)) for values in zip(*columns, strict=True)}


def _lacking(row: _Row) -> int:
    return row["num_prompt_tokens"] + row["num_output_tokens"] - row["num_computed_tokens"]


def _new_blocks(row: _Row, num_tokens: int, state: state_pb2.ExecutorState) -> int:
    """Free blocks that computing so many tokens takes up."""
    needed = -(-(row["num_computed_tokens"] + num_tokens) // state.limits.block_size)
    held = row["num_blocks"] if row["status"] == _RUNNING else 0
    return max(needed, row["num_blocks"] if row["status"] == _SWAPPED else 0, held) - held
