"""Which executor a request goes to, when it arrives.

The scheduler's own rules (`scheduler_service.core.placement`), over the states that the executors have at that time.
Taking turns needs no state, so it is done here; and of a thousand executors only the two that are drawn for
POWER_OF_TWO_CHOICES are asked for theirs.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np

from executor_service.kv.prefix_cache import BlockChain
from metronome_lab.simulated.clock import EPOCH_US
from metronome_lab.simulated.executor import SimulatedExecutor
from metronome_lab.workload.requests import Workload
from scheduler_service.core.placement import Placement, place
from scheduler_service.core.state import ClusterState, Requests, RequestStatus


class Placer(Protocol):
    """Chooses for one request after the other, in order of arrival."""

    def choose(self, index: int) -> SimulatedExecutor:
        """The executor of a request of the workload, advanced to its arrival."""
        ...


def placer(placement: Placement, executors: Sequence[SimulatedExecutor], workload: Workload, seed: int) -> Placer:
    """`seed`: of what is drawn."""
    if len(executors) == 1 or placement is Placement.ROUND_ROBIN:
        return _InTurn(executors, workload)
    if placement is Placement.POWER_OF_TWO_CHOICES:
        drawn = random.Random(seed)
        return _ByState(Placement.LEAST_LOADED, lambda: drawn.sample(executors, 2), workload)
    return _ByState(placement, lambda: executors, workload)


class _InTurn:
    def __init__(self, executors: Sequence[SimulatedExecutor], workload: Workload) -> None:
        self._executors = executors
        self._workload = workload

    def choose(self, index: int) -> SimulatedExecutor:
        executor = self._executors[index % len(self._executors)]
        executor.advance(int(self._workload.arrival_us[index]))
        return executor


class _ByState:
    def __init__(
        self, placement: Placement, candidates: Callable[[], Sequence[SimulatedExecutor]], workload: Workload
    ) -> None:
        self._placement = placement
        self._candidates = candidates
        self._workload = workload

    def choose(self, index: int) -> SimulatedExecutor:
        workload, arrival_us = self._workload, int(self._workload.arrival_us[index])
        candidates = self._candidates()
        for executor in candidates:
            executor.advance(arrival_us)
        states = tuple(executor.core_state() for executor in candidates)
        cluster = ClusterState(now_us=EPOCH_US + arrival_us, executors=states)
        request = Requests.from_columns(
            1,
            {
                "id": index + 1,
                "status": RequestStatus.WAITING.value,
                "arrival_time_us": EPOCH_US + arrival_us,
                "num_prompt_tokens": workload.num_prompt_tokens[index],
                "max_output_tokens": workload.max_output_tokens[index],
                "expected_output_tokens": workload.expected_output_tokens[index],
            },
        )
        cached = np.array([[self._num_cached_tokens(e, index) for e in candidates]], dtype=np.int64)
        chosen = place(cluster, request, cached, self._placement, 0, frozenset())[0].executor_id
        # Where none can take it any one may refuse it.
        places = (place for place, state in enumerate(states) if state.executor_id == chosen)
        return candidates[next(places, 0)]

    def _num_cached_tokens(self, executor: SimulatedExecutor, index: int) -> int:
        if self._placement is not Placement.CACHED_PREFIX:
            return 0
        executor.settle()
        books, sequence = executor.books, executor.sequence(index)
        block_size, scope = books.limits.block_size, books.prefixes.scope
        chain = BlockChain(scope.root(sequence.request.tenant), sequence, block_size=block_size)
        return block_size * len(books.prefixes.cache.find(chain, (sequence.num_prompt_tokens - 1) // block_size))
