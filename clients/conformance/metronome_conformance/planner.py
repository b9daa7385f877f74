"""The scheduler that the kit plays to an executor: first come, first served, with faults and evictions on demand.

Orders, as a scenario's `planner` step gives them:
    mode: serve | hold | silent     plan; plan, but admit nobody; refuse every call with UNAVAILABLE
    evict: {after_tokens: 3, mode: SWAP}    evict the first in order that has so many output tokens, once
    bend: NAME, times: n            spoil the next n plans that run somebody: see `BENDS`
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import grpc

from metronome.scheduler.v1 import plan_pb2, scheduler_pb2, scheduler_pb2_grpc, state_pb2
from metronome_conformance.rows import LOADING, RUNNING, SWAPPED, WAITING, Row, rows_of
from metronome_conformance.wire import MAX_MESSAGE_BYTES

CHUNK_SIZE = 512
STRANGER = 2**50
_OPTIONS = (("grpc.so_reuseport", 0), ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES))


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """A state that an executor sent, and what it was answered. `plan`: None where the answer was no honest plan."""

    state: state_pb2.ExecutorState
    plan: plan_pb2.ExecutorPlan | None


class Planner(scheduler_pb2_grpc.SchedulerServiceServicer):
    """Answers from the state alone, and keeps what it was asked."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._mode = "serve"
        self._evict: Mapping[str, Any] | None = None
        self._bend: Callable[[scheduler_pb2.PlanResponse], None] | None = None
        self._times = 0
        self.num_bent = 0
        self.planned: list[Planned] = []
        self.faults: list[str] = []  # of requests that are no state of one executor

    def order(self, orders: Mapping[str, Any]) -> None:
        """Do as a step says from the next call on."""
        with self._lock:
            self._mode = orders.get("mode", "serve")
            self._evict = orders.get("evict")
            self._bend = BENDS[orders["bend"]] if "bend" in orders else None
            self._times, self.num_bent = orders.get("times", 1), 0

    def forget(self) -> None:
        """Begin a scenario: honest, and nothing planned yet."""
        self.order({})
        with self._lock:
            self.planned, self.faults = [], []

    def Plan(  # noqa: N802  # the contract's name
        self, request: scheduler_pb2.PlanRequest, context: grpc.ServicerContext
    ) -> scheduler_pb2.PlanResponse:
        """Plan the one executor that asks."""
        with self._lock:
            if len(request.state.executors) != 1 or request.state.now_us <= 0:
                self.faults.append(f"it asked with {len(request.state.executors)} executors at {request.state.now_us}")
                context.abort(grpc.StatusCode.INVALID_ARGUMENT, "a state of one executor and a clock is needed")
            state = request.state.executors[0]
            if self._mode == "silent":
                self.planned.append(Planned(state=state, plan=None))
                context.abort(grpc.StatusCode.UNAVAILABLE, "this scheduler plays absent")
            try:
                plan = self._plan(state)
            except ValueError as error:
                self.faults.append(str(error))
                context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
            response = scheduler_pb2.PlanResponse(plans=[plan])
            if self._bend is not None and self._times > 0 and plan.scheduled.id:
                self._bend(response)
                self._times -= 1
                self.num_bent += 1
                self.planned.append(Planned(state=state, plan=None))
            else:
                self.planned.append(Planned(state=state, plan=plan))
            return response

    def _plan(self, state: state_pb2.ExecutorState) -> plan_pb2.ExecutorPlan:
        plan, rows = _Plan(state), sorted(rows_of(state.requests).values(), key=lambda row: row.order)
        running = [row for row in rows if row.status == RUNNING]
        victim = self._victim(running)
        if victim is not None and self._evict is not None:
            plan.evict(victim, plan_pb2.EvictMode.Value(f"EVICT_MODE_{self._evict['mode']}"))
            self._evict = None
            running.remove(victim)
        plan.run(running)
        if victim is None and not plan.ran_out:
            plan.num_seqs += sum(row.status == LOADING for row in rows)
            plan.enter([row for row in rows if row.status == SWAPPED])
            returning = [row for row in rows if row.status == WAITING and row.num_preemptions]
            plan.enter(returning)
            if self._mode == "serve":
                plan.enter([row for row in rows if row.status == WAITING and not row.num_preemptions])
        return plan.message

    def _victim(self, running: list[Row]) -> Row | None:
        if self._evict is None or len(running) < 2:
            return None
        least = self._evict["after_tokens"]
        return next((row for row in running if row.num_output_tokens >= least and row.in_decode), None)


