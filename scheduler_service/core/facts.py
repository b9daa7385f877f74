"""A state and a plan as `verify.py` looks at them: plain objects by id, no arrays.

Independent of the planner, which must not grade its own work: what a request lacks, needs and may run, and where it
stands, is written down here a second time, one request at a time.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import IntEnum

from scheduler_service.core.executor_plan import EvictMode, ExecutorPlan, Reason
from scheduler_service.core.facts_lateness import lateness_ranks
from scheduler_service.core.policy import Admission, Ordering, Policy
from scheduler_service.core.state import NOBODY_NAMED, ExecutorLimits, ExecutorState, RequestStatus


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
    SHARED_PREFIX = 11


Findings = Iterator[tuple[Invariant, tuple[int, ...], str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestFacts:
    """A row of the state, with what follows from it. `rank`: what the policy orders by, the least first.

    `reused`: the cached prefixes in free blocks that it would reuse, each with the blocks that it adds.
    """

    id: int
    status: RequestStatus
    arrival_time_us: int
    rank: tuple[float, float]
    priority: int
    tenant: int
    num_tokens: int
    num_computed: int
    num_output: int
    longest: int
    most_left: int
    expected_left: int
    num_drafts: int
    deadline_us: int
    num_blocks: int
    num_shared: int
    num_preemptions: int
    last_run: int
    times_overtaken: int
    next_block_hash: int
    reused: Mapping[int, int]

    @property
    def order(self) -> tuple[tuple[float, float], int, int]:
        return self.rank, self.arrival_time_us, self.id

    @property
    def lacks(self) -> int:
        return self.num_tokens - self.num_computed

    @property
    def in_decode(self) -> bool:
        return self.num_output > 0 and self.lacks == 1

    @property
    def ran_before(self) -> bool:
        return self.status is RequestStatus.SWAPPED or self.num_preemptions > 0

    def most_tokens(self, policy: Policy) -> int:
        """What it may compute in one pass."""
        return 1 + self.num_drafts if self.in_decode else min(self.lacks, policy.chunk_size_tokens)

    def new_blocks(self, num_tokens: int, block_size: int) -> int:
        """Free blocks taken up by a pass that computes so many tokens of it."""
        needed = ceil_div(self.num_computed + num_tokens, block_size)
        if self.status in (RequestStatus.RUNNING, RequestStatus.LOADING):
            return max(needed - self.num_blocks, 0)
        if self.status is RequestStatus.SWAPPED:
            return max(needed, self.num_blocks)
        return max(needed, self.num_blocks) - self.num_shared

    def blocks_for_life(self, outputs_left: int, limits: ExecutorLimits) -> int:
        """Free blocks that it takes up until it has so many more output tokens, or all there are."""
        most = max(self.num_tokens, limits.num_blocks * limits.block_size)
        num_tokens = min(self.num_tokens + outputs_left - 1, most)
        return self.new_blocks(num_tokens - self.num_computed, limits.block_size)

    def blocks_held(self, limits: ExecutorLimits, policy: Policy) -> int:
        """Free blocks that the policy holds for it once it has entered."""
        outputs = {Admission.RESERVE: self.most_left, Admission.PREDICTIVE: self.expected_left}
        return self.blocks_for_life(outputs.get(policy.admission, 1), limits)


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """A state and a plan for it, as dictionaries by id."""

    limits: ExecutorLimits
    state: ExecutorState
    plan: ExecutorPlan
    policy: Policy
    requests: dict[int, RequestFacts]
    scheduled: dict[int, int]
    entering: dict[int, RequestFacts]
    evicted: dict[int, EvictMode]
    rejected: dict[int, int]

    def of(self, *statuses: RequestStatus) -> list[RequestFacts]:
        """Requests that stand there, in order."""
        return sorted((r for r in self.requests.values() if r.status in statuses), key=lambda request: request.order)

    def queue(self) -> list[RequestFacts]:
        """The queue without the rejected, in order."""
        return [request for request in self.queue_before() if request.id not in self.rejected]

    def queue_before(self) -> list[RequestFacts]:
        """The same with those that are turned away only because too many wait: they had their turn to enter."""
        for_the_queue = (Reason.REJECTED_QUEUE_FULL, Reason.REJECTED_TENANT_QUEUE_FULL)
        queued = self.of(RequestStatus.WAITING, RequestStatus.SWAPPED)
        queued = [r for r in queued if self.rejected.get(r.id, for_the_queue[0]) in for_the_queue]
        return sorted(queued, key=lambda request: (request.rank, not request.ran_before, request.order))

    def kept_free(self, request: RequestFacts, num_beside: int) -> int:
        """Blocks that the policy keeps free when a request enters beside so many others."""
        if self.policy.admission is Admission.RESERVE or num_beside == 0:
            return 0
        growth = num_beside + 1 if request.ran_before else 0
        return math.ceil(self.policy.watermark * self.limits.num_blocks) + growth

    def stay(self) -> list[RequestFacts]:
        """Those that are on the device before the plan and after it."""
        on_device = self.of(RequestStatus.RUNNING, RequestStatus.LOADING)
        return [request for request in on_device if request.id not in self.evicted]

    def blocks_needed(self) -> int:
        """Free blocks that the pass takes up."""
        block_size = self.limits.block_size
        alone = sum(self.requests[i].new_blocks(n, block_size) for i, n in self.scheduled.items())
        return alone - blocks_counted_twice(self.entering.values())

    def blocks_held(self, requests: Collection[RequestFacts]) -> int:
        """Free blocks that the policy holds for these, on the device or once they have entered."""
        alone = sum(request.blocks_held(self.limits, self.policy) for request in requests)
        return alone - blocks_counted_twice(requests)

    def blocks_free(self) -> int:
        """Free blocks once the evicted have left."""
        freed = sum(self.requests[i].num_blocks - self.requests[i].num_shared for i in self.evicted)
        return self.state.num_free_blocks + freed


def blocks_counted_twice(requests: Iterable[RequestFacts]) -> int:
    """Free blocks that several of these would reuse, each counted as often as there is one too many."""
    seen: set[int] = set()
    num_blocks = 0
    for request in requests:
        num_blocks += sum(blocks for prefix, blocks in request.reused.items() if prefix in seen)
        seen |= request.reused.keys()
    return num_blocks


def _reused_prefixes(executor: ExecutorState, row: int) -> dict[int, int]:
    prefix, reused = int(executor.requests.cached_prefix[row]), {}
    while prefix > 0 and executor.requests.status[row] == RequestStatus.WAITING:
        reused[prefix] = int(executor.prefixes.num_free_blocks[prefix - 1])
        prefix = int(executor.prefixes.parent[prefix - 1])
    return reused


def request_facts(executor: ExecutorState, policy: Policy) -> dict[int, RequestFacts]:
    table, requests = executor.requests, {}
    counters, lateness = _tenant_counters(executor), lateness_ranks(executor, policy)
    for row in range(len(table)):
        num_prompt, num_output = int(table.num_prompt_tokens[row]), int(table.num_output_tokens[row])
        most, expected = int(table.max_output_tokens[row]), int(table.expected_output_tokens[row])
        num_tokens, num_computed = num_prompt + num_output, int(table.num_computed_tokens[row])
        most_left = max((most if most > 0 else executor.limits.max_model_len - num_prompt) - num_output, 1)
        expected_left = min(max(expected - num_output, 1), most_left) if expected > 0 else most_left
        arrival, tenant = int(table.arrival_time_us[row]), int(table.tenant[row])
        priority, deadline = int(table.priority[row]), int(table.deadline_us[row])
        outputs_left = expected_left + (num_prompt if most == 0 and expected == 0 else 0)
        work = num_tokens - num_computed + outputs_left - 1
        request = RequestFacts(
            id=int(table.id[row]),
            status=RequestStatus(int(table.status[row])),
            arrival_time_us=arrival,
            rank=_ranks(
                policy,
                work=work,
                prefill=num_tokens - num_computed,
                arrival=arrival,
                priority=priority,
                deadline=deadline,
                counter=counters[tenant],
                lateness=lateness[row],
            ),
            priority=priority,
            tenant=tenant,
            num_tokens=num_tokens,
            num_computed=num_computed,
            num_output=num_output,
            longest=num_prompt + max(most, num_output + 1),
            most_left=most_left,
            expected_left=expected_left,
            num_drafts=int(table.num_draft_tokens[row]),
            deadline_us=deadline,
            num_blocks=int(table.num_blocks[row]),
            num_shared=int(table.num_shared_blocks[row]),
            num_preemptions=int(table.num_preemptions[row]),
            last_run=int(table.last_run_iteration[row]),
            times_overtaken=int(table.times_overtaken[row]),
            next_block_hash=int(table.next_block_hash[row]),
            reused=_reused_prefixes(executor, row),
        )
        requests[request.id] = request
    return requests


def _ranks(
    policy: Policy,
    *,
    work: int,
    prefill: int,
    arrival: int,
    priority: int,
    deadline: int,
    counter: float,
    lateness: int,
) -> tuple[float, float]:
    """Rank, and that within the tenant: 0 where nobody asks for it."""
    aging_us = round(min(max(policy.aging_seconds * 1e6, 1.0), 2.0**62))

    def rank_by(ordering: Ordering) -> float:
        match ordering:
            case Ordering.FIFO:
                return 0
            case Ordering.SHORTEST_JOB_FIRST | Ordering.SHORTEST_PREFILL_FIRST:
                mantissa, exponent = math.frexp(work if ordering is Ordering.SHORTEST_JOB_FIRST else prefill)
                return exponent + 2 * mantissa - 2 + float(arrival) / float(aging_us)
            case Ordering.PRIORITY:
                return max(min(arrival, 2**62), -(2**62)) // aging_us - priority
            case Ordering.EARLIEST_DEADLINE_FIRST:
                return deadline if deadline > 0 else math.inf
            case Ordering.FEWEST_LATE:
                return lateness
            case Ordering.FAIR:
                return counter

    within = rank_by(policy.ordering_within_tenant) if policy.ordering is Ordering.FAIR else 0
    return rank_by(policy.ordering), within


def _tenant_counters(executor: ExecutorState) -> list[float]:
    """Weighted service of each tenant; one that is idle counts as just less than the least of those on the device."""
    tenants = executor.tenants if len(executor.tenants) > 0 else NOBODY_NAMED
    counters = [tenant.service / tenant.weight for tenant in tenants]
    table = executor.requests
    on_device = (RequestStatus.RUNNING, RequestStatus.LOADING)
    active = {t for t, s in zip(table.tenant.tolist(), table.status.tolist(), strict=True) if s in on_device}
    if not active:
        return counters
    least = min(counters[tenant] for tenant in active)
    return [count if count >= least else math.nextafter(least, -math.inf) for count in counters]


def ceil_div(dividend: int, divisor: int) -> int:
    return -(-dividend // divisor)
