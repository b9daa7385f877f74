"""The books of an executor: a table of requests and blocks, told to a scheduler and moved by its plans.

For executors that share no blocks between requests and speculate on nothing. The books count; tokens, KV and the device
are the engine's. One pass is

    plan = ...                   for books.state(), found good by `plan_fault`
    work = books.begin(plan)     evicts, rejects, resumes, admits: what there is to copy and to compute
    ...                          the forward pass over work.chunks
    books.commit(work)           what was computed is there

All of it on one event loop.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Mapping
from dataclasses import dataclass

import grpc

from metronome.executor.v1 import executor_pb2
from metronome.scheduler.v1 import plan_pb2, state_pb2
from metronome_client.executing.request import Request, now_us, rejection
from metronome_client.serving import RefusalError
from metronome_client.tables import request_table

_WAITING = state_pb2.REQUEST_STATUS_WAITING
_RUNNING = state_pb2.REQUEST_STATUS_RUNNING
_SWAPPED = state_pb2.REQUEST_STATUS_SWAPPED
_RETRY_S = 1.0
_POLL_S = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What a plan gives an engine to do, in this order.

    `swap_out`, `swap_in`: whose KV to copy to swap space and back. `chunks`: whose tokens to compute from
    `num_computed_tokens` on, and how many.
    """

    swap_out: tuple[Request, ...]
    swap_in: tuple[Request, ...]
    chunks: tuple[tuple[Request, int], ...]


