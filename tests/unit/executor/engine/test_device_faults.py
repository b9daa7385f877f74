"""A pass or a copy that fails costs those in it at most, and the loop goes on; a device that is gone ends it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from executor_service.engine.device import DeviceLostError
from executor_service.engine.plan import EvictMode
from executor_service.engine.planning import Overlap
from executor_service.engine.request import EndCause
from executor_service.model.batch import RaggedBatch
from executor_service.model.runner import ExecuteResult
from executor_service.sampling.sampler import SamplingBatch
from support.engine import EngineUnderTest, limits_of
from support.faulty_device import FaultyDevice
from support.planners import RECOMPUTE, SWAP, EvictAtLength, LocalPlanner
from support.three_requests import PROMPT_OF, assert_served, submit_all
from support.token_runner import BlockIds, TokenCache, TokenRunner, true_tokens


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
