"""One decision, top to bottom. Pure: the same state and policy give the same plan, whatever the order of the rows.

    1. rank      give every request the figure that the policy orders by
    2. reject    those in the queue that can never run, or would be late
    3. make room share the token budget among those that run; where their new blocks are more than are free, evict
    4. enter     hold who waits for a prefix that another computes; of the others let in the head of the queue as far as
                 places, tokens and blocks go, and who may pass it; for the more important, evict the less important
    5. surge     turn away who is over the limit of the queue
    6. schedule  who runs, in the policy's order, with the drafts that cost nobody anything; and the pass in figures

The rules are told where they live, in this order: `rank.py`, `rejection.py`, `composition.py` and `chunking.py`,
`eviction.py` and `victims.py`, `shared_prefix.py`, `admission.py`, `claims.py`, `memory.py`, `cached_prefixes.py`,
`giving_way.py` and `passing.py`, `preemption.py`, `surge.py`, `drafts.py`. They are plain loops over the rows of a
table, about one request at a time, which `compiled.py` makes machine code of; Python calls it once a plan.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from scheduler_service.core import (
    admission,
    composition,
    drafts,
    eviction,
    giving_way,
    preemption,
    rejection,
    shared_prefix,
    surge,
)
from scheduler_service.core.case import ID, STATUS, Case, case_of, in_decode, rows_with
from scheduler_service.core.chunking import reason_to_run
from scheduler_service.core.claims import NOTHING, Missing, room_beside
from scheduler_service.core.compiled import compiled, entry, lean
from scheduler_service.core.digest import digest_of
from scheduler_service.core.executor_plan import (
    NO_EVICTIONS,
    NO_REJECTIONS,
    NO_TRANSITIONS,
    Composition,
    Evictions,
    ExecutorPlan,
    Reason,
    Rejections,
    Scheduled,
    Shortfall,
    Transitions,
)
from scheduler_service.core.latency import predicted_time_us
from scheduler_service.core.ordering import in_order, order_of
from scheduler_service.core.policy import Policy, Preemption
from scheduler_service.core.rank import rank_requests
from scheduler_service.core.rows import joined, mark, nowhere, those_at, those_where
from scheduler_service.core.state import ClusterState, ExecutorState, IntArray, RequestStatus


def plan(cluster: ClusterState, policy: Policy) -> tuple[ExecutorPlan, ...]:
    """Plan the next pass of each executor of a valid state, in its order. `policy`: one that is offered."""
    return tuple(plan_executor(executor, policy) for executor in cluster.executors)


def plan_executor(executor: ExecutorState, policy: Policy) -> ExecutorPlan:
    """Plan the next pass of one executor."""
    decision = decide(case_of(executor, policy))
    tables = decision[:5]
    scheduled = Scheduled(*decision.scheduled)
    admit = Transitions(*decision.admit) if decision.admit.size > 0 else NO_TRANSITIONS
    resume = Transitions(*decision.resume) if decision.resume.size > 0 else NO_TRANSITIONS
    evict = Evictions(*decision.evict) if decision.evict.size > 0 else NO_EVICTIONS
    reject = Rejections(*decision.reject) if decision.reject.size > 0 else NO_REJECTIONS
    missing = decision.missing
    return ExecutorPlan(
        executor_id=executor.executor_id,
        iteration=executor.iteration,
        scheduled=scheduled,
        admit=admit,
        resume=resume,
        evict=evict,
        reject=reject,
        composition=decision.composition,
        predicted_time_us=decision.predicted_time_us,
        shortfall=None if missing.reason == NOTHING else _shortfall(missing, executor),
        digest=digest_of(executor.executor_id, executor.iteration, [table.shape[1] for table in tables], tables),
        kv_residency_charge=policy.kv_residency_charge,
    )


def _shortfall(missing: Missing, executor: ExecutorState) -> Shortfall:
    id = int(executor.requests.id[missing.row])
    return Shortfall(id=id, reason=Reason(missing.reason), needed=missing.needed, available=missing.available)


class Decision(NamedTuple):
    """What is decided: the lists of a plan, each a table of its columns, one below the other; and its figures."""

    scheduled: IntArray
    admit: IntArray
    resume: IntArray
    evict: IntArray
    reject: IntArray
    composition: Composition
    predicted_time_us: int
    missing: Missing


@entry
def decide(case: Case) -> Decision:
    """The six steps."""
    rank_requests(case)
    rejected = rejection.hopeless(case)
    is_rejected = nowhere(len(case.rank))
    mark(is_rejected, rejected.rows, True)

    stay = eviction.make_room(in_order(rows_with(RequestStatus.RUNNING, case), case), case)

    room = room_beside(stay, case)
    held = shared_prefix.held_back(admission.queued(is_rejected, case), stay.kept, stay.num_tokens, case)
    candidates = admission.head_of_queue(held.others, admission.num_candidates(room, case), case)
    entering = admission.enter(candidates, room, case)
    if case.policy.preemption == Preemption.FOR_PRIORITY:
        stay, entering = preemption.make_way(stay, candidates, room, entering, case)

    rejected = surge.with_those_over_limit(rejected, entering.rows, case)
    mark(is_rejected, rejected.rows, True)

    missing = admission.what_is_missing(entering, held.rows, is_rejected, case)
    shares = giving_way.beside_each_other(stay.kept, stay.num_tokens, entering.rows, entering.num_tokens, case)
    entering = admission.with_tokens(entering, shares.entering)
    num_tokens = composition.give_way(stay.kept, shares.running, entering.rows, entering.num_tokens, case)
    num_tokens = drafts.with_drafts(stay.kept, num_tokens, entering, missing, stay.ran_out, case)
    batch = _batch(stay.kept, num_tokens, entering, case)
    figures = _figures(batch, case)
    admit, resume = _transitions(entering, case)
    return Decision(
        _scheduled(batch, case),
        admit,
        resume,
        _evictions(stay, case),
        rejection.rejections(rejected, case),
        figures,
        predicted_time_us(batch.rows, figures, case),
        missing,
    )


class _Batch(NamedTuple):
    """Who runs, in order, and the tokens of each."""

    rows: IntArray
    num_tokens: IntArray


@compiled
def _batch(kept: IntArray, num_tokens: IntArray, entering: admission.Entering, case: Case) -> _Batch:
    runs = nowhere(len(kept))
    for place in range(len(kept)):
        runs[place] = num_tokens[place] > 0
    rows = joined(those_where(kept, runs, True), entering.rows)
    num_tokens = joined(those_where(num_tokens, runs, True), entering.num_tokens)
    order = order_of(rows, case)
    return _Batch(those_at(rows, order), those_at(num_tokens, order))


@compiled
def _scheduled(batch: _Batch, case: Case) -> IntArray:
    rows, num_tokens, ids = batch.rows, batch.num_tokens, case.requests[ID]
    table = np.empty((3, len(rows)), dtype=np.int64)
    for place in range(len(rows)):
        table[0, place] = ids[rows[place]]
        table[1, place] = num_tokens[place]
        table[2, place] = reason_to_run(case, rows[place], num_tokens[place])
    return table


@compiled
def _transitions(entering: admission.Entering, case: Case) -> tuple[IntArray, IntArray]:
    """Those admitted and those resumed, each in order."""
    order = order_of(entering.rows, case)
    is_resumed = nowhere(len(order))
    for place in range(len(order)):
        is_resumed[place] = case.requests[STATUS, entering.rows[order[place]]] == RequestStatus.SWAPPED
    return (
        _entries(entering, those_where(order, is_resumed, False), case),
        _entries(entering, those_where(order, is_resumed, True), case),
    )


@compiled
def _entries(entering: admission.Entering, places: IntArray, case: Case) -> IntArray:
    table = np.empty((2, len(places)), dtype=np.int64)
    for index in range(len(places)):
        table[0, index] = case.requests[ID, entering.rows[places[index]]]
        table[1, index] = admission.reason_to_enter(entering, places[index], case)
    return table


@compiled
def _evictions(stay: eviction.RunningSet, case: Case) -> IntArray:
    table = np.empty((3, len(stay.evicted)), dtype=np.int64)
    modes = eviction.choose_modes(stay.evicted, case)
    for place in range(len(stay.evicted)):
        table[0, place] = case.requests[ID, stay.evicted[place]]
        table[1, place] = modes[place]
        table[2, place] = stay.why
    return table


@lean
def _figures(batch: _Batch, case: Case) -> Composition:
    num_prefill_tokens, num_decode_tokens, num_prefills, num_decodes = 0, 0, 0, 0
    for place in range(len(batch.rows)):
        if in_decode(case, batch.rows[place]):
            num_decode_tokens += batch.num_tokens[place]
            num_decodes += 1
        else:
            num_prefill_tokens += batch.num_tokens[place]
            num_prefills += 1
    return Composition(num_prefill_tokens, num_decode_tokens, num_prefills, num_decodes)
