"""An engine under all that can happen to it: each answer is the true one, each ending comes once, nothing is left over.

The device stores tokens (support/token_runner.py) and the scheduler is the real one. The harness checks the books after
every step.
"""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from executor_service.engine.books import Status
from executor_service.engine.limits import RequestTooLongError
from executor_service.engine.ngram import NO_LOOKUP, NgramLookup
from executor_service.engine.plan import EvictMode, Plan
from executor_service.engine.planner import PlanUnavailableError
from executor_service.engine.planning import Overlap
from executor_service.engine.request import EndCause, EndedEvent, FinishReason
from executor_service.engine.snapshot import Snapshot
from executor_service.kv.prefix_cache import PrefixScope
from executor_service.model.batch import RaggedBatch
from executor_service.model.runner import ExecuteResult
from executor_service.sampling.sampler import SamplingBatch
from scheduler_service.core.policy import Eviction, Policy
from support.depth import num_examples
from support.engine import EngineUnderTest, limits_of
from support.planners import LocalPlanner, evicting, row_of
from support.token_runner import (
    VOCAB_SIZE,
    BlockIds,
    TokenCache,
    TokenRunner,
    next_token,
    repeating_token,
    true_tokens,
)


@dataclass
class Asked:
    """A request, and how it must end unless something comes between."""

    prompt: list[int]
    answer: list[int]
    finish_reason: FinishReason


# Without speculation; and with fewer drafts than a block has tokens, and with more.
LOOKUPS = (
    NO_LOOKUP,
    NgramLookup(max_num_drafts=2, min_ngram=1, max_ngram=2),
    NgramLookup(max_num_drafts=9, min_ngram=1, max_ngram=4),
)
TEXTS = ([1, 2, 3, 4, 5, 6, 7, 8] * 2, [1, 2, 3, 4] * 4)


@st.composite
def prompts(draw: st.DrawFn) -> list[int]:
    """The beginning of a known text, of none of its tokens to all, and what comes after it."""
    beginning = draw(st.sampled_from(TEXTS))[: draw(st.integers(0, 16))]
    return beginning + draw(st.lists(st.integers(0, VOCAB_SIZE - 1), min_size=0 if beginning else 1, max_size=6))


class MoodyDevice(TokenRunner):
    """Fails in the next pass if it is told to."""

    fails_next = False

    def execute(self, batch: RaggedBatch, sampling: SamplingBatch) -> ExecuteResult:
        if self.fails_next:
            self.fails_next = False
            raise MemoryError("out of memory")
        return super().execute(batch, sampling)


class MoodyCopies:
    """Fails in the next copy if it is told to."""

    fails_next = False

    def __init__(self, cache: TokenCache) -> None:
        self._cache = cache

    def copy_out(self, device_blocks: BlockIds, swap_blocks: BlockIds) -> None:
        self._fail()
        self._cache.copy_out(device_blocks, swap_blocks)

    def copy_in(self, swap_blocks: BlockIds, device_blocks: BlockIds) -> None:
        self._fail()
        self._cache.copy_in(swap_blocks, device_blocks)

    def copy_within(self, source: BlockIds, target: BlockIds) -> None:
        self._fail()
        self._cache.copy_within(source, target)

    def _fail(self) -> None:
        if self.fails_next:
            self.fails_next = False
            raise RuntimeError("copy failed")