class _Plan:
    """A plan as it grows, and what is left."""

    def __init__(self, state: state_pb2.ExecutorState) -> None:
        self.message = plan_pb2.ExecutorPlan(executor_id=state.executor_id, iteration=state.iteration)
        self.ran_out = False
        self.num_seqs = 0
        self._limits = state.limits
        self._free, self._free_swap = state.num_free_blocks, state.num_free_swap_blocks
        self._budget = state.limits.max_num_batched_tokens
        self._stopped = False

    def run(self, running: list[Row]) -> None:
        """Each its next token or chunk; where blocks run out, those that came last make room by recompute."""
        left = list(running)
        while left:
            row = left.pop(0)
            num_tokens = min(row.most_tokens(CHUNK_SIZE), self._budget)
            while left and row.blocks_for(num_tokens, self._limits.block_size) > self._free:
                self.ran_out = True
                self.evict(left.pop(), plan_pb2.EVICT_MODE_RECOMPUTE)
            needed = row.blocks_for(num_tokens, self._limits.block_size)
            self.num_seqs += 1
            if num_tokens > 0 and needed <= self._free:
                self._schedule(row, num_tokens, needed)

    def evict(self, row: Row, mode: int) -> None:
        """By recompute where there is no room in swap space."""
        if mode == plan_pb2.EVICT_MODE_SWAP and row.num_blocks > self._free_swap:
            mode = plan_pb2.EVICT_MODE_RECOMPUTE
        self.message.evict.id.append(row.id)
        self.message.evict.mode.append(mode)  # type: ignore[arg-type]
        self.message.evict.reason.append(plan_pb2.REASON_EVICTED_OUT_OF_BLOCKS)
        self._free += row.num_blocks - row.num_shared_blocks

    def enter(self, queue: list[Row]) -> None:
        """In order, up to the first for whose prompt and next block there is no room."""
        for row in queue:
            needed = row.blocks_for(row.num_lacking, self._limits.block_size)
            no_room = needed + self.num_seqs > self._free or self.num_seqs >= self._limits.max_num_seqs
            if self._stopped or no_room or self._budget <= 0:
                self._stopped = True
                return
            table = self.message.resume if row.status == SWAPPED else self.message.admit
            table.id.append(row.id)
            table.reason.append(plan_pb2.REASON_RESUMED if row.status == SWAPPED else plan_pb2.REASON_ADMITTED)
            self.num_seqs += 1
            self._schedule(row, min(row.most_tokens(CHUNK_SIZE), self._budget), needed)

    def _schedule(self, row: Row, num_tokens: int, needed: int) -> None:
        self.message.scheduled.id.append(row.id)
        self.message.scheduled.num_tokens.append(num_tokens)
        reason = plan_pb2.REASON_DECODE if row.in_decode else plan_pb2.REASON_PREFILL
        self.message.scheduled.reason.append(reason)
        self._budget -= num_tokens
        self._free -= needed


def _stale(answer: scheduler_pb2.PlanResponse) -> None:
    answer.plans[0].iteration -= 1


def _another_executor(answer: scheduler_pb2.PlanResponse) -> None:
    answer.plans[0].executor_id += "-another"


def _no_plan(answer: scheduler_pb2.PlanResponse) -> None:
    answer.ClearField("plans")


def _stranger(answer: scheduler_pb2.PlanResponse) -> None:
    answer.plans[0].scheduled.id.append(STRANGER)
    answer.plans[0].scheduled.num_tokens.append(1)
    answer.plans[0].scheduled.reason.append(plan_pb2.REASON_DECODE)


def _over_budget(answer: scheduler_pb2.PlanResponse) -> None:
    table = answer.plans[0].scheduled
    table.num_tokens[:] = [1_000_000] * len(table.num_tokens)


def _unequal_columns(answer: scheduler_pb2.PlanResponse) -> None:
    answer.plans[0].scheduled.num_tokens.append(1)


def _twice(answer: scheduler_pb2.PlanResponse) -> None:
    table = answer.plans[0].scheduled
    table.MergeFrom(plan_pb2.ScheduledTable.FromString(table.SerializeToString()))


def _evict_a_stranger(answer: scheduler_pb2.PlanResponse) -> None:
    answer.plans[0].evict.id.append(STRANGER)
    answer.plans[0].evict.mode.append(plan_pb2.EVICT_MODE_RECOMPUTE)
    answer.plans[0].evict.reason.append(plan_pb2.REASON_EVICTED_OUT_OF_BLOCKS)


def _reject(answer: scheduler_pb2.PlanResponse) -> None:
    """Turn away who would be admitted."""
    plan = answer.plans[0]
    ids = list(plan.admit.id)
    for name, value in (("needed", 5), ("available", 4), ("estimated_wait_us", 2_000_000)):
        getattr(plan.reject, name).extend([value] * len(ids))
    plan.reject.id.extend(ids)
    plan.reject.reason.extend([plan_pb2.REASON_REJECTED_QUEUE_FULL] * len(ids))
    kept = [i for i, id in enumerate(plan.scheduled.id) if id not in ids]
    columns = {name: [getattr(plan.scheduled, name)[i] for i in kept] for name in ("id", "num_tokens", "reason")}
    plan.ClearField("admit")
    plan.scheduled.CopyFrom(plan_pb2.ScheduledTable(**columns))


BENDS: Mapping[str, Callable[[scheduler_pb2.PlanResponse], None]] = {
    "stale": _stale,
    "another_executor": _another_executor,
    "no_plan": _no_plan,
    "stranger": _stranger,
    "over_budget": _over_budget,
    "unequal_columns": _unequal_columns,
    "twice": _twice,
    "evict_a_stranger": _evict_a_stranger,
    "reject": _reject,
}


class ServedPlanner:
    """A planner that listens. Raises OSError where it cannot listen there."""

    def __init__(self, address: str) -> None:
        self.planner = Planner()  # type: ignore[abstract]  # what is not here is UNIMPLEMENTED
        self._server = grpc.server(ThreadPoolExecutor(4), options=_OPTIONS)
        scheduler_pb2_grpc.add_SchedulerServiceServicer_to_server(self.planner, self._server)
        try:
            port = self._server.add_insecure_port(address)
        except RuntimeError as error:
            raise OSError(f"cannot listen on {address}") from error
        self.address = f"{address.rpartition(':')[0]}:{port}"
        self._server.start()

    def close(self) -> None:
        """Stop at once."""
        self._server.stop(None).wait()
