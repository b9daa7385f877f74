"""Requests that no executor has yet, onto executors.

One ledger for all: what is placed counts before the next one is. Requests are placed in order of arrival, then id, and
only onto executors that do not drain, are not excluded, have room in their queue and can hold the request at all; one
that none can take has the reason of the executor that comes nearest.

- LEAST_LOADED: the least load. The load of an executor is one figure, the work on it over what it can do at a time:
  expected tokens to compute over its token budget, plus expected blocks over its blocks, plus requests over its places,
  each in thousandths, so that loads are whole numbers.
- CACHED_PREFIX: the least load once the request is there, of which a cached prefix saves its part.
- ROUND_ROBIN: in turn, beginning with the executor of least load; equal loads by id.
- POWER_OF_TWO_CHOICES: the less loaded of two that are drawn by the seed and the request's id (Mitzenmacher 2001).

Ties go to the executor with the least id. The order of requests and executors in the call does not matter.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from hashlib import blake2b
from typing import NamedTuple

import numpy as np

from scheduler_service.core.case import Case, case_of, is_on_device, num_tokens
from scheduler_service.core.compiled import entry
from scheduler_service.core.executor_plan import Reason
from scheduler_service.core.latency import estimated_wait_us
from scheduler_service.core.memory import blocks_for
from scheduler_service.core.policy import Policy
from scheduler_service.core.rows import nowhere, zeros
from scheduler_service.core.state import BoolArray, ClusterState, ExecutorLimits, ExecutorState, IntArray, Requests
from scheduler_service.core.work import expected_outputs_left, tokens_to_compute


class Placement(IntEnum):
    """How to choose, numbered as in scheduler.proto."""

    ROUND_ROBIN = 1
    LEAST_LOADED = 2
    CACHED_PREFIX = 3
    POWER_OF_TWO_CHOICES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """One request onto one executor; `executor_id` empty: none can take it, for that reason."""

    id: int
    executor_id: str = ""
    reason: Reason | None = None
    estimated_wait_us: int = 0


def place(
    cluster: ClusterState,
    requests: Requests,
    num_cached_tokens: IntArray,
    placement: Placement,
    seed: int,
    excluded: frozenset[str],
) -> tuple[Assignment, ...]:
    """An assignment for each request, in the order of the rows. `num_cached_tokens`: [num_requests, num_executors]."""
    executors = cluster.executors
    by_id = sorted(range(len(executors)), key=lambda index: executors[index].executor_id)
    ledger = _Ledger.of([executors[index] for index in by_id], excluded)
    fits = _Fits.of(ledger.executors, requests)
    cached = num_cached_tokens[:, by_id]
    assignments: list[Assignment] = [Assignment(id=int(id)) for id in requests.id]
    turn = int(np.argmin(ledger.load)) if len(executors) > 0 else 0
    for row in np.lexsort((requests.id, requests.arrival_time_us)).tolist():
        candidates = fits.ever[row] & ledger.open & ledger.has_place
        if not candidates.any():
            assignments[row] = Assignment(id=int(requests.id[row]), reason=_why(fits, ledger, row))
            continue
        added = fits.load(row, cached[row] if placement is Placement.CACHED_PREFIX else None)
        chosen = _choose(placement, candidates, ledger.load, added, turn, seed, int(requests.id[row]))
        turn = (chosen + 1) % len(executors)
        assignments[row] = Assignment(
            id=int(requests.id[row]),
            executor_id=ledger.executors[chosen].executor_id,
            estimated_wait_us=ledger.wait_of_next_us(chosen),
        )
        ledger.book(chosen, int(added[chosen]))
    return tuple(assignments)


def _choose(
    placement: Placement, candidates: BoolArray, load: IntArray, added: IntArray, turn: int, seed: int, request_id: int
) -> int:
    """Index of the executor; executors are in ascending order of id, so the first of equal ones is the least."""
    able = np.flatnonzero(candidates)
    if placement is Placement.ROUND_ROBIN:
        return int(able[np.searchsorted(able, turn) % len(able)])
    if placement is Placement.POWER_OF_TWO_CHOICES and len(able) > 2:
        able = np.sort(able[_two_of(len(able), seed, request_id)])
    with_it = load + added if placement is Placement.CACHED_PREFIX else load
    return int(able[with_it[able].argmin()])


def _two_of(count: int, seed: int, request_id: int) -> list[int]:
    """Two different numbers below `count`, by seed and request: the same on any machine."""
    drawn = blake2b(f"{seed}:{request_id}".encode(), digest_size=16).digest()
    first = int.from_bytes(drawn[:8], "little") % count
    second = int.from_bytes(drawn[8:], "little") % (count - 1)
    return [first, second + (second >= first)]


@dataclass(slots=True, kw_only=True)
class _Ledger:
    """What is on each executor, and what was placed there. `load`, `num_waiting`: [num_executors], counted on."""

    executors: Sequence[ExecutorState]
    open: BoolArray
    load: IntArray
    wait_us: IntArray
    num_on_device: IntArray
    num_waiting: IntArray
    most_waiting: IntArray

    @classmethod
    def of(cls, executors: Sequence[ExecutorState], excluded: frozenset[str]) -> _Ledger:
        closed = [executor.draining or executor.executor_id in excluded for executor in executors]
        loads = [load_of_each(_case(executor)) for executor in executors]
        num_on_device = [load.num_on_device for load in loads]
        waiting = [len(load.load) - load.num_on_device for load in loads]
        most = [_most_waiting(executor.limits, on) for executor, on in zip(executors, num_on_device, strict=True)]
        return cls(
            executors=executors,
            open=~np.array(closed, dtype=np.bool_),
            load=np.array([int(load.load.sum()) for load in loads], dtype=np.int64),
            wait_us=np.array([load.wait_us for load in loads], dtype=np.int64),
            num_on_device=np.array(num_on_device, dtype=np.int64),
            num_waiting=np.array(waiting, dtype=np.int64),
            most_waiting=np.array(most, dtype=np.int64),
        )

    @property
    def has_place(self) -> BoolArray:
        has_place: BoolArray = self.num_waiting < self.most_waiting
        return has_place

    def book(self, index: int, load: int) -> None:
        self.load[index] += load
        self.num_waiting[index] += 1

    def wait_of_next_us(self, index: int) -> int:
        """Until one that is placed there runs: none where there is a place in the running set."""
        is_full = self.num_on_device[index] + self.num_waiting[index] >= self.executors[index].limits.max_num_seqs
        return int(self.wait_us[index]) if is_full else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Fits:
    """The requests as each executor sees them. [num_requests, num_executors]

    `ever`: which it can hold at all; `loads`: what each adds to its load. `budgets`: tokens of a pass of each.
    """

    requests: Requests
    ever: BoolArray
    too_long: BoolArray
    loads: IntArray
    budgets: IntArray

    @classmethod
    def of(cls, executors: Sequence[ExecutorState], requests: Requests) -> _Fits:
        longest = requests.num_prompt_tokens + np.maximum(requests.max_output_tokens, 1)
        # Executors of one size see a request alike, and of sizes there are few.
        first_of = {executor.limits: executor for executor in reversed(executors)}
        kinds = {limits: kind for kind, limits in enumerate(first_of)}
        shape = (len(requests), len(kinds))
        in_blocks, in_model = np.zeros(shape, dtype=np.bool_), np.zeros(shape, dtype=np.bool_)
        loads = np.zeros(shape, dtype=np.int64)
        for limits, kind in kinds.items():
            in_blocks[:, kind] = longest - 1 <= limits.num_blocks * limits.block_size
            in_model[:, kind] = longest <= limits.max_model_len
            loads[:, kind] = load_of_each(_case(replace(first_of[limits], requests=requests))).load
        budgets = np.array([limits.max_num_batched_tokens for limits in kinds], dtype=np.int64)
        kind_of = np.array([kinds[executor.limits] for executor in executors], dtype=np.int64)
        return cls(
            requests=requests,
            ever=(in_blocks & in_model)[:, kind_of],
            too_long=~in_model[:, kind_of],
            loads=loads[:, kind_of],
            budgets=budgets[kind_of],
        )

    def load(self, row: int, num_cached_tokens: IntArray | None) -> IntArray:
        """What the request adds to the load of each executor."""
        if num_cached_tokens is None:
            return self.loads[row]
        saved = 1000 * np.minimum(num_cached_tokens, self.requests.num_prompt_tokens[row] - 1) // self.budgets
        return self.loads[row] - saved


class Load(NamedTuple):
    """What requests are to an executor, each in thousandths of what it can do at a time; and all of them together.

    `wait_us`: until one that stands behind them all runs.
    """

    load: IntArray
    num_on_device: int
    wait_us: int


@entry
def load_of_each(case: Case) -> Load:
    """The load of the requests of a case."""
    limits, load, everyone, num_on_device = case.limits, zeros(len(case.rank)), nowhere(len(case.rank)), 0
    for row in range(len(load)):
        everyone[row] = True
        num_on_device += is_on_device(case, row)
        num_blocks = blocks_for(num_tokens(case, row) + expected_outputs_left(case, row) - 1, limits.block_size)
        load[row] = 1000 * tokens_to_compute(case, row) // limits.max_num_batched_tokens
        load[row] += 1000 * num_blocks // limits.num_blocks + 1000 // limits.max_num_seqs
    return Load(load, num_on_device, estimated_wait_us(everyone, case))


def _case(executor: ExecutorState) -> Case:
    # No load depends on the policy.
    return case_of(executor, _ANY_POLICY)


_ANY_POLICY = Policy()


def _most_waiting(limits: ExecutorLimits, num_on_device: int) -> int:
    """How many the queue of an executor may hold. Those that find a place in the running set wait for nothing."""
    if limits.max_num_waiting is None:
        return int(np.iinfo(np.int64).max)
    return limits.max_num_waiting + max(limits.max_num_seqs - num_on_device, 0)


def _why(fits: _Fits, ledger: _Ledger, row: int) -> Reason:
    """Why no executor takes a request: what stands against it on the one that comes nearest."""
    if (fits.ever[row] & ledger.open).any():
        return Reason.REJECTED_QUEUE_FULL
    if fits.ever[row].any():
        return Reason.WAITING_DRAINING
    if len(ledger.executors) > 0 and not fits.too_long[row].all():
        return Reason.REJECTED_EXCEEDS_BLOCKS
    return Reason.REJECTED_EXCEEDS_MODEL_LEN if len(ledger.executors) > 0 else Reason.WAITING_DRAINING
