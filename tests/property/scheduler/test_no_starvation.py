"""Invariant 7: over real traces, at 1.2 times what the executor can do, nobody waits longer than the policy promises.

Each trace is played on the arithmetic executor, plan by plan. When a request arrives, the bound on its waiting is
worked out from the books and from who arrives later (`support/waiting_bounds.py`, derived in docs/policies.md). The
same bounds are broken where the promise is taken back: without aging, without turns, with unlimited skipping.
"""

from __future__ import annotations

from collections.abc import Iterator
from copy import copy
from dataclasses import dataclass, replace
from functools import cache
from statistics import median

import pytest

from scheduler_service.core.executor_plan import ExecutorPlan
from scheduler_service.core.policy import Admission, HeadOfLine, Ordering, Policy
from scheduler_service.core.state import ExecutorLimits, LatencyModel, RequestStatus
from support.arithmetic_executor import ArithmeticExecutor, Request
from support.depth import num_examples
from support.traces import TRACES, Trace, TraceRequest, at_load, played, read_trace
from support.waiting_bounds import (
    Work,
    fair_share_tokens,
    largest_of,
    may_go_before,
    passes_to_reservation,
    time_to_admit_us,
    work_left,
)

LOAD = 1.2
# About those of a model of eight billion parameters on one large device.
LATENCY = LatencyModel(pass_us=5000, prefill_token_us=20, decode_request_us=40, kv_token_us=0.01)
# Places are what is short, or blocks: the largest request then needs a third of them.
MANY_BLOCKS = ExecutorLimits(
    max_num_batched_tokens=2048, max_num_seqs=32, block_size=16, num_blocks=4096, max_model_len=131_072
)
FEW_BLOCKS = replace(MANY_BLOCKS, num_blocks=1536, max_num_seqs=128)
LONG_PROMPTS = replace(MANY_BLOCKS, max_num_batched_tokens=8192, num_blocks=24_576)

FIFO = Policy(admission=Admission.RESERVE)
PRIORITY = replace(FIFO, ordering=Ordering.PRIORITY, aging_seconds=2.0)
SHORTEST_JOB_FIRST = replace(FIFO, ordering=Ordering.SHORTEST_JOB_FIRST, aging_seconds=0.5)
SHORTEST_PREFILL_FIRST = replace(SHORTEST_JOB_FIRST, ordering=Ordering.SHORTEST_PREFILL_FIRST)
FEWEST_LATE = replace(FIFO, ordering=Ordering.FEWEST_LATE, aging_seconds=2.0, target_time_to_first_token_us=500_000)
FAIR = replace(FIFO, ordering=Ordering.FAIR)
FAIR_AND_SHORTEST = replace(
    SHORTEST_PREFILL_FIRST, ordering=Ordering.FAIR, ordering_within_tenant=Ordering.SHORTEST_PREFILL_FIRST
)
FAIR_AND_FEWEST_LATE = replace(FEWEST_LATE, ordering=Ordering.FAIR, ordering_within_tenant=Ordering.FEWEST_LATE)
SKIP = replace(FIFO, head_of_line=HeadOfLine.SKIP, max_times_overtaken=4)
BACKFILL = replace(FIFO, head_of_line=HeadOfLine.BACKFILL)
FOR_EVER = 1e6  # an `aging_seconds` that makes no difference within a trace


