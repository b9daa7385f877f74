"""Whether a plan keeps the invariants of the contract; for plans of any scheduler.

Written from the invariants with plain loops over requests, and independent of the planner: the two share the types of
state and plan and nothing else, so that one finds the faults of the other. Invariant 7 (no starvation) and 8
(determinism) are about many plans; of them a single plan can show only this: that it lets nobody pass the head of the
queue, and that it answers the state it was asked about and carries the digest of its own lists.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import IntEnum

from scheduler_service.core.digest import digest
from scheduler_service.core.executor_plan import EvictMode, ExecutorPlan, Reason
from scheduler_service.core.facts import Facts, RequestFacts, ceil_div, request_facts
from scheduler_service.core.policy import HeadOfLine, Ordering, Policy, Preemption
from scheduler_service.core.state import ExecutorState, RequestStatus


class Invariant(IntEnum):
    """The invariants, numbered as in scheduler.proto."""

    BATCH_LIMITS = 1
    BLOCKS = 2
    TOKENS = 3
    ONE_FATE = 4
    PROGRESS = 5
    NO_LIVELOCK = 6
    NO_STARVATION = 7
    DETERMINISM = 8
    EVICTION_ALLOWED = 9
    DECODE_DELAY = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Violation:
    """A broken invariant. `ids`: ascending; empty where it concerns the batch as a whole."""

    executor_id: str
    invariant: Invariant
    ids: tuple[int, ...] = ()
    description: str


_Finding = tuple[Invariant, tuple[int, ...], str]


def verify(executor: ExecutorState, plan: ExecutorPlan, policy: Policy) -> tuple[Violation, ...]:
    """All that is broken; empty if nothing is. `executor`: a valid state. A plan whose lists make no sense for it (they
    name strangers, or one request twice) is reported as that alone, since no more can be said of it.
    """
    requests = request_facts(executor)
    findings = list(_one_fate(executor, plan, requests))
    if not findings:
        facts = Facts(
            limits=executor.limits,
            state=executor,
            plan=plan,
            policy=policy,
            requests=requests,
            scheduled=dict(zip(plan.scheduled.id.tolist(), plan.scheduled.num_tokens.tolist(), strict=True)),
            entering={i: requests[i] for i in (*plan.admit.id.tolist(), *plan.resume.id.tolist())},
            evicted=dict(zip(plan.evict.id.tolist(), map(EvictMode, plan.evict.mode.tolist()), strict=True)),
            rejected=set(plan.reject.id.tolist()),
        )
        findings = [finding for check in _CHECKS for finding in check(facts)]
    return tuple(
        Violation(executor_id=executor.executor_id, invariant=invariant, ids=tuple(sorted(ids)), description=text)
        for invariant, ids, text in findings
    )


def _one_fate(executor: ExecutorState, plan: ExecutorPlan, requests: dict[int, RequestFacts]) -> Iterator[_Finding]:
    """4: lists name known requests that stand where the list takes them from, each once, each in one list."""
    admit, resume = plan.admit.id.tolist(), plan.resume.id.tolist()
    runs_on = [i for i in plan.scheduled.id.tolist() if i not in {*admit, *resume}]
    waiting, swapped = RequestStatus.WAITING, RequestStatus.SWAPPED
    lists: tuple[tuple[str, list[int], tuple[RequestStatus, ...]], ...] = (
        ("scheduled", runs_on, (RequestStatus.RUNNING,)),
        ("admit", admit, (waiting,)),
        ("resume", resume, (swapped,)),
        ("evict", plan.evict.id.tolist(), (RequestStatus.RUNNING,)),
        ("reject", plan.reject.id.tolist(), (waiting, swapped)),
    )
    seen: set[int] = set()
    for name, ids, statuses in lists:
        for i in ids:
            if i in seen:
                yield Invariant.ONE_FATE, (i,), f"{i} is in more than one place of the plan"
            elif i not in requests:
                yield Invariant.ONE_FATE, (i,), f"{name} names {i}, which the executor does not have"
            elif requests[i].status not in statuses:
                yield Invariant.ONE_FATE, (i,), f"{name} names {i}, which is {requests[i].status.name}"
            seen.add(i)
    scheduled = plan.scheduled.id.tolist()
    for i in {*admit, *resume}:
        if scheduled.count(i) != 1:
            yield Invariant.ONE_FATE, (i,), f"{i} enters and is scheduled {scheduled.count(i)} times"


def _batch_limits(facts: Facts) -> Iterator[_Finding]:
    """1: tokens within the token budget, requests within the batch limit."""
    num_tokens, budget = sum(facts.scheduled.values()), facts.limits.max_num_batched_tokens
    if num_tokens > budget:
        yield Invariant.BATCH_LIMITS, (), f"{num_tokens} tokens are scheduled, the budget is {budget}"
    on_device = len(facts.of(RequestStatus.RUNNING, RequestStatus.LOADING)) - len(facts.evicted)
    num_seqs = on_device + len(facts.entering)
    if num_seqs > facts.limits.max_num_seqs:
        yield Invariant.BATCH_LIMITS, (), f"{num_seqs} requests would run, the limit is {facts.limits.max_num_seqs}"


def _blocks(facts: Facts) -> Iterator[_Finding]:
    """2: device and swap blocks needed are within those there are."""
    freed = sum(facts.requests[i].num_blocks - facts.requests[i].num_shared for i in facts.evicted)
    needed, free = facts.blocks_needed(), facts.state.num_free_blocks + freed
    if needed > free:
        yield Invariant.BLOCKS, (), f"the pass needs {needed} blocks, {free} are free"
    swapped = sum(facts.requests[i].num_blocks for i, mode in facts.evicted.items() if mode is EvictMode.SWAP)
    if swapped > facts.state.num_free_swap_blocks:
        yield Invariant.BLOCKS, (), f"evictions swap {swapped} blocks, {facts.state.num_free_swap_blocks} are free"


def _tokens(facts: Facts) -> Iterator[_Finding]:
    """3: a request runs at least one token and at most what it lacks and a chunk; in decode one and its drafts."""
    for i, num_tokens in facts.scheduled.items():
        most = facts.requests[i].most_tokens(facts.policy)
        if not 1 <= num_tokens <= most:
            yield Invariant.TOKENS, (i,), f"{i} runs {num_tokens} tokens, and may run 1 to {most}"


def _progress(facts: Facts) -> Iterator[_Finding]:
    """5: what could run, runs; what can never fit is rejected, and what could is not rejected as too large."""
    too_large = _rejected_as_too_large(facts.plan)
    block_size, free = facts.limits.block_size, facts.state.num_free_blocks
    for request in facts.of(RequestStatus.WAITING, RequestStatus.SWAPPED):
        length = request.num_tokens + 1 if request.ran_before else request.longest
        fits = ceil_div(length - 1, block_size) <= facts.limits.num_blocks and length <= facts.limits.max_model_len
        if not fits and request.id not in facts.rejected:
            yield Invariant.PROGRESS, (request.id,), f"{request.id} can never fit with {length} tokens, and waits"
        if fits and request.id in too_large:
            yield Invariant.PROGRESS, (request.id,), f"{request.id} is rejected as too large, and fits"
    if facts.scheduled:
        return
    able = [r.id for r in facts.of(RequestStatus.RUNNING) if r.new_blocks(1, block_size) <= free]
    if able:
        yield Invariant.PROGRESS, tuple(able), "nothing is scheduled, and running requests have blocks for a token"
    head = facts.queue()[:1]
    if head and not facts.of(RequestStatus.RUNNING, RequestStatus.LOADING):
        whole_prompt = head[0].new_blocks(head[0].lacks, block_size)
        if whole_prompt <= free and (head[0].ran_before or not facts.state.draining):
            text = f"nothing is scheduled, and {head[0].id} needs {whole_prompt} blocks of {free} free ones"
            yield Invariant.PROGRESS, (head[0].id,), text


def _rejected_as_too_large(plan: ExecutorPlan) -> set[int]:
    too_large = (Reason.REJECTED_EXCEEDS_BLOCKS, Reason.REJECTED_EXCEEDS_MODEL_LEN)
    reasons = zip(plan.reject.id.tolist(), plan.reject.reason.tolist(), strict=True)
    return {i for i, reason in reasons if reason in too_large}


def _no_livelock(facts: Facts) -> Iterator[_Finding]:
    """6: the first in order stays, nobody enters when blocks ran out, those that ran before come first."""
    running = facts.of(RequestStatus.RUNNING)
    if running and running[0].id in facts.evicted and facts.policy.preemption is not Preemption.FOR_PRIORITY:
        yield Invariant.NO_LIVELOCK, (running[0].id,), f"{running[0].id} is first in order, and is evicted"
    if facts.evicted and facts.entering and facts.policy.preemption is not Preemption.FOR_PRIORITY:
        yield Invariant.NO_LIVELOCK, tuple(facts.entering), "requests enter in a pass in which blocks ran out"
    never_ran = [i for i, request in facts.entering.items() if not request.ran_before]
    held_up = [r.id for r in facts.queue() if r.ran_before and r.id not in facts.entering]
    if never_ran and held_up and facts.policy.ordering is Ordering.FIFO:
        yield Invariant.NO_LIVELOCK, tuple(held_up), f"{held_up[0]} ran before and waits, {never_ran[0]} enters"


def _no_starvation(facts: Facts) -> Iterator[_Finding]:
    """7, as far as one plan shows it: under FIFO and STRICT nobody passes the head of the queue."""
    if facts.policy.ordering is not Ordering.FIFO or facts.policy.head_of_line is not HeadOfLine.STRICT:
        return
    left_out: RequestFacts | None = None
    for request in facts.queue():
        if request.id not in facts.entering:
            left_out = left_out or request
        elif left_out is not None:
            yield Invariant.NO_STARVATION, (left_out.id, request.id), f"{request.id} passes {left_out.id}"


def _determinism(facts: Facts) -> Iterator[_Finding]:
    """8, as far as one plan shows it: it is for this state, and its digest is that of its lists (0: none given)."""
    asked, answered = facts.state, facts.plan
    if (asked.executor_id, asked.iteration) != (answered.executor_id, answered.iteration):
        text = f"the plan is for iteration {answered.iteration} of {answered.executor_id!r}, asked: {asked.iteration}"
        yield Invariant.DETERMINISM, (), text
    if answered.digest not in (0, digest(answered)):
        yield Invariant.DETERMINISM, (), f"the digest is {answered.digest}, that of the lists {digest(answered)}"


def _eviction_allowed(facts: Facts) -> Iterator[_Finding]:
    """9: under NEVER nobody is evicted; under WHEN_FULL only if not all that run could run on."""
    if not facts.evicted:
        return
    if facts.policy.preemption is Preemption.NEVER:
        yield Invariant.EVICTION_ALLOWED, tuple(facts.evicted), "the policy never evicts"
    if facts.policy.preemption is Preemption.WHEN_FULL:
        block_size, free = facts.limits.block_size, facts.state.num_free_blocks
        running = facts.of(RequestStatus.RUNNING)
        wanted = sum(request.new_blocks(request.most_tokens(facts.policy), block_size) for request in running)
        if wanted <= free:
            text = f"all that run need {wanted} blocks and {free} are free, so blocks did not run out"
            yield Invariant.EVICTION_ALLOWED, tuple(facts.evicted), text


def _decode_delay(facts: Facts) -> Iterator[_Finding]:
    """10: no decode that has its block waits for a prefill, or for one that ran after it."""
    decodes = [r for r in facts.of(RequestStatus.RUNNING) if r.in_decode and r.id not in facts.evicted]
    waits = [r for r in decodes if r.id not in facts.scheduled and r.new_blocks(1, facts.limits.block_size) == 0]
    if not waits:
        return
    first = min(waits, key=lambda request: (request.last_run, request.order))
    prefills = [i for i in facts.scheduled if not facts.requests[i].in_decode]
    if prefills:
        yield Invariant.DECODE_DELAY, (first.id,), f"{first.id} decodes and waits while {prefills[0]} prefills"
    for request in decodes:
        if request.id in facts.scheduled and (request.last_run, request.order) > (first.last_run, first.order):
            text = f"{first.id} last ran in {first.last_run} and waits, {request.id} ran in {request.last_run} and runs"
            yield Invariant.DECODE_DELAY, (first.id, request.id), text


_CHECKS: tuple[Callable[[Facts], Iterator[_Finding]], ...] = (
    _batch_limits,
    _blocks,
    _tokens,
    _progress,
    _no_livelock,
    _no_starvation,
    _determinism,
    _eviction_allowed,
    _decode_delay,
)
