"""One decision, top to bottom. Pure: the same state and policy give the same plan, whatever the order of the rows.

    1. rank      give every request the figure that the policy orders by
    2. reject    those in the queue that can never run, or would be late
    3. make room share the token budget among those that run; where their new blocks are more than are free, evict
    4. enter     hold who waits for a prefix that another computes; of the others let in the head of the queue as far as
                 places, tokens and blocks go, and who may pass it; for the more important, evict the less important
    5. surge     turn away who is over the limit of the queue
    6. schedule  who runs, in the policy's order, and the pass in figures

The rules are told where they live, in this order: `rank.py`, `rejection.py`, `composition.py` and `chunking.py`,
`eviction.py` and `victims.py`, `shared_prefix.py`, `admission.py`, `claims.py`, `memory.py` and `passing.py`,
`preemption.py`, `surge.py`.
Everything is a few NumPy operations over columns; nothing loops over requests.
"""

from __future__ import annotations

import numpy as np

from scheduler_service.core import admission, composition, eviction, preemption, shared_prefix, surge
from scheduler_service.core.chunking import reasons_to_run
from scheduler_service.core.claims import room_beside
from scheduler_service.core.digest import digest_of
from scheduler_service.core.executor_plan import NO_TRANSITIONS, Composition, ExecutorPlan, Scheduled, Transitions
from scheduler_service.core.latency import predicted_time_us
from scheduler_service.core.ordering import in_order
from scheduler_service.core.policy import Policy, Preemption
from scheduler_service.core.rank import ranked
from scheduler_service.core.rejection import hopeless
from scheduler_service.core.state import ClusterState, ExecutorState, IntArray, Requests, RequestStatus, rows_where


def plan(cluster: ClusterState, policy: Policy) -> tuple[ExecutorPlan, ...]:
    """Plan the next pass of each executor of a valid state, in its order. `policy`: one that is offered."""
    return tuple(plan_executor(executor, policy) for executor in cluster.executors)


def plan_executor(executor: ExecutorState, policy: Policy) -> ExecutorPlan:
    """Plan the next pass of one executor."""
    requests = ranked(executor, policy)
    rejected = hopeless(requests, executor, policy)

    running = requests.take(in_order(requests, rows_where(requests.having(RequestStatus.RUNNING))))
    loading = requests.take(rows_where(requests.having(RequestStatus.LOADING)))
    stay = eviction.make_room(running, executor, policy)

    room = room_beside(stay, loading, executor, policy)
    queued = admission.queued_rows(requests, rejected.rows)
    held = shared_prefix.held_back(requests, queued, stay.kept, stay.num_tokens, policy)
    candidates = admission.head_of_queue(
        requests, held.others, admission.num_candidates(room, policy), executor, policy
    )
    entering = admission.enter(candidates, room, executor, policy)
    if policy.preemption is Preemption.FOR_PRIORITY:
        stay, entering = preemption.make_way(stay, loading, candidates, room, entering, executor, policy)

    rejected = rejected.beside(surge.over_limit(requests, rejected, entering.requests, executor, policy))

    batch, num_tokens = _batch(stay, entering, executor, policy)
    figures = _figures(batch, num_tokens)
    scheduled = Scheduled(id=batch.id, num_tokens=num_tokens, reason=reasons_to_run(batch, num_tokens, policy))
    admit, resume = _transitions(entering, policy)
    evict = eviction.choose_modes(stay.evicted, stay.why, executor, policy)
    reject = rejected.table(requests)
    return ExecutorPlan(
        executor_id=executor.executor_id,
        iteration=executor.iteration,
        scheduled=scheduled,
        admit=admit,
        resume=resume,
        evict=evict,
        reject=reject,
        composition=figures,
        predicted_time_us=predicted_time_us(batch, figures, executor.latency),
        shortfall=admission.shortfall(requests, entering, held, rejected.rows),
        digest=digest_of(executor.executor_id, executor.iteration, scheduled, admit, resume, evict, reject),
        kv_residency_charge=policy.kv_residency_charge,
    )


def _batch(
    stay: eviction.RunningSet, entering: admission.Entering, executor: ExecutorState, policy: Policy
) -> tuple[Requests, IntArray]:
    """Who runs, in order, and the tokens of each."""
    others, their_tokens = entering.requests, entering.num_tokens
    num_tokens = composition.give_way(stay.kept, stay.num_tokens, others, their_tokens, executor, policy)
    runs = rows_where(num_tokens > 0)
    batch, num_tokens = stay.kept.take(runs), num_tokens[runs]
    if len(others) == 0:
        return batch, num_tokens
    batch, num_tokens = batch.beside(others), np.concatenate((num_tokens, their_tokens))
    rows = in_order(batch, np.arange(len(batch)))
    return batch.take(rows), num_tokens[rows]


def _transitions(entering: admission.Entering, policy: Policy) -> tuple[Transitions, Transitions]:
    """Those admitted and those resumed, each in order."""
    requests = entering.requests
    if len(requests) == 0:
        return NO_TRANSITIONS, NO_TRANSITIONS
    reasons = admission.reasons_to_enter(entering, policy)
    if len(requests) > 1:
        rows = in_order(requests, np.arange(len(requests)))
        requests, reasons = requests.take(rows), reasons[rows]
    swapped = requests.having(RequestStatus.SWAPPED)
    if not swapped.any():
        return Transitions(id=requests.id, reason=reasons), NO_TRANSITIONS
    return (
        Transitions(id=requests.id[~swapped], reason=reasons[~swapped]),
        Transitions(id=requests.id[swapped], reason=reasons[swapped]),
    )


def _figures(batch: Requests, num_tokens: IntArray) -> Composition:
    in_decode = batch.in_decode
    num_decode_tokens = int(num_tokens[in_decode].sum())
    num_decode_requests = int(np.count_nonzero(in_decode))
    return Composition(
        num_prefill_tokens=int(num_tokens.sum()) - num_decode_tokens,
        num_decode_tokens=num_decode_tokens,
        num_prefill_requests=len(batch) - num_decode_requests,
        num_decode_requests=num_decode_requests,
    )
