"""The books of an executor that computes nothing: it carries plans out in integers, to play scenarios to their end."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from metronome.scheduler.v1 import plan_pb2, state_pb2
from metronome_conformance.rows import COLUMNS, RUNNING, SWAPPED, WAITING, Row

START_US = 1_000_000
PASS_US = 10_000


@dataclass(slots=True)
class Books:
    """Requests by id, and what happened to them. `limits`: as the contract has them."""

    limits: state_pb2.ExecutorLimits
    rows: dict[int, Row]
    iteration: int = 1
    finished: list[int] = field(default_factory=list)
    rejected: dict[int, int] = field(default_factory=dict)
    num_evictions: dict[int, int] = field(default_factory=dict)
    tokens: list[dict[int, int]] = field(default_factory=list)  # of each pass, by request

    def state(self) -> state_pb2.ClusterState:
        """What the scheduler is sent."""
        table = state_pb2.RequestTable()
        for name in COLUMNS:
            getattr(table, name).extend(getattr(row, name) for row in self.rows.values())
        executor = state_pb2.ExecutorState(
            executor_id="conformance",
            iteration=self.iteration,
            limits=self.limits,
            num_free_blocks=self.limits.num_blocks - self._held(RUNNING),
            num_free_swap_blocks=self.limits.num_swap_blocks - self._held(SWAPPED),
            requests=table,
        )
        return state_pb2.ClusterState(now_us=START_US + self.iteration * PASS_US, executors=[executor])

    def apply(self, plan: plan_pb2.ExecutorPlan) -> None:
        """Carry out a plan that keeps the contract."""
        for id, reason in zip(plan.reject.id, plan.reject.reason, strict=True):
            self.rejected[id] = reason
            del self.rows[id]
        self._count_overtaken(set(plan.admit.id))
        for id, mode in zip(plan.evict.id, plan.evict.mode, strict=True):
            self._evict(id, mode)
        for id in (*plan.admit.id, *plan.resume.id):
            self.rows[id] = replace(self.rows[id], status=RUNNING)
        self.tokens.append(dict(zip(plan.scheduled.id, plan.scheduled.num_tokens, strict=True)))
        for id, num_tokens in self.tokens[-1].items():
            self._run(id, num_tokens)
        self.iteration += 1

    def _held(self, status: int) -> int:
        return sum(row.num_blocks for row in self.rows.values() if row.status == status)

    def _count_overtaken(self, admitted: set[int]) -> None:
        orders = [self.rows[id].order for id in admitted]
        for id, row in self.rows.items():
            if row.status == WAITING and id not in admitted:
                times = sum(order > row.order for order in orders)
                self.rows[id] = replace(row, times_overtaken=row.times_overtaken + times)

    def _evict(self, id: int, mode: int) -> None:
        row = replace(self.rows[id], num_preemptions=self.rows[id].num_preemptions + 1)
        if mode == plan_pb2.EVICT_MODE_SWAP:
            self.rows[id] = replace(row, status=SWAPPED)
        else:
            self.rows[id] = replace(row, status=WAITING, num_computed_tokens=0, num_blocks=0)
        self.num_evictions[id] = row.num_preemptions

    def _run(self, id: int, num_tokens: int) -> None:
        row = self.rows[id]
        computed = row.num_computed_tokens + num_tokens
        num_output = row.num_output_tokens + (computed == row.num_tokens)
        self.rows[id] = replace(
            row,
            num_computed_tokens=computed,
            num_output_tokens=num_output,
            num_blocks=max(-(-computed // self.limits.block_size), row.num_blocks),
            last_run_iteration=self.iteration,
        )
        if num_output >= row.max_output_tokens > 0:
            self.finished.append(id)
            del self.rows[id]


def row_from(content: Mapping[str, Any]) -> Row:
    """A row as a scenario gives it: columns by name, 0 where left out; `status` without its prefix, else WAITING.

    Without a time of arrival it is its id.
    """
    values = dict.fromkeys(COLUMNS, 0) | dict(content)
    values["status"] = state_pb2.RequestStatus.Value(f"REQUEST_STATUS_{content.get('status', 'WAITING')}")
    values["arrival_time_us"] = content.get("arrival_time_us", values["id"])
    return Row(**values)
