"""Plays of a published trace on the arithmetic executor of the tests, and what there was to see.

Virtual time, real plans. `PYTHONPATH` has to name the folder `tests`, as `make pictures` does.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from dataclasses import dataclass, field, replace
from functools import cache

import numpy as np

from executor_service.engine.record import PassRecord
from scheduler_service.core.placement import Placement, place
from scheduler_service.core.policy import Admission, Policy
from scheduler_service.core.state import ClusterState, ExecutorLimits, LatencyModel, Requests, RequestStatus
from support.arithmetic_executor import ArithmeticExecutor
from support.engine import engine_on_tokens, limits_of
from support.planners import LocalPlanner
from support.traces import TRACES, Trace, TraceRequest, at_load, played, read_trace

LOAD = 1.2
NUM_REQUESTS = 400
BLOCK_SIZE = 16
# About those of a model of eight billion parameters on one large device.
LATENCY = LatencyModel(pass_us=5000, prefill_token_us=20, decode_request_us=40, kv_token_us=0.01, swap_block_us=100)
PLACES_SHORT = ExecutorLimits(
    max_num_batched_tokens=2048, max_num_seqs=24, block_size=BLOCK_SIZE, num_blocks=4096, max_model_len=16_384
)
BLOCKS_SHORT = replace(PLACES_SHORT, num_blocks=1024, max_num_seqs=128)
BLOCKS_SCARCE = replace(BLOCKS_SHORT, num_blocks=560)
TOKENS_SHORT = replace(PLACES_SHORT, max_num_batched_tokens=512, max_num_seqs=64)
FIFO = Policy(admission=Admission.RESERVE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pass:
    """What there was to see of one pass, once it was carried out. `num_blocks_of`: of each tenant."""

    ended_s: float
    num_blocks: int
    num_blocks_of: tuple[int, ...]
    num_waiting: int
    num_evicted: int
    num_prefill_tokens: int
    num_decode_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Story:
    """A trace as it was played: when each was admitted, its passes, and the time between the tokens of an answer."""

    executor: ArithmeticExecutor
    trace: Trace
    waits_s: dict[int, float] = field(default_factory=dict)
    passes: list[Pass] = field(default_factory=list)
    gaps_ms: list[float] = field(default_factory=list)

    @property
    def seconds(self) -> float:
        return self.passes[-1].ended_s


@cache
def loaded(limits: ExecutorLimits, load: float = LOAD) -> Trace:
    """The excerpt at a load. Priorities are made up: every fifth request has 2, a third of the others 0, the rest 1."""
    trace = read_trace(TRACES / "azure_2023_conv_code.csv", NUM_REQUESTS)
    trace = tuple(replace(r, priority=2 if r.id % 5 == 0 else int(r.id % 3 > 0)) for r in trace)
    return at_load(trace, load, executor_with(limits, FIFO))


@cache
def story(trace: Trace, limits: ExecutorLimits, policy: Policy) -> Story:
    """Play a trace and watch."""
    executor = executor_with(limits, policy)
    seen, start_us = Story(executor=executor, trace=trace), executor.now_us
    num_outputs: Counter[int] = Counter()
    last_token_us: dict[int, int] = {}
    for plan in played(executor, trace):
        known = executor.requests | executor.finished
        for id in plan.admit.id.tolist():
            waited_us = executor.began_us[-1] - known[id].arrival_time_us
            seen.waits_s.setdefault(id, waited_us / 1e6)
        for id in plan.scheduled.id.tolist():
            if known[id].num_output_tokens > num_outputs[id]:
                num_outputs[id] = known[id].num_output_tokens
                if id in last_token_us:
                    seen.gaps_ms.append((executor.now_us - last_token_us[id]) / 1e3)
                last_token_us[id] = executor.now_us
        statuses = Counter(request.status for request in executor.requests.values())
        seen.passes.append(
            Pass(
                ended_s=(executor.now_us - start_us) / 1e6,
                num_blocks=executor.limits.num_blocks - executor.num_free_blocks,
                num_blocks_of=tuple(_num_blocks_held(executor, tenant) for tenant in (0, 1)),
                num_waiting=statuses[RequestStatus.WAITING],
                num_evicted=len(plan.evict.id),
                num_prefill_tokens=plan.composition.num_prefill_tokens,
                num_decode_tokens=plan.composition.num_decode_tokens,
            )
        )
    return seen


def _num_blocks_held(executor: ArithmeticExecutor, tenant: int) -> int:
    return sum(
        request.num_blocks
        for request in executor.requests.values()
        if request.tenant == tenant and request.status is RequestStatus.RUNNING
    )


def executor_with(limits: ExecutorLimits, policy: Policy) -> ArithmeticExecutor:
    return ArithmeticExecutor(
        limits=limits, policy=policy, latency=LATENCY, iteration_us=None, weights=(1.0, 1.0), verify_every=50
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Beginnings:
    """System prompts, one of which each request begins with, and those that each executor still has in its cache.

    The trace publishes no text, so who begins alike is made up: every `num_prompts`-th request.
    """

    num_prompts: int
    num_tokens: int
    num_kept: int
    kept: tuple[OrderedDict[int, None], ...] = field(default_factory=lambda: tuple(OrderedDict() for _ in range(4)))

    def num_cached(self, request: TraceRequest, number: int) -> int:
        """Tokens that executor `number` need not compute; of a prompt all of which is cached one is left to compute."""
        if request.id % self.num_prompts not in self.kept[number]:
            return 0
        return min(self.num_tokens, request.num_prompt_tokens - 1) // BLOCK_SIZE * BLOCK_SIZE

    def use(self, request: TraceRequest, number: int) -> None:
        """The prompt of a request is the last used on that executor from now on."""
        kept = self.kept[number]
        kept[request.id % self.num_prompts] = None
        kept.move_to_end(request.id % self.num_prompts)
        while len(kept) > self.num_kept:
            kept.popitem(last=False)


NO_BEGINNINGS = Beginnings(num_prompts=1, num_tokens=0, num_kept=0)


def placed(
    trace: Trace, limits: ExecutorLimits, choice: Placement, beginnings: Beginnings = NO_BEGINNINGS
) -> tuple[list[float], list[list[float]], int]:
    """Play a trace on four executors: the seconds at which requests are placed, and then the thousand tokens that each
    executor has to compute yet; and the prompt tokens that caches saved in all.
    """
    executors = [executor_with(limits, FIFO) for _ in range(4)]
    num_saved = 0
    start_us, period_us = executors[0].now_us, 250_000
    times: list[float] = []
    to_go: list[list[float]] = []
    for now_us in range(0, trace[-1].arrival_us + 8 * period_us, period_us):
        for executor in executors:
            while executor.requests and executor.now_us < start_us + now_us:
                executor.step()
            executor.now_us = max(executor.now_us, start_us + now_us)
        come = [request for request in trace if now_us - period_us < request.arrival_us <= now_us]
        if come:
            for request, number in zip(come, _chosen(executors, come, choice, beginnings), strict=True):
                num_cached = beginnings.num_cached(request, number)
                beginnings.use(request, number)
                num_saved += num_cached
                executors[number].submit(
                    request.id,
                    prompt=request.num_prompt_tokens,
                    new=request.num_output_tokens,
                    num_computed_tokens=num_cached,
                    num_blocks=num_cached // BLOCK_SIZE,
                )
        times.append(now_us / 1e6)
        to_go.append([_tokens_to_go(executor) / 1e3 for executor in executors])
    return times, to_go, num_saved


def _chosen(
    executors: list[ArithmeticExecutor], come: list[TraceRequest], choice: Placement, beginnings: Beginnings
) -> list[int]:
    """The number of the executor that each is placed on."""
    states = tuple(replace(e.state(), executor_id=str(number), tenants=()) for number, e in enumerate(executors))
    cluster = ClusterState(now_us=executors[0].now_us, executors=states)
    columns = {
        "id": [request.id for request in come],
        "status": [RequestStatus.WAITING.value] * len(come),
        "arrival_time_us": [request.arrival_us for request in come],
        "num_prompt_tokens": [request.num_prompt_tokens for request in come],
        "max_output_tokens": [request.num_output_tokens for request in come],
    }
    requests = Requests.from_columns(len(come), columns)
    numbers_of_all = range(len(executors))
    cached = np.array([[beginnings.num_cached(request, number) for number in numbers_of_all] for request in come])
    assignments = place(cluster, requests, cached, choice, 0, frozenset())
    numbers = {assignment.id: int(assignment.executor_id) for assignment in assignments}
    return [numbers[request.id] for request in come]


def _tokens_to_go(executor: ArithmeticExecutor) -> int:
    return sum(
        request.num_prompt_tokens + request.max_output_tokens - 1 - request.num_computed_tokens
        for request in executor.requests.values()
    )


def burst(policy: Policy, num_requests: int, num_common_tokens: int, num_own_tokens: int) -> list[PassRecord]:
    """The passes of requests of one long beginning that come at once, on the real engine and its real books, over a
    device that knows no model.
    """
    limits = limits_of(max_num_batched_tokens=4096, num_blocks=2048, max_num_seqs=64, max_model_len=8192)
    served = engine_on_tokens(limits, planner=LocalPlanner(policy))
    for number in range(num_requests):
        own = [number * num_own_tokens + i for i in range(num_own_tokens)]
        served.submit([*(i % 199 for i in range(num_common_tokens)), *own], 2)
    served.run()
    return served.heard.passes
