"""A state and a plan as `verify.py` looks at them: plain objects by id, no arrays.

Independent of the planner, which must not grade its own work: what a request lacks, needs and may run is written down
here a second time, one request at a time.
"""

from __future__ import annotations

from dataclasses import dataclass

from scheduler_service.core.executor_plan import EvictMode, ExecutorPlan
from scheduler_service.core.policy import Policy
from scheduler_service.core.state import ExecutorLimits, ExecutorState, RequestStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestFacts:
    """A row of the state, with what follows from it."""

    id: int
    status: RequestStatus
    arrival_time_us: int
    num_tokens: int
    num_computed: int
    num_output: int
    longest: int
    num_drafts: int
    num_blocks: int
    num_shared: int
    num_preemptions: int
    last_run: int

    @property
    def order(self) -> tuple[int, int]:
        return self.arrival_time_us, self.id

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
        if self.status is RequestStatus.RUNNING:
            return max(needed - self.num_blocks, 0)
        if self.status is RequestStatus.SWAPPED:
            return max(needed, self.num_blocks)
        return max(needed, self.num_blocks) - self.num_shared


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
    rejected: set[int]

    def of(self, *statuses: RequestStatus) -> list[RequestFacts]:
        """Requests that stand there, in order."""
        return sorted((r for r in self.requests.values() if r.status in statuses), key=lambda request: request.order)

    def queue(self) -> list[RequestFacts]:
        """The queue without the rejected, in order: those that ran before, then those that never did."""
        queued = [r for r in self.of(RequestStatus.WAITING, RequestStatus.SWAPPED) if r.id not in self.rejected]
        return sorted(queued, key=lambda request: not request.ran_before)

    def blocks_needed(self) -> int:
        block_size = self.limits.block_size
        return sum(self.requests[i].new_blocks(n, block_size) for i, n in self.scheduled.items())


def request_facts(executor: ExecutorState) -> dict[int, RequestFacts]:
    table = executor.requests
    requests = {}
    for row in range(len(table)):
        num_prompt, num_output = int(table.num_prompt_tokens[row]), int(table.num_output_tokens[row])
        request = RequestFacts(
            id=int(table.id[row]),
            status=RequestStatus(int(table.status[row])),
            arrival_time_us=int(table.arrival_time_us[row]),
            num_tokens=num_prompt + num_output,
            num_computed=int(table.num_computed_tokens[row]),
            num_output=num_output,
            longest=num_prompt + max(int(table.max_output_tokens[row]), num_output + 1),
            num_drafts=int(table.num_draft_tokens[row]),
            num_blocks=int(table.num_blocks[row]),
            num_shared=int(table.num_shared_blocks[row]),
            num_preemptions=int(table.num_preemptions[row]),
            last_run=int(table.last_run_iteration[row]),
        )
        requests[request.id] = request
    return requests


def ceil_div(dividend: int, divisor: int) -> int:
    return -(-dividend // divisor)
