"""An executor of integers only: it keeps books, asks for plans and obeys them, and computes nothing.

It plays a scenario to the end in milliseconds, checks every plan with the verifier, and keeps the history that tests
ask about. A request ends when it has all its tokens; its last token is stored nowhere, as in the real executor. Time is
counted, not measured: an iteration takes `iteration_us`, or what the latency model says. It counts what a stateless
scheduler needs counted: the service of each tenant (tokens, and blocks held as the plan charges them; a tenant that
was idle starts no lower than the least of the others), and how often a request was overtaken.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from operator import attrgetter

import numpy as np

from scheduler_service.core.executor_plan import EvictMode, ExecutorPlan
from scheduler_service.core.plan import plan_executor
from scheduler_service.core.policy import Policy
from scheduler_service.core.state import (
    COLUMN_NAMES,
    ExecutorLimits,
    ExecutorState,
    LatencyModel,
    Requests,
    RequestStatus,
    Tenant,
    Tenants,
)
from scheduler_service.core.validate import validate
from scheduler_service.core.verify import verify
from support.states import NOW_US, cluster_of

ITERATION_US = 10_000


@dataclass
class Request:
    """A request in the books, with the columns of the request table.

    `stops_after`: the output token that ends it, which the scheduler does not know; 0: it takes all that it may.
    """

    id: int
    arrival_time_us: int
    num_prompt_tokens: int
    max_output_tokens: int
    status: RequestStatus = RequestStatus.WAITING
    num_output_tokens: int = 0
    num_computed_tokens: int = 0
    num_blocks: int = 0
    num_shared_blocks: int = 0
    num_preemptions: int = 0
    last_run_iteration: int = 0
    priority: int = 0
    tenant: int = 0
    expected_output_tokens: int = 0
    num_draft_tokens: int = 0
    deadline_us: int = 0
    times_overtaken: int = 0
    next_block_hash: int = 0
    cached_prefix: int = 0
    stops_after: int = 0


_row_of = attrgetter(*COLUMN_NAMES)


@dataclass
class ArithmeticExecutor:
    """The books, and what happened. `history[i]` is the plan of iteration i + 1, which began at `began_us[i]`.

    `iteration_us` None: a pass takes what the latency model says. `verify_every`: of so many plans one is verified,
    which takes longer than all the rest.
    """

    limits: ExecutorLimits
    policy: Policy = field(default_factory=Policy)
    latency: LatencyModel | None = None
    iteration_us: int | None = ITERATION_US
    verify_every: int = 1
    now_us: int = NOW_US
    weights: tuple[float, ...] = (1.0,)
    requests: dict[int, Request] = field(default_factory=dict)
    finished: dict[int, Request] = field(default_factory=dict)
    rejected: dict[int, str] = field(default_factory=dict)
    num_evictions: dict[int, int] = field(default_factory=dict)
    history: list[ExecutorPlan] = field(default_factory=list)
    began_us: list[int] = field(default_factory=list)
    services: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.services = self.services or [0.0] * len(self.weights)

    def submit(self, id: int, prompt: int, new: int, **state: int | RequestStatus) -> Request:
        """Accept a request; it arrives now unless `state` says otherwise, which is what it has behind it already."""
        columns = {"arrival_time_us": self.now_us, **state}
        request = Request(id=id, num_prompt_tokens=prompt, max_output_tokens=new, **columns)  # type: ignore[arg-type]
        active = {other.tenant for other in self.requests.values()}
        if active and request.tenant not in active:
            least = min(self.services[tenant] / self.weights[tenant] for tenant in active)
            self.services[request.tenant] = max(self.services[request.tenant], least * self.weights[request.tenant])
        self.requests[id] = request
        return request

    def submit_decoding(self, id: int, prompt: int, new: int, num_stored: int) -> Request:
        """Accept a request that has run until `num_stored` of its tokens were stored."""
        num_blocks = -(-num_stored // self.limits.block_size)
        return self.submit(
            id,
            prompt,
            new,
            status=RequestStatus.RUNNING,
            num_computed_tokens=num_stored,
            num_output_tokens=num_stored - prompt + 1,
            num_blocks=num_blocks,
        )

    @property
    def num_free_blocks(self) -> int:
        return self.limits.num_blocks - self._held(RequestStatus.RUNNING, RequestStatus.LOADING)

    @property
    def num_free_swap_blocks(self) -> int:
        return self.limits.num_swap_blocks - self._held(RequestStatus.SWAPPED)

    def state(self) -> ExecutorState:
        """The books as a state."""
        return ExecutorState(
            executor_id="executor-0",
            iteration=len(self.history) + 1,
            now_us=self.now_us,
            limits=self.limits,
            num_free_blocks=self.num_free_blocks,
            num_free_swap_blocks=self.num_free_swap_blocks,
            latency=self.latency,
            requests=self._table(),
            tenants=Tenants.of(
                *(
                    Tenant(name=f"tenant-{tenant}", weight=weight, service=self.services[tenant])
                    for tenant, weight in enumerate(self.weights)
                )
            ),
        )

    def step(self) -> ExecutorPlan:
        """One iteration: state out, plan in, verified, applied."""
        state = self.state()
        validate(cluster_of(state))
        plan = plan_executor(state, self.policy)
        if state.iteration % self.verify_every == 0:
            violations = verify(state, plan, self.policy)
            assert not violations, violations
        self._count_overtaken(plan)
        self.history.append(plan)
        self.began_us.append(self.now_us)
        self.now_us += self._time_us(plan)
        self._apply(plan)
        return plan

    def run(self, max_iterations: int = 1000) -> None:
        """Play until nothing is left. Fails if an iteration runs nothing, or there are too many."""
        while self.requests:
            plan = self.step()
            assert len(plan.scheduled.id) > 0 or not self.requests, f"iteration {len(self.history)} ran nothing"
            assert len(self.history) < max_iterations, f"{max_iterations} iterations, left: {sorted(self.requests)}"

    def tokens_of(self, id: int) -> list[int]:
        """Tokens that a request ran, iteration by iteration."""
        return [
            dict(zip(plan.scheduled.id.tolist(), plan.scheduled.num_tokens.tolist(), strict=True)).get(id, 0)
            for plan in self.history
        ]

    def _table(self) -> Requests:
        if not self.requests:
            return Requests.from_columns(0, {})
        return Requests(np.array([_row_of(request) for request in self.requests.values()], dtype=np.int64).T.copy())

    def _time_us(self, plan: ExecutorPlan) -> int:
        """How long the pass of a plan takes, which is not applied yet."""
        if self.iteration_us is not None:
            return self.iteration_us
        latency = self.latency
        assert latency is not None, "only a latency model says how long a pass takes"
        time_us = latency.pass_us + sum(latency.swap_block_us * self.requests[id].num_blocks for id in swapped_by(plan))
        for id, num_tokens in zip(plan.scheduled.id.tolist(), plan.scheduled.num_tokens.tolist(), strict=True):
            request = self.requests[id]
            if is_in_decode(request):
                time_us += latency.decode_request_us + latency.kv_token_us * request.num_computed_tokens
            else:
                time_us += latency.prefill_token_us * num_tokens
        return int(time_us)

    def _count_overtaken(self, plan: ExecutorPlan) -> None:
        """One that stays in the queue was overtaken by each that was admitted and arrived after it."""
        admitted = {id: (self.requests[id].arrival_time_us, id) for id in plan.admit.id.tolist()}
        if not admitted:
            return
        for request in self.requests.values():
            if request.status is RequestStatus.WAITING and request.id not in admitted:
                arrival = (request.arrival_time_us, request.id)
                request.times_overtaken += sum(later > arrival for later in admitted.values())

    def _held(self, *statuses: RequestStatus) -> int:
        return sum(request.num_blocks for request in self.requests.values() if request.status in statuses)

    def _apply(self, plan: ExecutorPlan) -> None:
        for id, reason in zip(plan.reject.id.tolist(), plan.reject.reason.tolist(), strict=True):
            self.rejected[id] = reason
            del self.requests[id]
        for id, mode in zip(plan.evict.id.tolist(), plan.evict.mode.tolist(), strict=True):
            self._evict(self.requests[id], EvictMode(mode))
        for id in (*plan.resume.id.tolist(), *plan.admit.id.tolist()):
            self.requests[id].status = RequestStatus.RUNNING
        on_device = [request for request in self.requests.values() if request.status is RequestStatus.RUNNING]
        for id, num_tokens in zip(plan.scheduled.id.tolist(), plan.scheduled.num_tokens.tolist(), strict=True):
            self._run(self.requests[id], num_tokens)
        for request in on_device:
            self.services[request.tenant] += plan.kv_residency_charge * request.num_blocks
        assert self.num_free_blocks >= 0
        assert self.num_free_swap_blocks >= 0

    def _evict(self, request: Request, mode: EvictMode) -> None:
        request.num_preemptions += 1
        self.num_evictions[request.id] = request.num_preemptions
        if mode is EvictMode.SWAP:
            request.status = RequestStatus.SWAPPED
        else:
            request.status = RequestStatus.WAITING
            request.num_computed_tokens = request.num_blocks = 0

    def _run(self, request: Request, num_tokens: int) -> None:
        self.services[request.tenant] += num_tokens
        request.num_computed_tokens += num_tokens
        request.num_blocks = max(-(-request.num_computed_tokens // self.limits.block_size), request.num_blocks)
        request.last_run_iteration = len(self.history)
        # Drafts are right, all of them, as a state that is sent ahead says.
        num_sampled = request.num_computed_tokens + 1 - request.num_prompt_tokens - request.num_output_tokens
        request.num_output_tokens += max(num_sampled, 0)
        if request.num_output_tokens == (request.stops_after or request.max_output_tokens):
            self.finished[request.id] = self.requests.pop(request.id)


def is_in_decode(request: Request) -> bool:
    """Whether the newest token is the only one that it lacks."""
    num_lacking = request.num_prompt_tokens + request.num_output_tokens - request.num_computed_tokens
    return request.num_output_tokens > 0 and num_lacking == 1


def swapped_by(plan: ExecutorPlan) -> list[int]:
    """Ids of those whose KV a plan copies: out of the device, or back."""
    out = [
        id for id, mode in zip(plan.evict.id.tolist(), plan.evict.mode.tolist(), strict=True) if mode == EvictMode.SWAP
    ]
    return [*out, *plan.resume.id.tolist()]
