"""Requests that are cancelled, or whose time is over, end at once and give all back, wherever they stand."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from executor_service.engine.books import Status
from executor_service.engine.plan import EvictMode
from executor_service.engine.planning import Overlap
from executor_service.engine.request import EndCause
from support.engine import EngineUnderTest, deadline_in, engine_on_tokens, limits_of
from support.planners import RECOMPUTE, EvictAtLength, LocalPlanner
from support.three_requests import NEW, PROMPT_OF, assert_served, submit_all
from support.token_runner import true_tokens


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