class EngineMachine(RuleBasedStateMachine):
    @initialize(
        num_blocks=st.integers(2, 10),
        num_swap_blocks=st.integers(0, 8),
        max_num_batched_tokens=st.sampled_from([1, 3, 8, 24]),
        max_num_seqs=st.integers(1, 4),
        eviction=st.sampled_from([Eviction.SWAP, Eviction.RECOMPUTE]),
        chunk_size=st.sampled_from([1, 5, 512]),
        overlap=st.sampled_from(Overlap),
        prefix_scope=st.sampled_from([PrefixScope.TENANT, PrefixScope.SHARED, PrefixScope.OFF]),
        lookup=st.sampled_from(LOOKUPS),
    )
    def start(
        self,
        num_blocks: int,
        num_swap_blocks: int,
        max_num_batched_tokens: int,
        max_num_seqs: int,
        eviction: Eviction,
        chunk_size: int,
        overlap: Overlap,
        prefix_scope: PrefixScope,
        lookup: NgramLookup,
    ) -> None:
        limits = limits_of(
            block_size=4,
            num_blocks=num_blocks,
            num_swap_blocks=num_swap_blocks,
            max_num_batched_tokens=max_num_batched_tokens,
            max_num_seqs=max_num_seqs,
        )
        cache = TokenCache(num_blocks=num_blocks, num_swap_blocks=num_swap_blocks, block_size=4)
        self.speech = repeating_token if lookup.max_num_drafts else next_token
        self.device = MoodyDevice(cache, self.speech)
        planner = LocalPlanner(Policy(eviction=eviction, chunk_size_tokens=chunk_size), self.meddle)
        self.copies = MoodyCopies(cache)
        self.served = EngineUnderTest(
            limits=limits,
            runner=self.device,
            kv=self.copies,
            planner=planner,
            overlap=overlap,
            prefix_scope=prefix_scope,
            lookup=lookup,
        )
        self.asked: dict[int, Asked] = {}
        self.cancelled: set[int] = set()
        self.num_failing_passes = 0
        self.scheduler_is_down = False
        self.answers_are_stale = False
        self.to_evict: list[tuple[int, EvictMode]] = []

    def meddle(self, snapshot: Snapshot, plan: Plan) -> Plan:
        """What may come between the scheduler and the engine."""
        if self.scheduler_is_down:
            raise PlanUnavailableError("connection refused")
        if self.answers_are_stale:
            return Plan(iteration=snapshot.iteration - 1)
        pending, self.to_evict = self.to_evict, []
        for request_id, mode in pending:
            row = row_of(snapshot, request_id)
            if row >= 0 and snapshot.columns["status"][row] == Status.RUNNING:
                plan = evicting(plan, request_id, mode)
        return plan

    @rule(
        prompt=prompts(),
        new=st.integers(1, 12),
        stop_at=st.none() | st.integers(0, 11),
        tenant=st.sampled_from(["", "", "t"]),
        reuse_prefix=st.sampled_from([True, True, True, False]),
    )
    def submit(self, prompt: list[int], new: int, stop_at: int | None, tenant: str, reuse_prefix: bool) -> None:
        try:
            self.served.limits.max_output_tokens(num_prompt_tokens=len(prompt), requested=new)
        except RequestTooLongError:
            return
        answer = true_tokens(prompt, new, self.speech)
        stop_tokens = () if stop_at is None or stop_at >= new else (answer[stop_at],)
        reason = FinishReason.LENGTH
        if stop_tokens:
            answer = answer[: answer.index(stop_tokens[0]) + 1]
            reason = FinishReason.STOP
        request_id = self.served.submit(
            prompt, new, stop_token_ids=stop_tokens, tenant=tenant, reuse_prefix=reuse_prefix
        )
        self.asked[request_id] = Asked(prompt=prompt, answer=answer, finish_reason=reason)

    @rule(prompt=prompts(), new=st.integers(1, 12), count=st.integers(2, 4))
    def submit_samples(self, prompt: list[int], new: int, count: int) -> None:
        """Several answers to one prompt; the device chooses the same tokens for each."""
        try:
            self.served.limits.max_output_tokens(num_prompt_tokens=len(prompt), requested=new)
        except RequestTooLongError:
            return
        answer = true_tokens(prompt, new, self.speech)
        for request_id in self.served.submit_samples(prompt, new, count):
            self.asked[request_id] = Asked(prompt=prompt, answer=answer, finish_reason=FinishReason.LENGTH)

    @rule(count=st.integers(1, 6))
    def step(self, count: int) -> None:
        for _ in range(count):
            self.served.step()

    @precondition(lambda self: self.asked)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        request_id = data.draw(st.sampled_from(sorted(self.asked)))
        self.served.engine.cancel(request_id)
        self.cancelled.add(request_id)

    @precondition(lambda self: self.asked)
    @rule(data=st.data(), mode=st.sampled_from(EvictMode))
    def evict(self, data: st.DataObject, mode: EvictMode) -> None:
        """In the next plan; a swap without room makes that plan one to refuse."""
        self.to_evict.append((data.draw(st.sampled_from(sorted(self.asked))), mode))

    @rule(is_down=st.booleans())
    def lose_or_find_the_scheduler(self, is_down: bool) -> None:
        self.scheduler_is_down = is_down

    @rule(are_stale=st.booleans())
    def answer_late_or_in_time(self, are_stale: bool) -> None:
        self.answers_are_stale = are_stale

    @precondition(lambda self: self.num_failing_passes < 2)
    @rule()
    def fail_in_the_next_pass(self) -> None:
        self.num_failing_passes += not self.device.fails_next
        self.device.fails_next = True

    @rule()
    def fail_in_the_next_copy(self) -> None:
        self.copies.fails_next = True

    @invariant()
    def answers_are_true_so_far(self) -> None:
        for request_id, asked in self.asked.items():
            tokens = self.served.tokens(request_id)
            assert tokens == asked.answer[: len(tokens)]

    def teardown(self) -> None:
        if not hasattr(self, "served"):
            return
        self.scheduler_is_down = self.answers_are_stale = False
        self.device.fails_next = self.copies.fails_next = False
        self.to_evict = []
        self.served.run()
        assert self.served.is_empty
        for request_id, asked in self.asked.items():
            ending = self.served.ending(request_id)
            if isinstance(ending, EndedEvent):
                assert ending.cause in (EndCause.CANCELLED, EndCause.FAILED)
                assert ending.cause is EndCause.FAILED or request_id in self.cancelled
                assert ending.cause is EndCause.CANCELLED or self.num_failing_passes
            else:
                assert self.served.tokens(request_id) == asked.answer
                assert ending.finish_reason is asked.finish_reason
        counters = self.served.engine.counters
        ended = counters.num_finished + counters.num_cancelled + counters.num_failed + counters.num_rejected
        assert counters.num_accepted == ended == len(self.asked)
        assert counters.num_rejected == 0


EngineMachine.TestCase.settings = settings(max_examples=num_examples(60), stateful_step_count=40)
test_engine = EngineMachine.TestCase


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_a_hundred_thousand_operations() -> None:
    """Others in each run; a failure is printed as the steps that lead to it."""
    run_state_machine_as_test(
        EngineMachine,
        settings=settings(
            max_examples=1000, stateful_step_count=100, derandomize=False, suppress_health_check=list(HealthCheck)
        ),
    )
