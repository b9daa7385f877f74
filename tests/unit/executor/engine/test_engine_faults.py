"""One request's fault does not reach another, a scheduler's fault reaches nobody, and all end exactly once.

The harness checks the books after every step, and that nothing is told of a request that has ended.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest

from executor_service.engine.books import Status
from executor_service.engine.device import DeviceLostError
from executor_service.engine.inbox import EngineClosedError, QueueFullError
from executor_service.engine.plan import EvictMode, Plan, PlanSource
from executor_service.engine.planner import PlanUnavailableError
from executor_service.engine.planning import Overlap
from executor_service.engine.request import EndCause
from executor_service.engine.snapshot import Snapshot
from executor_service.model.batch import RaggedBatch
from executor_service.model.runner import ExecuteResult
from executor_service.sampling.sampler import NOT_SAMPLED, SamplingBatch
from support.engine import EngineUnderTest, Spelling, deadline_in, engine_on_tokens, limits_of
from support.planners import RECOMPUTE, SWAP, Alteration, EvictAtLength, LocalPlanner, Outage
from support.token_runner import BlockIds, TokenCache, TokenRunner, true_tokens

PROMPT_OF = {1: [1, 2, 3], 2: [4, 5, 6, 7], 3: list(range(30))}
NEW = 20


def submit_all(served: EngineUnderTest) -> None:
    for request_id, prompt in PROMPT_OF.items():
        assert served.submit(prompt, NEW) == request_id


def assert_served(served: EngineUnderTest, *request_ids: int) -> None:
    for request_id in request_ids:
        assert served.tokens(request_id) == true_tokens(PROMPT_OF[request_id], NEW)
        assert served.finish(request_id).usage.num_output_tokens == NEW


class Stubborn(Spelling):
    """Cannot spell the token that comes after so many."""

    def __init__(self, num_spelled: int) -> None:
        super().__init__()
        self._left = num_spelled

    def push(self, token_ids: Sequence[int]) -> str:
        self._left -= 1
        if self._left < 0:
            raise ValueError("no such token")
        return super().push(token_ids)


class FaultyDevice(TokenRunner):
    """Fails in some passes as a whole, or gives logits that are no numbers for some rows of a pass."""

    def __init__(self, limits_blocks: int, num_swap_blocks: int = 0) -> None:
        self.cache = TokenCache(num_blocks=limits_blocks, num_swap_blocks=num_swap_blocks, block_size=16)
        super().__init__(self.cache)
        self.num_passes = 0
        self.failing_passes: set[int] = set()
        self.broken_rows: dict[int, int] = {}  # pass -> row

    def execute(self, batch: RaggedBatch, sampling: SamplingBatch) -> ExecuteResult:
        self.num_passes += 1
        if self.num_passes in self.failing_passes:
            raise MemoryError("out of memory")
        result = super().execute(batch, sampling)
        if self.num_passes in self.broken_rows:
            row = self.broken_rows[self.num_passes]
            result.next_token_ids[row], result.non_finite[row] = NOT_SAMPLED, True
        return result


class FailingCopies:
    """A cache whose copies in one direction fail, so many times."""

    def __init__(self, cache: TokenCache, direction: str, num_failures: int) -> None:
        self._cache = cache
        self._direction = direction
        self._num_failures = num_failures

    def copy_out(self, device_blocks: BlockIds, swap_blocks: BlockIds) -> None:
        self._fail("out")
        self._cache.copy_out(device_blocks, swap_blocks)

    def copy_in(self, swap_blocks: BlockIds, device_blocks: BlockIds) -> None:
        self._fail("in")
        self._cache.copy_in(swap_blocks, device_blocks)

    def copy_within(self, source: BlockIds, target: BlockIds) -> None:
        self._fail("within")
        self._cache.copy_within(source, target)

    def _fail(self, direction: str) -> None:
        if direction == self._direction and self._num_failures:
            self._num_failures -= 1
            raise RuntimeError("copy failed")


# A request's own faults


def test_a_detokenizer_that_raises_ends_its_request_alone() -> None:
    served = engine_on_tokens(limits_of())
    submit_all(served)
    faulty = served.submit([9], NEW, detokenizer=Stubborn(5))
    served.run()
    assert served.end(faulty).cause is EndCause.FAILED
    assert len(served.tokens(faulty)) == 5
    assert [ids for ids, _ in served.heard.failures] == [[f"request-{faulty}"]]
    assert_served(served, 1, 2, 3)
    assert served.engine.counters.num_failed == 1


def test_a_row_that_is_no_number_ends_its_request_alone() -> None:
    device = FaultyDevice(8)
    device.broken_rows = {5: 1}
    served = EngineUnderTest(limits=limits_of(), runner=device, kv=device.cache)
    submit_all(served)
    served.run()
    assert served.end(2).cause is EndCause.INVALID_LOGITS
    assert len(served.tokens(2)) == 4
    assert_served(served, 1, 3)


# The device's faults


@pytest.mark.parametrize("overlap", Overlap)
def test_a_pass_that_fails_ends_those_in_it_and_the_loop_goes_on(overlap: Overlap) -> None:
    device = FaultyDevice(8)
    device.failing_passes = {3}
    limits = limits_of(max_num_seqs=2)
    served = EngineUnderTest(limits=limits, runner=device, kv=device.cache, overlap=overlap)
    submit_all(served)
    served.run()
    for request_id in (1, 2):
        assert served.end(request_id).cause is EndCause.FAILED
        assert len(served.tokens(request_id)) == 2
    assert_served(served, 3)
    assert [ids for ids, _ in served.heard.failures] == [["request-1", "request-2"]]
    assert served.engine.counters.num_refused_plans == 0


class LostDevice(TokenRunner):
    """Is gone: neither a pass nor a copy can be made."""

    def execute(self, batch: RaggedBatch, sampling: SamplingBatch) -> ExecuteResult:
        raise DeviceLostError("rank 1 is gone")

    def copy_out(self, device_blocks: BlockIds, swap_blocks: BlockIds) -> None:
        raise DeviceLostError("rank 1 is gone")

    copy_in = copy_within = copy_out


def test_a_device_that_is_lost_ends_the_loop_and_no_request_in_silence() -> None:
    """Whoever runs the loop hears of it, and ends what is left: see `Server`."""
    cache = TokenCache(num_blocks=8, num_swap_blocks=8, block_size=16)
    evict = EvictAtLength(request_id=1, length=5, mode=EvictMode.SWAP)
    for runner, kv in ((LostDevice(cache), cache), (TokenRunner(cache), LostDevice(cache))):
        served = EngineUnderTest(
            limits=limits_of(num_swap_blocks=8), runner=runner, kv=kv, planner=LocalPlanner(RECOMPUTE, evict)
        )
        submit_all(served)
        with pytest.raises(DeviceLostError):
            served.engine.run()
        assert not served.heard.failures
        assert not served.heard.failed_copies
        assert len(served.books) == len(PROMPT_OF)
    assert evict.done


@pytest.mark.parametrize("overlap", Overlap)
@pytest.mark.parametrize("num_failures", [1, 1000])
@pytest.mark.parametrize("direction", ["out", "in"])
def test_case_23_where_a_copy_fails_the_request_is_computed_again(
    direction: str, num_failures: int, overlap: Overlap
) -> None:
    """Swap is the only eviction, and others run beside it. A copy is never tried twice for one eviction."""
    device = FaultyDevice(4, num_swap_blocks=4)
    limits = limits_of(num_blocks=4, num_swap_blocks=4)
    served = EngineUnderTest(
        limits=limits,
        runner=device,
        kv=FailingCopies(device.cache, direction, num_failures),
        planner=LocalPlanner(replace(SWAP, watermark=0.0)),
        overlap=overlap,
    )
    ids = [served.submit([request_id] * 14, 30) for request_id in (1, 2, 3)]
    served.step()
    for _ in range(200):
        served.step()
    assert not len(served.books)
    assert served.is_empty
    for request_id in ids:
        assert served.tokens(request_id) == true_tokens([request_id] * 14, 30)
    counters = served.engine.counters
    assert 1 <= counters.num_swap_failures == len(served.heard.failed_copies) <= num_failures
    assert counters.num_evicted_swap >= counters.num_swap_failures
    assert (counters.num_failed, served.heard.failures) == (0, [])


def test_a_failed_pass_teaches_nothing_about_the_cost_of_passes() -> None:
    device = FaultyDevice(8)
    device.failing_passes = set(range(1, 100))
    served = EngineUnderTest(limits=limits_of(), runner=device, kv=device.cache)
    for _ in range(40):
        served.submit([1], 2)
        served.step()
    assert served.engine.snapshot().latency is None
    assert served.engine.counters.num_iterations == served.engine.counters.num_failed == 40


# The scheduler's faults


@pytest.mark.parametrize("overlap", Overlap)
def test_without_a_scheduler_those_that_run_finish_and_those_that_wait_go_on_later(overlap: Overlap) -> None:
    outage = Outage(first=4)
    limits = limits_of(max_num_seqs=2, num_blocks=4, num_swap_blocks=4)
    served = engine_on_tokens(limits, planner=LocalPlanner(SWAP, outage), overlap=overlap)
    submit_all(served)
    assert served.engine.planning_failure == ""
    for _ in range(50):
        served.step()
    assert_served(served, 1, 2)
    assert served.status(3) is Status.WAITING
    assert served.tokens(3) == []
    sources = {record.plan_source for record in served.heard.passes if record.iteration >= 4}
    assert sources == {PlanSource.SAFE}
    failure = "no scheduler answers: connection refused"
    assert (served.heard.outages[0], served.engine.planning_failure) == (failure, failure)
    outage.is_over = True
    while len(served.books):
        served.step()
    assert_served(served, 3)
    assert served.engine.planning_failure == ""
    iterations = [record.iteration for record in served.heard.passes]
    assert iterations == list(range(1, len(iterations) + 1))  # only passes are numbered, whatever lay between them
    assert served.is_empty


def test_an_outage_in_a_full_cache_finishes_all_that_ever_ran() -> None:
    """Safe plans evict and bring back by themselves."""
    limits = limits_of(num_blocks=6, num_swap_blocks=2)
    served = engine_on_tokens(limits, planner=LocalPlanner(SWAP, Outage(first=2)))
    prompts = [[seed] * 20 for seed in range(4)]
    ids = [served.submit(prompt, 60) for prompt in prompts]
    served.step()
    started = [id for id in ids if served.status(id) is Status.RUNNING]
    assert len(started) > 1
    for _ in range(500):
        served.step()
    for request_id in started:
        assert served.tokens(request_id) == true_tokens(prompts[request_id - 1], 60)
    assert all(served.status(id) is Status.WAITING for id in ids if id not in started)
    assert served.engine.counters.num_evicted_recompute > 0


def unknown_ids(snapshot: Snapshot, plan: Plan) -> Plan:
    return Plan(iteration=plan.iteration, scheduled=np.array([999]), num_tokens=np.array([1], dtype=np.int32))


def absurd_numbers(snapshot: Snapshot, plan: Plan) -> Plan:
    return Plan(
        iteration=plan.iteration,
        scheduled=plan.scheduled,
        num_tokens=np.full(len(plan.scheduled), 2**31 - 1, dtype=np.int32),
        admit=plan.admit,
        resume=plan.resume,
    )


def another_iteration(snapshot: Snapshot, plan: Plan) -> Plan:
    return Plan(iteration=-5)


@pytest.mark.parametrize("garbage", [unknown_ids, absurd_numbers, another_iteration])
def test_a_scheduler_that_always_answers_garbage_keeps_nobody_from_finishing(garbage: Alteration) -> None:
    spoil_from_3: Alteration = lambda snapshot, plan: plan if snapshot.iteration < 3 else garbage(snapshot, plan)  # noqa: E731
    served = engine_on_tokens(limits_of(), planner=LocalPlanner(RECOMPUTE, spoil_from_3))
    submit_all(served)
    for _ in range(2):
        served.step()
    late = served.submit([1], 2)
    for _ in range(60):
        served.step()
    assert_served(served, 1, 2, 3)
    assert served.status(late) is Status.WAITING
    assert served.engine.counters.num_refused_plans >= NEW - 2
    served.engine.cancel(late)
    served.run()


def test_an_empty_plan_loses_nobody() -> None:
    empty_plans = iter(range(2))

    def nothing_twice(snapshot: Snapshot, plan: Plan) -> Plan:
        is_empty = snapshot.iteration == 3 and next(empty_plans, None) is not None
        return Plan(iteration=plan.iteration) if is_empty else plan

    served = engine_on_tokens(limits_of(), planner=LocalPlanner(RECOMPUTE, nothing_twice))
    submit_all(served)
    ran = [served.step() for _ in range(5)]
    assert ran == [True, True, False, False, True]
    served.run()
    assert_served(served, 1, 2, 3)


# Endings from outside


def until_waiting(served: EngineUnderTest, request_id: int) -> None:
    served.submit([1], 30)
    served.step()
    assert served.tokens(request_id) == []


def until_prefill(served: EngineUnderTest, request_id: int) -> None:
    served.step()
    assert served.status(request_id) is Status.RUNNING
    assert served.tokens(request_id) == []


def until_decode(served: EngineUnderTest, request_id: int) -> None:
    served.step_until_tokens(request_id, 3)


def until_swapped(served: EngineUnderTest, request_id: int) -> None:
    while request_id not in served.books or served.status(request_id) is not Status.SWAPPED:
        served.step()


MOMENTS = [until_prefill, until_decode, until_swapped]


def engine_at(moment: Callable[[EngineUnderTest, int], None], overlap: Overlap) -> tuple[EngineUnderTest, int]:
    """An engine whose first request, of 30 prompt tokens, stands at that moment, with another beside it."""
    evict = EvictAtLength(request_id=1, length=34, mode=EvictMode.SWAP)
    limits = limits_of(max_num_batched_tokens=16, num_swap_blocks=4)
    served = engine_on_tokens(limits, planner=LocalPlanner(RECOMPUTE, evict), overlap=overlap)
    request_id = served.submit(PROMPT_OF[3], NEW)
    served.submit(PROMPT_OF[2], NEW)
    moment(served, request_id)
    return served, request_id


@pytest.mark.parametrize("overlap", Overlap)
@pytest.mark.parametrize("moment", MOMENTS)
def test_a_cancelled_request_frees_all_it_holds_in_the_same_iteration(
    moment: Callable[[EngineUnderTest, int], None], overlap: Overlap
) -> None:
    served, request_id = engine_at(moment, overlap)
    before = len(served.tokens(request_id))
    served.engine.cancel(request_id)
    served.step()
    assert served.end(request_id).cause is EndCause.CANCELLED
    assert len(served.tokens(request_id)) == before
    assert request_id not in served.books
    assert served.num_held_blocks == int(served.books["num_blocks"].sum())
    assert served.books.swap_space.num_free == 4
    served.run()
    assert served.tokens(2) == true_tokens(PROMPT_OF[2], NEW)
    assert served.engine.counters.num_refused_plans == 0
    assert served.engine.counters.num_cancelled == 1


def test_a_cancelled_request_that_waits_ends_too() -> None:
    served = engine_on_tokens(limits_of(max_num_seqs=1))
    submit_all(served)
    served.step()
    served.engine.cancel(2)
    served.step()
    assert served.end(2).cause is EndCause.CANCELLED
    served.run()
    assert_served(served, 1, 3)


def test_a_request_cancelled_before_it_was_looked_at_ends_at_once() -> None:
    served = engine_on_tokens(limits_of())
    request_id = served.submit([1], 5)
    served.engine.cancel(request_id)
    assert not served.step()
    assert served.end(request_id).cause is EndCause.CANCELLED
    assert served.is_empty


def test_cancelling_what_has_ended_or_never_was_does_nothing() -> None:
    served = engine_on_tokens(limits_of())
    submit_all(served)
    served.run()
    for request_id in (1, 2, 3, 77):
        served.engine.cancel(request_id)
    served.step()
    assert_served(served, 1, 2, 3)
    assert served.engine.counters.num_cancelled == 0


def test_case_34_a_deadline_in_the_queue_costs_nothing() -> None:
    served = engine_on_tokens(limits_of(max_num_seqs=1))
    served.submit(PROMPT_OF[1], NEW)
    late = served.submit(PROMPT_OF[2], NEW, deadline_us=deadline_in(-1))
    served.run()
    assert served.end(late).cause is EndCause.DEADLINE
    assert served.tokens(late) == []
    assert_served(served, 1)
    assert served.engine.counters.num_prefill_tokens == 3


@pytest.mark.parametrize("moment", MOMENTS)
def test_case_34_a_deadline_while_running_frees_all_in_that_iteration(
    moment: Callable[[EngineUnderTest, int], None],
) -> None:
    served, request_id = engine_at(moment, Overlap.ON)
    served.books["deadline_us"][served.books.rows_of([request_id])] = deadline_in(-1)
    served.step()
    assert served.end(request_id).cause is EndCause.DEADLINE
    assert served.books.swap_space.num_free == 4
    served.run()
    assert served.tokens(2) == true_tokens(PROMPT_OF[2], NEW)
    assert served.engine.counters.num_expired == 1


def test_a_deadline_far_away_changes_nothing() -> None:
    served = engine_on_tokens(limits_of())
    served.submit(PROMPT_OF[1], NEW, deadline_us=deadline_in(3600))
    served.run()
    assert_served(served, 1)


# The whole loop, on a thread


def started(served: EngineUnderTest) -> threading.Thread:
    thread = threading.Thread(target=served.engine.run)
    thread.start()
    return thread


def test_the_loop_serves_rests_serves_again_and_stops() -> None:
    served = engine_on_tokens(limits_of())
    thread = started(served)
    for _ in range(2):
        done = threading.Event()
        served.submit(PROMPT_OF[1], NEW, detokenizer=Announcing(done, after=NEW))
        assert done.wait(timeout=30)
    served.engine.inbox.close()
    thread.join(timeout=30)
    assert not thread.is_alive()
    assert served.is_empty
    assert served.tokens(1) == served.tokens(2) == true_tokens(PROMPT_OF[1], NEW)
    with pytest.raises(EngineClosedError):
        served.submit([1], 1)


def test_closing_ends_what_is_left() -> None:
    def never(snapshot: Snapshot, plan: Plan) -> Plan:
        raise PlanUnavailableError("nobody")

    served = engine_on_tokens(limits_of(), planner=LocalPlanner(RECOMPUTE, never))
    thread = started(served)
    submit_all(served)
    served.engine.inbox.close()
    thread.join(timeout=30)
    assert not thread.is_alive()
    assert [served.end(request_id).cause for request_id in PROMPT_OF] == [EndCause.SHUT_DOWN] * 3
    assert served.is_empty


def test_a_full_queue_refuses_and_keeps_no_trace() -> None:
    served = engine_on_tokens(limits_of(max_num_seqs=1, max_num_waiting=1))
    served.submit(PROMPT_OF[1], NEW)
    served.step()
    served.submit(PROMPT_OF[2], NEW)
    with pytest.raises(QueueFullError):
        served.submit(PROMPT_OF[3], NEW)
    served.run()
    assert_served(served, 1, 2)
    assert 3 not in served.events
    assert served.engine.counters.num_accepted == 2
    served.submit(PROMPT_OF[1], NEW)
    served.run()
    assert served.tokens(4) == true_tokens(PROMPT_OF[1], NEW)


class Announcing(Spelling):
    """Tells when it has seen so many tokens."""

    def __init__(self, done: threading.Event, after: int) -> None:
        super().__init__()
        self._done, self._left = done, after

    def push(self, token_ids: Sequence[int]) -> str:
        self._left -= len(token_ids)
        if self._left == 0:
            self._done.set()
        return super().push(token_ids)