def name_of(policy: Policy) -> str:
    if policy.ordering_within_tenant is not Ordering.FIFO:
        return f"{policy.ordering.name} and {policy.ordering_within_tenant.name}"
    return (policy.ordering if policy.head_of_line is HeadOfLine.STRICT else policy.head_of_line).name


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """A request as it was submitted, and the books of that moment without it."""

    request: Request
    submitted_us: int
    books: tuple[Request, ...]
    services: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reservation:
    """When a request that could not enter became the head of the queue, and the pass in which it enters at last."""

    id: int
    iteration: int
    latest: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Play:
    """What happened: who came when, when each was admitted, and what each head of the queue could count on."""

    executor: ArithmeticExecutor
    arrivals: tuple[Arrival, ...]
    admitted: dict[int, int]
    reservations: tuple[Reservation, ...]

    def waited_us(self, arrival: Arrival) -> int:
        return self.executor.began_us[self.admitted[arrival.request.id] - 1] - arrival.submitted_us

    def num_full_passes(self, first: int, last: int) -> int:
        """Iterations between these, the last one not included, whose token budget was used up."""
        budget = self.executor.limits.max_num_batched_tokens
        plans = self.executor.history[first - 1 : last - 1]
        return sum(int(plan.scheduled.num_tokens.sum()) == budget for plan in plans)


@cache
def trace_of(name: str, count: int, limits: ExecutorLimits) -> Trace:
    """The beginning of a trace at 1.2 times what an executor of these limits can do.

    Priorities are made up: every fifth request has 2, a third of the others 0, the rest 1.
    """
    trace = read_trace(TRACES / name, count)
    trace = tuple(replace(r, priority=2 if r.id % 5 == 0 else int(r.id % 3 > 0)) for r in trace)
    return at_load(trace, LOAD, executor_with(limits, FIFO))


def executor_with(limits: ExecutorLimits, policy: Policy) -> ArithmeticExecutor:
    return ArithmeticExecutor(
        limits=limits, policy=policy, latency=LATENCY, iteration_us=None, weights=(1.0, 1.0), verify_every=100
    )


@cache
def play(trace: Trace, limits: ExecutorLimits, policy: Policy) -> Play:
    executor = executor_with(limits, policy)
    arrivals: list[Arrival] = []
    admitted: dict[int, int] = {}
    reservations: dict[int, Reservation] = {}

    def on_submit(request: Request) -> None:
        books = tuple(copy(other) for other in executor.requests.values() if other is not request)
        services = tuple(executor.services)
        arrivals.append(Arrival(request=copy(request), submitted_us=executor.now_us, books=books, services=services))

    for plan in played(executor, trace, on_submit):
        for id in plan.admit.id.tolist():
            admitted.setdefault(id, plan.iteration)
        if plan.shortfall is not None and plan.shortfall.id not in reservations:
            reservations[plan.shortfall.id] = reservation_of(executor, plan)
    assert len(executor.finished) == len(trace)
    return Play(
        executor=executor, arrivals=tuple(arrivals), admitted=admitted, reservations=tuple(reservations.values())
    )


def reservation_of(executor: ArithmeticExecutor, plan: ExecutorPlan) -> Reservation:
    """What the request counts on that a plan names as the first one left out."""
    assert plan.shortfall is not None
    head, limits = executor.requests[plan.shortfall.id], executor.limits
    passing = {id for id in plan.admit.id.tolist() if id > head.id}
    on_device = [r for r in executor.requests.values() if r.status is RequestStatus.RUNNING and r.id not in passing]
    works = [work_of(request, limits, executor.policy) for request in on_device]
    num_passes = passes_to_reservation(work_of(head, limits, executor.policy), works, limits)
    return Reservation(id=head.id, iteration=plan.iteration, latest=plan.iteration + 1 + num_passes)


def bounds_us(play: Play, promise: Policy) -> Iterator[tuple[Arrival, float]]:
    """Each request with the longest that it may wait if `promise` is kept."""
    limits = play.executor.limits
    for index, arrival in enumerate(play.arrivals):
        later = [other.request for other in play.arrivals[index + 1 :]]
        queued = [request for request in arrival.books if request.status is RequestStatus.WAITING]
        before = [other for other in (*queued, *later) if may_go_before(other, arrival.request, promise)]
        if promise.ordering is Ordering.FAIR:
            before = [other for other in before if other.tenant == arrival.request.tenant]
            before += others_in_turn(arrival, before, queued + later, limits, promise)
        ahead = [work_of(request, limits, promise) for request in (*running_of(arrival), *before)]
        if promise.head_of_line is HeadOfLine.SKIP and later:
            overtaking = [work_of(request, limits, promise) for request in later]
            ahead += [largest_of(overtaking)] * min(promise.max_times_overtaken, len(later))
        largest = max(work_of(request, limits, promise).num_blocks for request in (arrival.request, *before))
        yield arrival, time_to_admit_us(ahead, largest, limits, LATENCY)


