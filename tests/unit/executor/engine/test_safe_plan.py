"""The safe plan finishes what has begun and starts nothing."""

from __future__ import annotations

from dataclasses import replace

import pytest

from executor_service.engine.apply import apply, check
from executor_service.engine.books import Books
from executor_service.engine.plan import EvictMode, Plan
from executor_service.engine.safe_plan import make_safe_plan
from support.books import Standing, books_with, decoding, evicted, prefilling, swapped, waiting
from support.engine import limits_of


def safe_plan(books: Books) -> Plan:
    """The safe plan, which must hold against the books that it was made from."""
    plan = make_safe_plan(books)
    check(plan, books, ended=frozenset())
    return plan


def scheduled(plan: Plan) -> dict[int, int]:
    return dict(zip(plan.scheduled.tolist(), plan.num_tokens.tolist(), strict=True))


def test_nobody_new_is_admitted() -> None:
    plan = safe_plan(books_with(limits_of(), decoding(1, 20), waiting(2)))
    assert scheduled(plan) == {1: 1}
    assert len(plan.admit) == 0


def test_without_anybody_who_ran_it_is_empty() -> None:
    assert scheduled(safe_plan(books_with(limits_of(), waiting(1), waiting(2)))) == {}
    assert scheduled(safe_plan(books_with(limits_of()))) == {}


def test_all_decode_while_blocks_reach() -> None:
    plan = safe_plan(books_with(limits_of(), decoding(1, 20), decoding(2, 32), decoding(3, 16)))
    assert scheduled(plan) == {1: 1, 2: 1, 3: 1}


def test_decodes_without_a_free_block_wait_and_the_others_go_on() -> None:
    books = books_with(limits_of(num_blocks=5), decoding(1, 32), decoding(2, 20), decoding(3, 16))
    plan = safe_plan(books)
    assert scheduled(plan) == {2: 1}
    assert len(plan.evict) == 0


def test_free_blocks_go_to_those_who_waited_longest() -> None:
    books = books_with(limits_of(num_blocks=4), decoding(1, 32, last_run_iteration=9), decoding(2, 16))
    assert scheduled(safe_plan(books)) == {2: 1}


def test_one_that_needs_more_blocks_than_there_are_keeps_nobody_else_from_them() -> None:
    books = books_with(limits_of(num_blocks=4), prefilling(1, prompt=60, stored=16), decoding(2, 32))
    plan = safe_plan(books)
    assert scheduled(plan) == {2: 1}
    assert len(plan.evict) == 0


def test_decodes_take_turns_where_the_budget_is_small() -> None:
    limits = limits_of(max_num_batched_tokens=2)
    books = books_with(limits, *(decoding(id, 10, last_run_iteration=id % 3) for id in range(1, 6)))
    assert list(scheduled(safe_plan(books))) == [3, 1]


def test_a_prompt_longer_than_the_budget_goes_in_chunks() -> None:
    books = books_with(limits_of(max_num_batched_tokens=32), prefilling(1, prompt=100, stored=20))
    assert scheduled(safe_plan(books)) == {1: 32}


@pytest.mark.parametrize("out", [swapped(2, 40), evicted(2, prompt=40)])
def test_those_that_were_evicted_return_while_there_is_room(out: Standing) -> None:
    books = books_with(limits_of(num_swap_blocks=4), decoding(1, 20), out)
    plan = safe_plan(books)
    assert set(scheduled(plan)) == {1, 2}
    assert plan.resume.tolist() + plan.admit.tolist() == [2]
    apply(check(plan, books, ended=frozenset()), books)
    books.check_integrity()


@pytest.mark.parametrize("out", [swapped(2, 40), evicted(2, prompt=40)])
@pytest.mark.parametrize("limits", [{"num_blocks": 5}, {"max_num_seqs": 1}])
def test_those_that_were_evicted_stay_out_where_they_would_be_thrown_out_again(
    out: Standing, limits: dict[str, int]
) -> None:
    """Request 1 may need one more block, so five are too few for both."""
    books = books_with(limits_of(num_swap_blocks=4, **limits), decoding(1, 20), out)
    assert set(scheduled(safe_plan(books))) == {1}


@pytest.mark.parametrize("out", [swapped(2, 127), evicted(2, prompt=127)])
def test_one_that_needs_all_blocks_returns_when_it_is_alone(out: Standing) -> None:
    books = books_with(limits_of(num_swap_blocks=8), out)
    assert list(scheduled(safe_plan(books))) == [2]


def test_when_nobody_can_go_on_the_last_make_room_for_the_first() -> None:
    books = books_with(limits_of(num_blocks=6), decoding(1, 32), decoding(2, 32), decoding(3, 32))
    plan = safe_plan(books)
    assert scheduled(plan) == {1: 1}
    assert plan.evict.tolist() == [3]
    assert plan.evict_modes.tolist() == [EvictMode.RECOMPUTE]


def test_no_more_are_evicted_than_must_be() -> None:
    standings = (prefilling(1, prompt=64, stored=16), decoding(2, 32), decoding(3, 16), decoding(4, 16))
    plan = safe_plan(books_with(limits_of(num_blocks=5), *standings))
    assert scheduled(plan) == {1: 48}
    assert plan.evict.tolist() == [4, 3, 2]
    plan = safe_plan(books_with(limits_of(num_blocks=5, max_num_batched_tokens=32), *standings))
    assert scheduled(plan) == {1: 32}
    assert plan.evict.tolist() == [4, 3]


def test_those_that_run_without_needing_a_block_go_before_an_eviction() -> None:
    books = books_with(limits_of(num_blocks=4), decoding(1, 32), decoding(2, 20))
    plan = safe_plan(books)
    assert scheduled(plan) == {2: 1}
    assert len(plan.evict) == 0


def test_an_eviction_counts_for_the_blocks_that_nobody_else_holds() -> None:
    """All that request 3 holds is held by 2 as well, so that both must leave for request 1 to get a block."""
    sharers = (replace(standing, text=1) for standing in (decoding(2, 48), decoding(3, 48)))
    books = books_with(limits_of(num_blocks=5), decoding(1, 32), *sharers)
    assert books.block_pool.num_free == 0
    plan = safe_plan(books)
    assert scheduled(plan) == {1: 1}
    assert plan.evict.tolist() == [3, 2]
