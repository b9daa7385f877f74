"""One decision, top to bottom. Pure: the same state and policy give the same plan, whatever the order of the rows.

    1. reject    those in the queue that can never fit
    2. make room share the token budget among those that run, decodes first; where their new blocks are more than are
                 free, evict the last in order
    3. enter     let in the head of the queue, those that ran before first, as far as places, tokens and blocks go
    4. schedule  who runs, in the policy's order, and the pass in figures

The rules are told where they live: `chunking.py`, `eviction.py`, `admission.py`, `memory.py`. Everything is a few NumPy
operations over columns; nothing loops over requests.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from scheduler_service.core import admission, eviction, memory
from scheduler_service.core.chunking import reasons_to_run
from scheduler_service.core.digest import digest
from scheduler_service.core.executor_plan import Composition, ExecutorPlan, Scheduled, Transitions
from scheduler_service.core.ordering import in_order
from scheduler_service.core.policy import Policy
from scheduler_service.core.state import (
    ClusterState,
    ExecutorState,
    IntArray,
    LatencyModel,
    Requests,
    RequestStatus,
    rows_where,
)


def plan(cluster: ClusterState, policy: Policy) -> tuple[ExecutorPlan, ...]:
    """Plan the next pass of each executor of a valid state, in its order. `policy`: one that is offered."""
    return tuple(plan_executor(executor, policy) for executor in cluster.executors)


def plan_executor(executor: ExecutorState, policy: Policy) -> ExecutorPlan:
    """Plan the next pass of one executor."""
    requests = executor.requests
    rejected = memory.never_fitting(executor)

    running = requests.take(in_order(requests, rows_where(requests.having(RequestStatus.RUNNING))))
    loading = requests.take(rows_where(requests.having(RequestStatus.LOADING)))
    stay = eviction.make_room(running, executor, policy)

    room = admission.room_beside(stay, loading, executor, policy)
    candidates = admission.head_of_queue(executor, rejected, room)
    entering = admission.enter(candidates, room, executor, policy)

    batch, num_tokens = _batch(stay, entering)
    composition = _composition(batch, num_tokens)
    admit, resume = _transitions(entering.requests)
    undigested = ExecutorPlan(
        executor_id=executor.executor_id,
        iteration=executor.iteration,
        scheduled=Scheduled(id=batch.id, num_tokens=num_tokens, reason=reasons_to_run(batch, num_tokens, policy)),
        admit=admit,
        resume=resume,
        evict=eviction.choose_modes(stay.evicted, executor, policy),
        reject=memory.rejections(requests.take(rejected), executor.limits),
        composition=composition,
        predicted_time_us=_predicted_time_us(batch, composition, executor.latency),
        shortfall=entering.shortfall,
    )
    return replace(undigested, digest=digest(undigested))


def _batch(stay: eviction.RunningSet, entering: admission.Entering) -> tuple[Requests, IntArray]:
    """Who runs, in order, and the tokens of each."""
    runs = stay.num_tokens.nonzero()[0]
    batch, num_tokens = stay.kept.take(runs), stay.num_tokens[runs]
    if len(entering.requests) == 0:
        return batch, num_tokens
    batch = Requests(np.concatenate((batch.matrix, entering.requests.matrix), axis=1))
    num_tokens = np.concatenate((num_tokens, entering.num_tokens))
    rows = in_order(batch, np.arange(len(batch)))
    return batch.take(rows), num_tokens[rows]


def _transitions(entering: Requests) -> tuple[Transitions, Transitions]:
    """Those admitted and those resumed, each in order."""
    if len(entering) == 0:
        return Transitions(), Transitions()
    entering = entering.take(in_order(entering, np.arange(len(entering))))
    reasons = admission.reasons_to_enter(entering)
    swapped = entering.having(RequestStatus.SWAPPED)
    return (
        Transitions(id=entering.id[~swapped], reason=reasons[~swapped]),
        Transitions(id=entering.id[swapped], reason=reasons[swapped]),
    )


def _composition(batch: Requests, num_tokens: IntArray) -> Composition:
    in_decode = batch.in_decode
    num_decode_tokens = int(num_tokens[in_decode].sum())
    num_decode_requests = int(np.count_nonzero(in_decode))
    return Composition(
        num_prefill_tokens=int(num_tokens.sum()) - num_decode_tokens,
        num_decode_tokens=num_decode_tokens,
        num_prefill_requests=len(batch) - num_decode_requests,
        num_decode_requests=num_decode_requests,
    )


def _predicted_time_us(batch: Requests, composition: Composition, latency: LatencyModel | None) -> int:
    """What the pass takes by the latency model; 0 without one, or for an empty pass."""
    if latency is None or len(batch) == 0:
        return 0
    num_kv_tokens = int(batch.num_computed_tokens[batch.in_decode].sum())
    predicted = (
        latency.pass_us
        + composition.num_prefill_tokens * latency.prefill_token_us
        + composition.num_decode_requests * latency.decode_request_us
        + num_kv_tokens * latency.kv_token_us
    )
    # The figures of a model are any numbers; the contract's field is an int64.
    return round(min(predicted, np.iinfo(np.int64).max / 2))
