"""With prompts that share prefixes, over a cache that forgets nothing: whoever is held gets what it waits for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from random import Random

import pytest

from scheduler_service.core.executor_plan import ExecutorPlan
from scheduler_service.core.plan import plan_executor
from scheduler_service.core.policy import BatchComposition, Policy
from scheduler_service.core.state import ExecutorState, RequestStatus
from scheduler_service.core.validate import validate
from scheduler_service.core.verify import verify
from support.random_states import random_policy
from support.states import TENANTS, Row, cluster_of, executor_of

BLOCK_SIZE = 4
Prompt = tuple[int, ...]


@dataclass
class Request:
    id: int
    prompt: Prompt
    tenant: int
    priority: int
    status: RequestStatus = RequestStatus.WAITING
    num_computed: int = 0
    num_output: int = 0
    num_preemptions: int = 0


@dataclass
class CachingExecutor:
    """Every answer is three tokens. `num_computed[prefix]`: how often the block that ends that prefix was computed."""

    limits: dict[str, int]
    policy: Policy
    requests: dict[int, Request] = field(default_factory=dict)
    num_computed: Counter[Prompt] = field(default_factory=Counter)
    cached: set[Prompt] = field(default_factory=set)
    iteration: int = 0

    def state(self) -> ExecutorState:
        rows = [self._row(request) for request in self.requests.values()]
        sizes = {"num_blocks": 10_000, "block_size": BLOCK_SIZE, **self.limits}
        return executor_of(*rows, iteration=self.iteration, tenants=TENANTS, **sizes)

    def step(self) -> None:
        self.iteration += 1
        state = self.state()
        validate(cluster_of(state))
        plan = plan_executor(state, self.policy)
        assert verify(state, plan, self.policy) == ()
        assert len(plan.scheduled.id) > 0, "a pass ran nobody"
        self._apply(plan)

    def _row(self, request: Request) -> Row:
        waits = request.status is RequestStatus.WAITING
        num_computed = self._num_cached(request) if waits else request.num_computed
        num_blocks = -(-num_computed // BLOCK_SIZE)
        block = request.prompt[: (num_computed // BLOCK_SIZE + 1) * BLOCK_SIZE]
        names_block = len(block) % BLOCK_SIZE == 0 and num_computed < len(block) and block not in self.cached
        return {
            "id": request.id,
            "status": request.status,
            "arrival_time_us": request.id,
            "priority": request.priority,
            "tenant": request.tenant,
            "num_prompt_tokens": len(request.prompt),
            "num_output_tokens": request.num_output,
            "num_computed_tokens": num_computed,
            "max_output_tokens": 3,
            "num_blocks": num_blocks,
            "num_shared_blocks": num_blocks if waits else 0,
            "num_preemptions": request.num_preemptions,
            "next_block_hash": hash(block) if names_block else 0,
        }

    def _num_cached(self, request: Request) -> int:
        ends = range(BLOCK_SIZE, len(request.prompt) + 1, BLOCK_SIZE)
        cached = [end for end in ends if request.prompt[:end] in self.cached]
        return min(max(cached, default=0), len(request.prompt) - 1)

    def _apply(self, plan: ExecutorPlan) -> None:
        for id in plan.evict.id.tolist():
            request = self.requests[id]
            request.status, request.num_preemptions = RequestStatus.WAITING, request.num_preemptions + 1
        for id in plan.admit.id.tolist():
            request = self.requests[id]
            request.status, request.num_computed = RequestStatus.RUNNING, self._num_cached(request)
        computed: set[Prompt] = set()
        for id, num_tokens in zip(plan.scheduled.id.tolist(), plan.scheduled.num_tokens.tolist(), strict=True):
            request = self.requests[id]
            computed |= set(self._blocks(request, num_tokens))
            request.num_computed += num_tokens
            if request.num_computed == len(request.prompt) + request.num_output:
                request.num_output += 1
            if request.num_output == 3:
                del self.requests[id]
        self.cached |= computed

    def _blocks(self, request: Request, num_tokens: int) -> Iterator[Prompt]:
        """Those that end in the pass. One is counted for each request that computes its first token."""
        before, after = request.num_computed, request.num_computed + num_tokens
        for end in range(BLOCK_SIZE, len(request.prompt) + 1, BLOCK_SIZE):
            if before <= end - BLOCK_SIZE < after:
                self.num_computed[request.prompt[:end]] += 1
            if before < end <= after:
                yield request.prompt[:end]


def crowd(seed: int, policy: Policy) -> CachingExecutor:
    """Thirty requests whose prompts are of two tokens, so that most share much."""
    random = Random(seed)
    limits = {
        "max_num_seqs": random.choice([1, 3, 8, 30]),
        "max_num_batched_tokens": random.choice([3, 16, 64, 256]),
    }
    executor = CachingExecutor(limits=limits, policy=policy)
    trunk = [random.choice([0, 0, 0, 1]) for _ in range(40)]
    for id in range(1, 31):
        kept = trunk[: random.choice([0, 8, 17, 30, 40])]
        prompt = tuple(kept + [random.randint(0, 1) for _ in range(random.randint(1, 12))])
        executor.requests[id] = Request(id, prompt, random.randrange(len(TENANTS)), random.choice([0, 0, 4]))
    return executor


def play(executor: CachingExecutor, random: Random) -> None:
    """All to their ends, half of them arriving on the way."""
    late = [executor.requests.pop(id) for id in list(executor.requests) if random.random() < 0.5]
    while executor.requests or late:
        if late and (not executor.requests or random.random() < 0.3):
            request = late.pop(0)
            executor.requests[request.id] = request
        executor.step()
        assert executor.iteration < 3000


@pytest.mark.parametrize("seed", range(40))
def test_no_block_is_computed_twice(seed: int) -> None:
    held, free = (crowd(seed, Policy(hold_for_shared_prefix=hold, chunk_size_tokens=7)) for hold in (True, False))
    play(held, Random(seed))
    play(free, Random(seed))
    assert set(held.num_computed.values()) == {1}
    assert held.num_computed.keys() == free.num_computed.keys()


def test_without_the_hold_blocks_are_computed_twice() -> None:
    counts = Counter[int]()
    for seed in range(40):
        executor = crowd(seed, Policy(chunk_size_tokens=7))
        play(executor, Random(seed))
        counts.update(executor.num_computed.values())
    assert sum(count for times, count in counts.items() if times > 1) > 100


@pytest.mark.parametrize("seed", range(80))
def test_everyone_finishes_under_any_policy(seed: int) -> None:
    random = Random(seed)
    policy = replace(
        random_policy(random),
        hold_for_shared_prefix=True,
        max_num_waiting=None,
        max_num_waiting_per_tenant=None,
        reject_missed_deadlines=False,
    )
    play(crowd(seed, policy), random)


def test_the_policies_of_the_test_are_of_all_kinds() -> None:
    policies = [random_policy(Random(seed)) for seed in range(80)]
    assert {policy.batch_composition for policy in policies} == set(BatchComposition)