def running_of(arrival: Arrival) -> list[Request]:
    return [request for request in arrival.books if request.status is RequestStatus.RUNNING]


def work_of(request: Request, limits: ExecutorLimits, policy: Policy) -> Work:
    return work_left(request, limits, policy, LATENCY)


def others_in_turn(
    arrival: Arrival, own: list[Request], others: list[Request], limits: ExecutorLimits, policy: Policy
) -> list[Request]:
    """Of the other tenants those that may go before one with `own` of its tenant ahead: so many tokens of each.

    In order of arrival; where a tenant's order is another, the smallest, so that they are as many as can be.
    """
    if policy.ordering_within_tenant is not Ordering.FIFO:
        others = sorted(others, key=lambda other: (work_of(other, limits, policy).num_tokens, other.id))
    tenant, weights = arrival.request.tenant, (1.0, 1.0)
    running = [request for request in running_of(arrival) if request.tenant == tenant]
    own_ahead = [work_of(request, limits, policy) for request in (*own, *running)]
    in_turn: list[Request] = []
    for other in set(range(len(weights))) - {tenant}:
        tokens = fair_share_tokens(
            own_ahead, arrival.services[tenant], arrival.services[other], weights[tenant], weights[other]
        )
        # What runs counts only once it is computed, and no more of it runs at once than the blocks hold.
        tokens += limits.num_blocks * limits.block_size
        for request in others:
            if request.tenant == other and tokens >= 0:
                in_turn.append(request)
                tokens -= work_of(request, limits, policy).num_tokens
    return in_turn


def broken(play: Play, promise: Policy) -> dict[int, tuple[int, float]]:
    """Requests that waited longer than promised, by id: how long, and how long at most."""
    waits = {arrival.request.id: (play.waited_us(arrival), bound) for arrival, bound in bounds_us(play, promise)}
    return {id: (waited, bound) for id, (waited, bound) in waits.items() if waited > bound}


def tightness(play: Play, promise: Policy) -> float:
    """The largest share of its bound that anybody waits."""
    return max(play.waited_us(arrival) / bound for arrival, bound in bounds_us(play, promise) if bound > 0)


def broken_reservations(play: Play) -> list[Reservation]:
    """Those that entered later than they could count on. A pass with its budget used up ends nobody it was to end."""
    return [
        reservation
        for reservation in play.reservations
        if play.admitted[reservation.id]
        > reservation.latest + play.num_full_passes(reservation.iteration, play.admitted[reservation.id])
    ]


def azure(limits: ExecutorLimits) -> Trace:
    return trace_of("azure_2023_conv_code.csv", num_examples(400, at_night=1000), limits)


def mooncake() -> Trace:
    return trace_of("mooncake_conversation.csv", num_examples(120, at_night=500), LONG_PROMPTS)


@pytest.mark.parametrize(
    "policy",
    [
        *(FIFO, PRIORITY, SHORTEST_JOB_FIRST, SHORTEST_PREFILL_FIRST, FEWEST_LATE),
        *(FAIR, FAIR_AND_SHORTEST, FAIR_AND_FEWEST_LATE),
    ],
    ids=name_of,
)
def test_nobody_waits_longer_than_promised_for_a_place(policy: Policy) -> None:
    played = play(azure(MANY_BLOCKS), MANY_BLOCKS, policy)
    assert broken(played, policy) == {}
    assert tightness(played, policy) > 0.5


