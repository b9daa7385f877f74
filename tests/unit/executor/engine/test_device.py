"""The copies of a plan: all that leaves the device has left before anything comes back to its place."""

from __future__ import annotations

import numpy as np

from executor_service.engine.apply import Copies, apply, check
from executor_service.engine.device import run_copies
from executor_service.engine.plan import EvictMode, Plan
from support.books import books_with, decoding, swapped
from support.engine import limits_of
from support.token_runner import TokenCache


def test_a_request_may_come_back_to_the_blocks_that_another_leaves_in_the_same_plan() -> None:
    books = books_with(limits_of(num_blocks=3, num_swap_blocks=5), decoding(1, 40), swapped(2, 20))
    cache = TokenCache(num_blocks=3, num_swap_blocks=5, block_size=16)
    leaving = books.block_tables[books.rows_of([1])[0], :3].copy()
    returning = books.swap_space.holding(2).blocks
    cache.device[leaving] = np.array([[1], [2], [3]])
    cache.swap[returning] = np.array([[7], [8]])
    plan = Plan(
        iteration=books.iteration,
        scheduled=np.array([2], dtype=np.int64),
        num_tokens=np.array([1], dtype=np.int32),
        resume=np.array([2], dtype=np.int64),
        evict=np.array([1], dtype=np.int64),
        evict_modes=np.array([EvictMode.SWAP], dtype=np.int32),
    )
    assert run_copies(apply(check(plan, books, ended=frozenset()), books), cache) == 3 + 2
    assert cache.swap[books.swap_space.holding(1).blocks][:, 0].tolist() == [1, 2, 3]
    assert cache.device[books.block_tables[books.rows_of([2])[0], :2]][:, 0].tolist() == [7, 8]


def test_a_plan_without_copies_copies_nothing() -> None:
    cache = TokenCache(num_blocks=1, num_swap_blocks=1, block_size=16)
    assert run_copies(Copies(out=(), into=()), cache) == 0
