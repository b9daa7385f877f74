"""Whether a plan keeps the invariants of the contract; for plans of any scheduler.

Written from the invariants with plain loops over requests, and independent of the planner: the two share the types of
state and plan and nothing else, so that one finds the faults of the other. Invariant 7 (no starvation) and 8
(determinism) are about many plans; of them a single plan can show only this: that it lets nobody pass the head of the
queue who must not, and that it answers the state it was asked about and carries the digest of its own lists.

The invariants about whose turn it is (6, 7, 9, 10, 11) are in `verify_turns.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from scheduler_service.core.digest import digest
from scheduler_service.core.executor_plan import EvictMode, ExecutorPlan, Reason
from scheduler_service.core.facts import Facts, Findings, Invariant, RequestFacts, ceil_div, request_facts
from scheduler_service.core.policy import Policy
from scheduler_service.core.state import ExecutorState, RequestStatus
from scheduler_service.core.verify_turns import (
    decode_delay,
    eviction_allowed,
    no_livelock,
    no_starvation,
    shared_prefix,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Violation:
    """A broken invariant. `ids`: ascending; empty where it concerns the batch as a whole."""

    executor_id: str
    invariant: Invariant
    ids: tuple[int, ...] = ()
    description: str


def verify(executor: ExecutorState, plan: ExecutorPlan, policy: Policy) -> tuple[Violation, ...]:
    """All that is broken; empty if nothing is. `executor`: a valid state. A plan whose lists make no sense for it (they
    name strangers, or one request twice) is reported as that alone, since no more can be said of it.
    """
    requests = request_facts(executor, policy)
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
            rejected=dict(zip(plan.reject.id.tolist(), plan.reject.reason.tolist(), strict=True)),
        )
        findings = [finding for check in _CHECKS for finding in check(facts)]
    return tuple(
        Violation(executor_id=executor.executor_id, invariant=invariant, ids=tuple(sorted(ids)), description=text)
        for invariant, ids, text in findings
    )


def _one_fate(executor: ExecutorState, plan: ExecutorPlan, requests: dict[int, RequestFacts]) -> Findings:
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


def _batch_limits(facts: Facts) -> Findings:
    """1: tokens within the token budget, requests within the batch limit."""
    num_tokens, budget = sum(facts.scheduled.values()), facts.limits.max_num_batched_tokens
    if num_tokens > budget:
        yield Invariant.BATCH_LIMITS, (), f"{num_tokens} tokens are scheduled, the budget is {budget}"
    on_device = len(facts.of(RequestStatus.RUNNING, RequestStatus.LOADING)) - len(facts.evicted)
    num_seqs = on_device + len(facts.entering)
    if num_seqs > facts.limits.max_num_seqs:
        yield Invariant.BATCH_LIMITS, (), f"{num_seqs} requests would run, the limit is {facts.limits.max_num_seqs}"
    num_prefills = len([i for i in facts.scheduled if not facts.requests[i].in_decode])
    most = facts.policy.max_num_partial_prefills
    if most is not None and num_prefills > most:
        yield Invariant.BATCH_LIMITS, (), f"{num_prefills} requests prefill, the policy allows {most}"


def _blocks(facts: Facts) -> Findings:
    """2: device and swap blocks needed are within those there are."""
    needed, free = facts.blocks_needed(), facts.blocks_free()
    if needed > free:
        yield Invariant.BLOCKS, (), f"the pass needs {needed} blocks, {free} are free"
    swapped = sum(facts.requests[i].num_blocks for i, mode in facts.evicted.items() if mode is EvictMode.SWAP)
    if swapped > facts.state.num_free_swap_blocks:
        yield Invariant.BLOCKS, (), f"evictions swap {swapped} blocks, {facts.state.num_free_swap_blocks} are free"


def _tokens(facts: Facts) -> Findings:
    """3: a request runs at least one token and at most what it lacks and a chunk; in decode one and its drafts."""
    for i, num_tokens in facts.scheduled.items():
        most = facts.requests[i].most_tokens(facts.policy)
        if not 1 <= num_tokens <= most:
            yield Invariant.TOKENS, (i,), f"{i} runs {num_tokens} tokens, and may run 1 to {most}"


def _progress(facts: Facts) -> Findings:
    """5: what could run, runs; what can never fit is rejected, and what could is not rejected as too large."""
    block_size, free = facts.limits.block_size, facts.state.num_free_blocks
    for request in facts.of(RequestStatus.WAITING, RequestStatus.SWAPPED):
        length = request.num_tokens + 1 if request.ran_before else request.longest
        fits = ceil_div(length - 1, block_size) <= facts.limits.num_blocks and length <= facts.limits.max_model_len
        if not fits and request.id not in facts.rejected:
            yield Invariant.PROGRESS, (request.id,), f"{request.id} can never fit with {length} tokens, and waits"
        if fits and facts.rejected.get(request.id) in _TOO_LARGE:
            yield Invariant.PROGRESS, (request.id,), f"{request.id} is rejected as too large, and fits"
    if facts.scheduled:
        return
    able = [r.id for r in facts.of(RequestStatus.RUNNING) if r.new_blocks(1, block_size) <= free]
    if able:
        yield Invariant.PROGRESS, tuple(able), "nothing is scheduled, and running requests have blocks for a token"
    head = facts.queue_before()[:1]
    if head and not facts.of(RequestStatus.RUNNING, RequestStatus.LOADING):
        held = head[0].blocks_held(facts.limits, facts.policy)
        if held <= free:
            text = f"nothing is scheduled, and {head[0].id} needs {held} blocks of {free} free ones"
            yield Invariant.PROGRESS, (head[0].id,), text


_TOO_LARGE = (Reason.REJECTED_EXCEEDS_BLOCKS, Reason.REJECTED_EXCEEDS_MODEL_LEN)


def _queue_limits(facts: Facts) -> Findings:
    """5: who is over a limit of the queue is rejected, and nobody for it who is not."""
    waiting = [r for r in facts.of(RequestStatus.WAITING) if not r.ran_before and r.id not in facts.entering]
    policy, of_executor = facts.policy, facts.limits.max_num_waiting
    limit = of_executor if policy.max_num_waiting is None else policy.max_num_waiting
    yield from _queue_limit(facts, waiting, limit, Reason.REJECTED_QUEUE_FULL)
    for tenant in sorted({request.tenant for request in waiting}):
        own = [request for request in waiting if request.tenant == tenant]
        yield from _queue_limit(facts, own, policy.max_num_waiting_per_tenant, Reason.REJECTED_TENANT_QUEUE_FULL)


def _queue_limit(facts: Facts, waiting: list[RequestFacts], limit: int | None, reason: Reason) -> Findings:
    """`waiting`: in order, those of the queue or of one tenant in it that do not enter."""
    stay = [request for request in waiting if request.id not in facts.rejected]
    out = [request for request in waiting if facts.rejected.get(request.id) == reason]
    if limit is not None and len(stay) > limit:
        yield Invariant.PROGRESS, tuple(r.id for r in stay), f"{len(stay)} wait, the limit is {limit}"
    # A tenant may be left with fewer than its share, since those may go for the limit of all.
    others = [r for r in waiting if facts.rejected.get(r.id) == Reason.REJECTED_QUEUE_FULL and r not in out]
    if out and (limit is None or len(stay) + len(others) < limit):
        yield Invariant.PROGRESS, (out[0].id,), f"{out[0].id} is rejected for the queue, which has room"
    passed = [request for request in stay if out and request.order > out[0].order]
    if passed:
        text = f"{out[0].id} is rejected for the queue, and {passed[0].id} behind it waits"
        yield Invariant.PROGRESS, (out[0].id, passed[0].id), text


def _deadlines(facts: Facts) -> Findings:
    """5: who is rejected for its deadline has one, and it cannot be met."""
    for i, reason in facts.rejected.items():
        deadline = facts.requests[i].deadline_us
        if reason == Reason.REJECTED_DEADLINE:
            past = deadline > 0 and (facts.state.latency is not None or facts.state.now_us > deadline)
            if not (past and facts.policy.reject_missed_deadlines):
                yield Invariant.PROGRESS, (i,), f"{i} is rejected for a deadline that it can meet"


def _determinism(facts: Facts) -> Findings:
    """8, as far as one plan shows it: it is for this state, and its digest is that of its lists (0: none given)."""
    asked, answered = facts.state, facts.plan
    if (asked.executor_id, asked.iteration) != (answered.executor_id, answered.iteration):
        text = f"the plan is for iteration {answered.iteration} of {answered.executor_id!r}, asked: {asked.iteration}"
        yield Invariant.DETERMINISM, (), text
    if answered.digest not in (0, digest(answered)):
        yield Invariant.DETERMINISM, (), f"the digest is {answered.digest}, that of the lists {digest(answered)}"


def _charge(facts: Facts) -> Findings:
    """7: the executor is told the charge for KV residency, or the counters that FAIR shares by would be wrong."""
    told, asked = facts.plan.kv_residency_charge, facts.policy.kv_residency_charge
    if told != asked:
        yield Invariant.NO_STARVATION, (), f"the plan charges {told} tokens for a block held, the policy {asked}"


_CHECKS: tuple[Callable[[Facts], Findings], ...] = (
    _batch_limits,
    _blocks,
    _tokens,
    _progress,
    _queue_limits,
    _deadlines,
    no_livelock,
    no_starvation,
    _determinism,
    _charge,
    eviction_allowed,
    decode_delay,
    shared_prefix,
)