@pytest.mark.parametrize("policy", [FIFO, FEWEST_LATE, FAIR, FAIR_AND_SHORTEST, SKIP], ids=name_of)
def test_nobody_waits_longer_than_promised_for_blocks(policy: Policy) -> None:
    played = play(azure(FEW_BLOCKS), FEW_BLOCKS, policy)
    assert broken(played, policy) == {}
    assert tightness(played, policy) > 0.5


@pytest.mark.parametrize("policy", [FIFO, SHORTEST_JOB_FIRST, SHORTEST_PREFILL_FIRST, FEWEST_LATE, SKIP], ids=name_of)
def test_nobody_waits_longer_than_promised_among_long_prompts(policy: Policy) -> None:
    assert broken(play(mooncake(), LONG_PROMPTS, policy), policy) == {}


@pytest.mark.parametrize("policy", [FIFO, BACKFILL], ids=name_of)
def test_the_head_of_the_queue_enters_when_it_could_count_on(policy: Policy) -> None:
    for trace, limits in ((azure(FEW_BLOCKS), FEW_BLOCKS), (mooncake(), LONG_PROMPTS)):
        played = play(trace, limits, policy)
        assert len(played.reservations) > 20
        assert broken_reservations(played) == []


def test_the_executor_is_overloaded() -> None:
    for trace, limits in (
        (azure(MANY_BLOCKS), MANY_BLOCKS),
        (azure(FEW_BLOCKS), FEW_BLOCKS),
        (mooncake(), LONG_PROMPTS),
    ):
        played = play(trace, limits, FIFO)
        last = played.arrivals[-1]
        took_us = played.executor.now_us - (last.request.arrival_time_us - trace[-1].arrival_us)
        assert took_us > 1.1 * trace[-1].arrival_us
        assert played.waited_us(last) > 0.05 * trace[-1].arrival_us


@pytest.mark.parametrize("policy", [PRIORITY, SHORTEST_JOB_FIRST, SHORTEST_PREFILL_FIRST, FEWEST_LATE], ids=name_of)
def test_without_aging_the_bound_is_broken(policy: Policy) -> None:
    starving = broken(play(azure(MANY_BLOCKS), MANY_BLOCKS, replace(policy, aging_seconds=FOR_EVER)), policy)
    requests = {request.id: request for request in azure(MANY_BLOCKS)}
    assert starving
    if policy.ordering is Ordering.PRIORITY:
        assert {requests[id].priority for id in starving} == {0}
    else:
        work = {id: request.num_prompt_tokens + request.num_output_tokens for id, request in requests.items()}
        assert min(work[id] for id in starving) > median(work.values())


def test_without_turns_a_burst_of_one_tenant_breaks_the_bound_of_the_other() -> None:
    assert broken(play(azure(FEW_BLOCKS), FEW_BLOCKS, FIFO), FAIR)


def test_with_unlimited_skipping_both_bounds_of_the_head_are_broken() -> None:
    unlimited = play(azure(FEW_BLOCKS), FEW_BLOCKS, replace(SKIP, max_times_overtaken=10**6))
    assert broken(unlimited, SKIP)
    assert broken_reservations(unlimited)


def test_a_tenant_that_comes_later_does_not_wait_for_the_whole_queue_of_another() -> None:
    limits = ExecutorLimits(max_num_batched_tokens=256, max_num_seqs=2, block_size=16, num_blocks=6, max_model_len=96)
    flood = [TraceRequest(id=i, arrival_us=0, num_prompt_tokens=16, num_output_tokens=11) for i in range(2, 21)]
    # Ends out of step with the others, so that one of the flood runs whenever a place is free.
    first = TraceRequest(id=1, arrival_us=0, num_prompt_tokens=16, num_output_tokens=14)
    newcomer = TraceRequest(id=100, arrival_us=1, num_prompt_tokens=16, num_output_tokens=11, tenant=1)
    assert broken(play((first, *flood, newcomer), limits, FAIR), FAIR) == {}