class Books:
    """Who is here, and what they hold. `limits`: sizes, as the scheduler is told them."""

    def __init__(self, executor_id: str, limits: state_pb2.ExecutorLimits) -> None:
        self.limits = limits
        self.draining = False
        self.counters = executor_pb2.Counters()
        self.planning_failure = ""
        self._executor_id, self._iteration = executor_id, 1
        self._requests: dict[int, Request] = {}
        self._ids, self._arrival = itertools.count(1), asyncio.Event()

    def add(self, request: Request) -> None:
        """Take a request into the queue. Raises RefusalError, and keeps nothing of it."""
        present = [row for row in self._requests.values() if not row.has_ended]
        if self.draining:
            code, message = grpc.StatusCode.UNAVAILABLE, "this executor drains"
            raise RefusalError(code, "DRAINING", message, retry_delay_s=_RETRY_S)
        if any(row.name == request.name for row in present):
            message = f"request {request.name!r} is here already"
            raise RefusalError(grpc.StatusCode.ALREADY_EXISTS, "DUPLICATE_REQUEST_ID", message, field="request_id")
        num_waiting = sum(row.status == _WAITING for row in present)
        if self.limits.HasField("max_num_waiting") and num_waiting >= self.limits.max_num_waiting:
            message, code = f"{num_waiting} requests wait, as many as may", grpc.StatusCode.RESOURCE_EXHAUSTED
            raise RefusalError(code, "QUEUE_FULL", message, retry_delay_s=_RETRY_S)
        request.id = next(self._ids)
        self._requests[request.id] = request
        self.counters.num_accepted += 1
        self._arrival.set()

    def leave(self, request: Request, left_s: float | None) -> None:
        """End a request whose call is over, if it has not ended by itself. `left_s`: until the call's deadline."""
        if request.has_ended:
            return
        has_expired = left_s is not None and left_s < 0.1
        self.counters.num_expired += has_expired
        self.counters.num_cancelled += not has_expired
        request.refuse(RefusalError(grpc.StatusCode.CANCELLED, "CANCELLED", "its client has left"))

    def cancel(self, name: str) -> None:
        """End a request by its client's name. Raises RefusalError where there is none."""
        for request in self._requests.values():
            if request.name == name and not request.has_ended:
                self.counters.num_cancelled += 1
                request.refuse(RefusalError(grpc.StatusCode.CANCELLED, "CANCELLED", "it was cancelled by its id"))
                return
        message = f"no request {name!r} is here"
        raise RefusalError(grpc.StatusCode.NOT_FOUND, "UNKNOWN_REQUEST_ID", message, field="request_id")

    async def somebody(self) -> None:
        """Let go of those that have ended, and wait until somebody is there."""
        ended = [row for row in self._requests.values() if row.has_ended]
        for row in ended:
            self.counters.num_finished += row.is_finished
            del self._requests[row.id]
        while not self._requests:
            self._arrival.clear()
            await self._arrival.wait()

    async def drained(self) -> None:
        """Take nothing new from now on, and wait until the last has ended."""
        self.draining = True
        while any(not row.has_ended for row in self._requests.values()):
            await asyncio.sleep(_POLL_S)

    def state(self) -> state_pb2.ExecutorState:
        """What the scheduler is told."""
        rows = list(self._requests.values())
        held = {status: sum(row.num_blocks for row in rows if row.status == status) for status in (_RUNNING, _SWAPPED)}
        table = request_table(
            id=[row.id for row in rows],
            status=[row.status for row in rows],
            arrival_time_us=[row.arrival_time_us for row in rows],
            priority=[row.wanted.priority for row in rows],
            num_prompt_tokens=[len(row.wanted.prompt) for row in rows],
            num_output_tokens=[len(row.output) for row in rows],
            num_computed_tokens=[row.num_computed_tokens for row in rows],
            max_output_tokens=[row.wanted.max_tokens for row in rows],
            expected_output_tokens=[row.wanted.expected_output_tokens for row in rows],
            deadline_us=[row.deadline_us for row in rows],
            num_blocks=[row.num_blocks for row in rows],
            num_preemptions=[row.num_preemptions for row in rows],
            last_run_iteration=[row.last_run_iteration for row in rows],
            times_overtaken=[row.times_overtaken for row in rows],
        )
        return state_pb2.ExecutorState(
            executor_id=self._executor_id,
            iteration=self._iteration,
            limits=self.limits,
            num_free_blocks=self.limits.num_blocks - held[_RUNNING],
            num_free_swap_blocks=self.limits.num_swap_blocks - held[_SWAPPED],
            requests=table,
            draining=self.draining,
        )

    def cluster(self) -> state_pb2.ClusterState:
        """The same, as a request to a scheduler has it: with the clock."""
        return state_pb2.ClusterState(now_us=now_us(), executors=[self.state()])

    def response(self) -> executor_pb2.GetStateResponse:
        """What `GetState` answers."""
        names = [executor_pb2.RequestName(id=row.id, request_id=row.name) for row in self._requests.values()]
        return executor_pb2.GetStateResponse(
            state=self.cluster(),
            request_names=names,
            counters=self.counters,
            planning_failure=self.planning_failure,
        )

    def begin(self, plan: plan_pb2.ExecutorPlan) -> Work:
        """Reject, evict, resume, admit, and hand out the blocks of the pass. `plan_fault` must have found nothing."""
        rows = self._requests
        for id, reason, wait_us in _columns(plan.reject, "id", "reason", "estimated_wait_us"):
            rows[id].refuse(rejection(_reason_name(reason), wait_us))
            self.counters.num_rejected += 1
        for row in rows.values():
            if row.status == _WAITING and row.id not in plan.admit.id:
                row.times_overtaken += sum(id > row.id for id in plan.admit.id)
        swap_out = tuple(rows[id] for id, mode in _columns(plan.evict, "id", "mode") if self._evict(rows[id], mode))
        for id in (*plan.resume.id, *plan.admit.id):
            rows[id].status = _RUNNING
            rows[id].first_run_us = rows[id].first_run_us or now_us()
        chunks = tuple((rows[id], num_tokens) for id, num_tokens in _columns(plan.scheduled, "id", "num_tokens"))
        for row, num_tokens in chunks:
            needed = -(-(row.num_computed_tokens + num_tokens) // self.limits.block_size)
            row.num_blocks = max(row.num_blocks, needed)
            row.last_run_iteration = self._iteration
        if chunks or plan.evict.id or plan.reject.id:
            self._iteration += 1
            self.counters.num_iterations += 1
        return Work(swap_out=swap_out, swap_in=tuple(rows[id] for id in plan.resume.id), chunks=chunks)

    def commit(self, work: Work) -> None:
        """The KV of all that there was to compute exists. Tokens of requests that are computed are due now."""
        for row, num_tokens in work.chunks:
            self.counters.num_prefill_tokens += 0 if row.output and num_tokens == 1 else num_tokens
            self.counters.num_output_tokens += row.num_computed_tokens + num_tokens == len(row.tokens)
            row.num_computed_tokens += num_tokens

    def _evict(self, row: Request, mode: int) -> bool:
        """Whether its KV goes to swap space."""
        row.num_preemptions += 1
        if mode == plan_pb2.EVICT_MODE_SWAP:
            row.status = _SWAPPED
            self.counters.num_evicted_swap += 1
            return True
        row.status, row.num_computed_tokens, row.num_blocks = _WAITING, 0, 0
        self.counters.num_evicted_recompute += 1
        return False


def _columns(table: object, *names: str) -> list[tuple[int, ...]]:
    """Rows of a table of a plan; a column that is left out is 0."""
    columns: Mapping[str, list[int]] = {name: list(getattr(table, name)) for name in names}
    num_rows = len(columns["id"])
    return list(zip(*(column or [0] * num_rows for column in columns.values()), strict=True))


def _reason_name(reason: int) -> str:
    known = plan_pb2.Reason.DESCRIPTOR.values_by_number.get(reason)
    return known.name.removeprefix("REASON_") if known is not None else str(reason)
