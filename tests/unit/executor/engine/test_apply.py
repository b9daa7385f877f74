"""A plan is applied whole or refused whole, and a refused one changes nothing."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from executor_service.engine.apply import CheckedPlan, PlanRefusedError, apply, check
from executor_service.engine.books import Books, Status
from executor_service.engine.plan import EvictMode, Plan, Rejection
from executor_service.kv.prefix_cache import PrefixScope
from support.books import Standing, books_with, decoding, evicted, image_of, prefilling, swapped, waiting
from support.engine import limits_of

ITERATION = 10
NOBODY: frozenset[int] = frozenset()


def plan_of(
    scheduled: dict[int, int] | None = None,
    *,
    admit: tuple[int, ...] = (),
    resume: tuple[int, ...] = (),
    evict: dict[int, EvictMode | int] | None = None,
    reject: tuple[int, ...] = (),
    iteration: int = ITERATION,
) -> Plan:
    scheduled, evict = scheduled or {}, evict or {}
    return Plan(
        iteration=iteration,
        scheduled=np.array(list(scheduled), dtype=np.int64),
        num_tokens=np.array(list(scheduled.values()), dtype=np.int32),
        admit=np.array(admit, dtype=np.int64),
        resume=np.array(resume, dtype=np.int64),
        evict=np.array(list(evict), dtype=np.int64),
        evict_modes=np.array(list(evict.values()), dtype=np.int32),
        reject=tuple(Rejection(id=request_id, detail="no") for request_id in reject),
    )


def crowded_books() -> Books:
    """All eight blocks held but one; two decode, one is in prefill, one is swapped out, two wait."""
    return books_with(
        limits_of(max_num_batched_tokens=32, max_num_seqs=4, num_swap_blocks=3),
        decoding(1, stored=32),
        decoding(2, stored=33),
        prefilling(3, prompt=80, stored=20),
        swapped(4, stored=20),
        waiting(5, prompt=16),
        waiting(6, prompt=200),
    )


def status_of(books: Books, request_id: int) -> Status:
    return Status(books["status"][books.rows_of([request_id])[0]])


SWAP, RECOMPUTE = EvictMode.SWAP, EvictMode.RECOMPUTE
BAD_PLANS = {
    "forty tokens where the budget is 32": (plan_of({1: 1, 2: 1, 3: 38}), r"runs 40 tokens, the budget is 32"),
    "evicts a swapped request": (plan_of({1: 1}, evict={4: RECOMPUTE}), r"evicts request 4, which is SWAPPED"),
    "evicts a waiting request": (plan_of({1: 1}, evict={5: RECOMPUTE}), r"evicts request 5, which is WAITING"),
    "runs an unknown request": (plan_of({1: 1, 99: 1}), r"unknown requests \[99\] in scheduled"),
    "admits an unknown request": (plan_of({1: 1, 99: 1}, admit=(99,)), r"unknown requests \[99\]"),
    "resumes an unknown request": (plan_of({1: 1, 99: 1}, resume=(99,)), r"unknown requests \[99\]"),
    "evicts an unknown request": (plan_of({1: 1}, evict={99: SWAP}), r"unknown requests \[99\] in evict"),
    "rejects an unknown request": (plan_of({1: 1}, reject=(99,)), "unknown requests"),
    "is of the iteration before": (plan_of({1: 1}, iteration=ITERATION - 1), "made for iteration 9, this is 10"),
    "is of the iteration after": (plan_of({1: 1}, iteration=ITERATION + 1), "made for iteration 11, this is 10"),
    "evicts and runs": (plan_of({1: 1, 2: 1}, evict={2: SWAP}), r"decides twice on requests \[2\]"),
    "admits and rejects": (plan_of({5: 16}, admit=(5,), reject=(5,)), r"decides twice on requests \[5\]"),
    "admits and resumes": (plan_of({4: 1}, admit=(4,), resume=(4,)), r"decides twice on requests \[4\]"),
    "admits twice": (plan_of({5: 16}, admit=(5, 5)), r"decides twice on requests \[5\]"),
    "rejects twice": (plan_of({1: 1}, reject=(5, 5)), r"decides twice on requests \[5\]"),
    "admits without running": (plan_of({1: 1}, admit=(5,)), r"brings in requests \[5\] and does not run them"),
    "resumes without running": (plan_of({1: 1}, resume=(4,)), r"brings in requests \[4\] and does not run them"),
    "runs a waiting request": (plan_of({5: 1}), r"runs request 5, which is WAITING"),
    "runs a swapped request": (plan_of({4: 1}), r"runs request 4, which is SWAPPED"),
    "admits a running request": (plan_of({1: 1}, admit=(1,)), r"admits request 1, which is RUNNING"),
    "admits a swapped request": (plan_of({4: 1}, admit=(4,)), r"admits request 4, which is SWAPPED"),
    "resumes a running request": (plan_of({1: 1}, resume=(1,)), r"resumes request 1, which is RUNNING"),
    "rejects a running request": (plan_of({1: 1}, reject=(2,)), r"rejects request 2, which is RUNNING"),
    "runs more than a decode lacks": (plan_of({1: 2}), r"runs 2 tokens of request 1, which lacks 1"),
    "runs no tokens": (plan_of({1: 0}), r"runs 0 tokens of request 1"),
    "runs a negative number of tokens": (plan_of({1: -1, 3: 30}), r"runs -1 tokens of request 1"),
    "swaps without room": (plan_of({1: 1}, evict={2: SWAP}), r"swaps requests \[2\] out to 3 swap blocks, 1 are free"),
    "evicts without saying where to": (plan_of({1: 1}, evict={2: 0}), "evicts without saying where to"),
    "evicts to a place nobody knows": (plan_of({1: 1}, evict={2: 7}), "evicts without saying where to"),
    "needs more blocks than are free": (plan_of({1: 1, 5: 16}, admit=(5,)), r"needs 2 KV blocks, 1 are free"),
    "runs too many requests": (plan_of({4: 1, 5: 1}, admit=(5,), resume=(4,)), "leaves 5 requests running"),
}


@pytest.mark.parametrize("bad", BAD_PLANS)
def test_a_bad_plan_is_refused_whole(bad: str) -> None:
    plan, message = BAD_PLANS[bad]
    books = crowded_books()
    before = image_of(books)
    with pytest.raises(PlanRefusedError, match=message):
        check(plan, books, ended=NOBODY)
    assert image_of(books) == before


@pytest.mark.parametrize("columns", [("scheduled", "num_tokens"), ("evict", "evict_modes")])
def test_columns_of_unequal_length_are_refused(columns: tuple[str, str]) -> None:
    ids, values = columns
    for lengths in ((2, 1), (1, 2), (0, 1)):
        unequal: dict[str, Any] = {
            ids: np.arange(1, lengths[0] + 1, dtype=np.int64),
            values: np.ones(lengths[1], dtype=np.int32),
        }
        plan = Plan(iteration=ITERATION, **unequal)
        with pytest.raises(PlanRefusedError, match="unequal length"):
            check(plan, crowded_books(), ended=NOBODY)


def test_a_good_plan_is_applied_in_full() -> None:
    books = crowded_books()
    plan = plan_of({1: 1, 4: 1, 5: 16, 3: 12}, admit=(5,), resume=(4,), evict={2: RECOMPUTE}, reject=(6,))
    checked = check(plan, books, ended=NOBODY)
    copies = apply(checked, books)
    books.check_integrity()
    assert [status_of(books, request_id) for request_id in range(1, 7)] == [
        Status.RUNNING,
        Status.WAITING,
        Status.RUNNING,
        Status.RUNNING,
        Status.RUNNING,
        Status.WAITING,
    ]
    assert copies.out == ()
    assert [len(copy.source) for copy in copies.into] == [1], "its first block is still on the device"
    assert [rejection.id for rejection in checked.reject] == [6]
    assert books.block_pool.num_free == 8 - 3 - 2 - 2 - 1


def test_blocks_that_a_plan_frees_can_be_used_in_it() -> None:
    """Request 2 goes to swap space, which request 4 has just left only in part; its three blocks serve 4 and 5."""
    books = books_with(limits_of(num_swap_blocks=5, num_blocks=6), decoding(2, 48), swapped(4, 20), waiting(5, 48))
    checked = check(plan_of({4: 1, 5: 48}, admit=(5,), resume=(4,), evict={2: SWAP}), books, ended=NOBODY)
    copies = apply(checked, books)
    books.check_integrity()
    freed = set(copies.out[0].source.tolist())
    taken = set(books.block_tables[books.rows_of([4, 5])][:, :3].ravel().tolist())
    assert freed & taken


def test_a_swapped_request_takes_no_swap_blocks_of_one_that_is_resumed_in_the_same_plan() -> None:
    """Copies out come before copies in, so a swap block must not be the target of one and the source of the other."""
    books = books_with(limits_of(num_swap_blocks=5), decoding(2, 48), swapped(4, 20))
    copies = apply(check(plan_of({4: 1}, resume=(4,), evict={2: SWAP}), books, ended=NOBODY), books)
    assert not set(copies.out[0].target.tolist()) & set(copies.into[0].source.tolist())


def texts(*standings: Standing, text: int = 1) -> tuple[Standing, ...]:
    """The same requests, all of one text."""
    return tuple(replace(standing, text=text) for standing in standings)


def table_of(books: Books, request_id: int) -> list[int]:
    (row,) = books.rows_of([request_id])
    blocks: list[int] = books.block_tables[row, : books["num_blocks"][row]].tolist()
    return blocks


def applied(plan: Plan, books: Books) -> CheckedPlan:
    """Check that asking changes nothing, then apply."""
    before = image_of(books)
    checked = check(plan, books, ended=NOBODY)
    assert image_of(books) == before
    apply(checked, books)
    books.check_integrity()
    return checked


def test_case_26_one_that_finds_more_than_the_plan_knew_computes_only_what_it_lacks() -> None:
    """Evicted by recompute after four tokens; the plan computes all its 52 tokens, of which 48 are cached still."""
    ran = replace(decoding(1, stored=51), num_prompt_tokens=48, num_output_tokens=4)
    books = books_with(limits_of(), ran)
    held = table_of(books, 1)
    books.evict_by_recompute(int(books.rows_of([1])[0]))
    checked = applied(plan_of({1: 52}, admit=(1,)), books)
    assert checked.num_tokens.tolist() == [4]
    assert table_of(books, 1)[:3] == held[:3]
    assert books["num_computed_tokens"][checked.rows].tolist() == [48]


def test_a_cached_prefix_that_others_hold_costs_no_block() -> None:
    books = books_with(limits_of(num_blocks=4), *texts(decoding(1, 36), waiting(2, prompt=48)))
    checked = applied(plan_of({1: 1, 2: 16}, admit=(2,)), books)
    assert checked.num_tokens.tolist() == [1, 16]
    assert table_of(books, 2)[:2] == table_of(books, 1)[:2]
    assert books.block_pool.num_free == 0


def case_27(num_free_blocks: int) -> Books:
    """Two of the free blocks hold the first 32 tokens of request 9, which needs six blocks in all."""
    others = decoding(1, stored=16 * (8 - num_free_blocks))
    limits = limits_of(max_num_batched_tokens=128)
    books = books_with(limits, others, *texts(decoding(2, stored=32), waiting(9, prompt=96)))
    books.end(2)
    assert (books.block_pool.num_free, books.block_pool.num_kept) == (num_free_blocks, 2)
    return books


def cached_blocks(books: Books, request_id: int) -> list[int]:
    blocks: list[int] = books.cached_prefix(int(books.rows_of([request_id])[0])).blocks.tolist()
    return blocks


def test_case_27_cached_blocks_are_not_counted_as_free_twice() -> None:
    books = case_27(num_free_blocks=5)
    before = image_of(books)
    with pytest.raises(PlanRefusedError, match="needs 6 KV blocks, 5 are free"):
        check(plan_of({9: 96}, admit=(9,)), books, ended=NOBODY)
    assert image_of(books) == before
    books = case_27(num_free_blocks=6)
    cached = cached_blocks(books, 9)
    assert applied(plan_of({9: 96}, admit=(9,)), books).num_tokens.tolist() == [64]
    assert table_of(books, 9)[:2] == cached
    assert len(set(table_of(books, 9))) == 6
    assert books.block_pool.num_free == 0


def test_cached_blocks_are_not_taken_by_others_of_the_same_plan() -> None:
    """All free blocks but two are the cached prefix; the one that grows before takes the two."""
    books = books_with(limits_of(num_blocks=6), decoding(1, 32), *texts(decoding(2, 33), waiting(3, prompt=48)))
    books.end(2)
    prefix = cached_blocks(books, 3)
    applied(plan_of({1: 1, 3: 16}, admit=(3,)), books)
    assert table_of(books, 3)[:2] == prefix
    assert set(table_of(books, 1)).isdisjoint(table_of(books, 3))


def test_cached_blocks_are_not_taken_by_one_that_comes_back_in_the_same_plan() -> None:
    """All blocks are free and hold text, the prefix of 3 the one that was used least recently."""
    comes_back = replace(swapped(4, stored=20), reuse_prefix=False)
    limits = limits_of(num_blocks=5, num_swap_blocks=2)
    books = books_with(limits, comes_back, *texts(decoding(2, 32), waiting(3, prompt=48)), decoding(5, 48))
    books.end(2)
    books.end(5)
    assert books.block_pool.num_kept == 5
    prefix = cached_blocks(books, 3)
    applied(plan_of({3: 16, 4: 1}, admit=(3,), resume=(4,)), books)
    assert table_of(books, 3)[:2] == prefix
    assert set(table_of(books, 3)).isdisjoint(table_of(books, 4))


def test_two_that_enter_with_one_prefix_take_its_free_blocks_once() -> None:
    books = books_with(limits_of(num_blocks=4), *texts(decoding(1, 32), waiting(2, prompt=40), waiting(3, prompt=41)))
    books.end(1)
    applied(plan_of({2: 8, 3: 9}, admit=(2, 3)), books)
    assert table_of(books, 2)[:2] == table_of(books, 3)[:2]
    assert books.block_pool.num_free == 0


def test_one_whose_prefix_loses_its_last_holder_in_the_same_plan_still_enters() -> None:
    """By the state, evicting 1 frees its four blocks and 2 needs four besides the two that 1 holds: it fits. Once 1 has
    left, those two are among the free ones, so 2 reuses less of them and begins to compute earlier.
    """
    books = books_with(limits_of(num_blocks=4), *texts(decoding(1, 60), waiting(2, prompt=96)))
    assert len(cached_blocks(books, 2)) == 3
    checked = applied(plan_of({2: 48}, admit=(2,), evict={1: RECOMPUTE}), books)
    assert [len(prefix.blocks) for prefix in checked.admit_prefixes] == [1]
    assert checked.num_tokens.tolist() == [48]
    assert books.block_pool.num_free == 0


def test_evicting_one_that_shares_frees_only_what_is_its_own() -> None:
    books = books_with(limits_of(num_blocks=5), *texts(decoding(1, 36), decoding(2, 40)), waiting(3, prompt=32))
    assert books.block_pool.num_free == 1
    plan = plan_of({1: 1, 3: 32}, admit=(3,), evict={2: RECOMPUTE})
    applied(plan, books)
    assert books.block_pool.num_free == 0
    books = books_with(limits_of(num_blocks=5), *texts(decoding(1, 36), decoding(2, 40)), waiting(3, prompt=48))
    with pytest.raises(PlanRefusedError, match="needs 3 KV blocks, 2 are free"):
        check(plan_of({1: 1, 3: 48}, admit=(3,), evict={2: RECOMPUTE}), books, ended=NOBODY)


def test_a_swapped_request_copies_back_only_what_is_not_on_the_device_any_more() -> None:
    books = books_with(limits_of(num_swap_blocks=8), *texts(decoding(1, 36), swapped(2, stored=40)))
    copies = apply(check(plan_of({1: 1, 2: 1}, resume=(2,)), books, ended=NOBODY), books)
    books.check_integrity()
    assert table_of(books, 2)[:2] == table_of(books, 1)[:2]
    assert [copy.target.tolist() for copy in copies.into] == [table_of(books, 2)[2:]]


def test_one_sharer_goes_to_swap_space_with_copies_of_what_the_other_keeps() -> None:
    books = books_with(limits_of(num_swap_blocks=3), *texts(decoding(1, 36), decoding(2, 40)))
    held = table_of(books, 2)
    copies = apply(check(plan_of({1: 1}, evict={2: SWAP}), books, ended=NOBODY), books)
    books.check_integrity()
    assert [copy.source.tolist() for copy in copies.out] == [held]
    assert table_of(books, 1)[:2] == held[:2]
    assert books.block_pool.num_free == 8 - 3


def test_without_reuse_all_of_a_text_is_computed() -> None:
    standings = texts(decoding(1, 36), waiting(2, prompt=48))
    off = books_with(limits_of(), *standings, prefix_scope=PrefixScope.OFF)
    bypassing = books_with(limits_of(), standings[0], replace(standings[1], reuse_prefix=False))
    for books in (off, bypassing):
        checked = applied(plan_of({2: 48}, admit=(2,)), books)
        assert checked.num_tokens.tolist() == [48]
        assert set(table_of(books, 1)).isdisjoint(table_of(books, 2))
    assert len(off.prefixes.cache) == 0


def test_those_that_ended_meanwhile_are_dropped_from_every_list() -> None:
    books = crowded_books()
    plan = plan_of({1: 1, 70: 1, 71: 4, 72: 1}, admit=(71,), resume=(72,), evict={73: SWAP, 2: RECOMPUTE}, reject=(74,))
    checked = check(plan, books, ended=frozenset(range(70, 80)))
    assert books["id"][checked.rows].tolist() == [1]
    assert checked.num_tokens.tolist() == [1]
    assert len(checked.admit) == len(checked.resume) == len(checked.evict_by_swap) == len(checked.reject) == 0
    assert books["id"][checked.evict_by_recompute].tolist() == [2]


def test_an_unknown_request_is_not_excused_by_others_that_ended() -> None:
    with pytest.raises(PlanRefusedError, match=r"unknown requests \[80\]"):
        check(plan_of({1: 1, 70: 1, 80: 1}), crowded_books(), ended=frozenset({70}))


def test_the_charge_of_a_plan_counts_from_its_pass_on() -> None:
    books = crowded_books()
    served = books.tenants.service.sum()
    apply(check(replace(plan_of({1: 1}), kv_residency_charge=2.0), books, ended=NOBODY), books)
    books.advance(books.rows_of([1]), np.array([1], dtype=np.int32))
    assert books.tenants.service.sum() == served + 1 + 2 * (3 + 3 + 2), "all that are on the device, whoever runs"
    apply(check(plan_of(), books, ended=NOBODY), books)
    assert books.tenants.kv_residency_charge == 2.0, "a plan that says nothing of it leaves it"


def test_the_empty_plan_holds() -> None:
    books = crowded_books()
    before = image_of(books)
    copies = apply(check(plan_of(), books, ended=NOBODY), books)
    assert (copies.out, copies.into) == ((), ())
    assert image_of(books) == before


def test_more_requests_than_places_may_go_on_but_nobody_may_join_them() -> None:
    """The limit is on whom a plan brings in; it is no reason to stop those that run."""
    books = books_with(limits_of(max_num_seqs=2), decoding(1, 16), decoding(2, 16), evicted(3))
    assert len(check(plan_of({1: 1, 2: 1}), books, ended=NOBODY).rows) == 2
    with pytest.raises(PlanRefusedError, match="leaves 3 requests running, the limit is 2"):
        check(plan_of({1: 1, 3: 1}, admit=(3,)), books, ended=NOBODY)
    swap_places = plan_of({1: 1, 3: 1}, admit=(3,), evict={2: RECOMPUTE})
    assert len(check(swap_places, books, ended=NOBODY).rows) == 2
