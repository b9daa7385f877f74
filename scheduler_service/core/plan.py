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
`preemption.py`, `surge.py`. Everything is a few NumPy operations over columns; nothing loops over requests. At small
sizes the number of operations is what a plan costs, so a step looks first whether it has anything to do.
"""

from __future__ import annotations

import numpy as np

from scheduler_service.core import admission, composition, eviction, preemption, shared_prefix, surge
from scheduler_service.core.chunking import reasons_to_run
from scheduler_service.core.claims import room_beside
from scheduler_service.core.digest import digest_of
from scheduler_service.core.executor_plan import (
    NO_TRANSITIONS,
    Composition,
    ExecutorPlan,
    Reason,
    Scheduled,
    Transitions,
)
from scheduler_service.core.latency import predicted_time_us
from scheduler_service.core.ordering import in_order, positions_in_order
from scheduler_service.core.policy import Policy, Preemption
from scheduler_service.core.rank import ranked
from scheduler_service.core.rejection import hopeless
from scheduler_service.core.state import NO_ROWS, ClusterState, ExecutorState, IntArray, Requests


def plan(cluster: ClusterState, policy: Policy) -> tuple[ExecutorPlan, ...]:
    """Plan the next pass of each executor of a valid state, in its order. `policy`: one that is offered."""
    return tuple(plan_executor(executor, policy) for executor in cluster.executors)


def plan_executor(executor: ExecutorState, policy: Policy) -> ExecutorPlan:
    """Plan the next pass of one executor."""
    requests = ranked(executor, policy)
    rejected = hopeless(requests, executor, policy)

    stay = eviction.make_room(in_order(requests.running), executor, policy)

    room = room_beside(stay, executor, policy)
    queued = admission.queued(requests, rejected.rows)
    held = shared_prefix.held_back(queued, stay.kept, stay.num_tokens, policy)
    candidates = admission.head_of_queue(held.others, admission.num_candidates(room, policy), executor, policy)
    entering = admission.enter(candidates, room, executor, policy)
    if policy.preemption is Preemption.FOR_PRIORITY:
        stay, entering = preemption.make_way(stay, candidates, room, entering, executor, policy)

    rejected = rejected.beside(surge.over_limit(requests, rejected, entering.requests, executor, policy))

    batch, num_tokens, order = _batch(stay, entering, executor, policy)
    figures = _figures(batch, num_tokens)
    scheduled = Scheduled(id=batch.id, num_tokens=num_tokens, reason=reasons_to_run(batch, num_tokens, policy))
    admit, resume = _transitions(entering, order, policy)
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
) -> tuple[Requests, IntArray, IntArray]:
    """Who runs, in order; the tokens of each; and which of those that enter comes first, second, ..."""
    others, their_tokens = entering.requests, entering.num_tokens
    num_tokens = composition.give_way(stay.kept, stay.num_tokens, others, their_tokens, executor, policy)
    batch, runs = stay.kept, num_tokens.nonzero()[0]
    if len(runs) < len(batch):
        batch, num_tokens = batch.take(runs), num_tokens[runs]
    if len(others) == 0:
        return batch, num_tokens, NO_ROWS
    batch, num_tokens = batch.beside(others), np.concatenate((num_tokens, their_tokens))
    order = positions_in_order(batch)
    return batch.take(order), num_tokens[order], order[order >= len(runs)] - len(runs)


def _transitions(entering: admission.Entering, order: IntArray, policy: Policy) -> tuple[Transitions, Transitions]:
    """Those admitted and those resumed, each in order."""
    requests = entering.requests
    if len(order) == 0:
        return NO_TRANSITIONS, NO_TRANSITIONS
    id, reasons = requests.id[order], admission.reasons_to_enter(entering, policy)[order]
    if not requests.whole.anyone_swapped:
        return Transitions(id=id, reason=reasons), NO_TRANSITIONS
    resumed = reasons == int(Reason.RESUMED)
    return (
        Transitions(id=id[~resumed], reason=reasons[~resumed]),
        Transitions(id=id[resumed], reason=reasons[resumed]),
    )


def _figures(batch: Requests, num_tokens: IntArray) -> Composition:
    in_decode = batch.in_decode
    num_decode_tokens = int(num_tokens.dot(in_decode))
    num_decode_requests = int(np.count_nonzero(in_decode))
    return Composition(
        num_prefill_tokens=int(num_tokens.sum()) - num_decode_tokens,
        num_decode_tokens=num_decode_tokens,
        num_prefill_requests=len(batch) - num_decode_requests,
        num_decode_requests=num_decode_requests,
    )
