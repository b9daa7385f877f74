"""The plan that an executor makes for itself when no scheduler answers, or when it must refuse what one answered.

It finishes what has begun and starts nothing: running requests go on as far as the free blocks reach, the least
recently run first where the token budget is small; those that had been evicted come back while there is room; those
that never ran wait for a scheduler. If no running request can go on, the last to arrive are evicted until the first to
arrive can: so whoever has begun to receive an answer receives the rest of it.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from executor_service.engine.books import NO_BLOCKS, Books, Rows, Status
from executor_service.engine.plan import EvictMode, Plan

Counts = NDArray[np.int32]


def make_safe_plan(books: Books) -> Plan:
    """Plan the pass that comes next from the books alone."""
    running = _in_order(books, books.rows_with(Status.RUNNING), first="last_run_iteration")
    num_tokens, growth = _demand(books, running, books.limits.max_num_batched_tokens)
    fits = _fits(growth, books.block_pool.num_free)
    if len(running) and not fits.any():
        return _plan_with_evictions(books, running)
    running, num_tokens, growth = running[fits], num_tokens[fits], growth[fits]
    goes = np.cumsum(num_tokens) <= books.limits.max_num_batched_tokens
    returning = _returning(books, num_promised_blocks=int(growth.sum()))
    budget = books.limits.max_num_batched_tokens - int(num_tokens[goes].sum())
    returning_tokens, _ = _demand(books, returning, budget)
    comes = (returning_tokens > 0) & (np.cumsum(returning_tokens) <= budget)
    returning = returning[comes]
    is_swapped = books["status"][returning] == Status.SWAPPED
    ids = books["id"]
    return Plan(
        iteration=books.iteration,
        scheduled=ids[np.concatenate([running[goes], returning])],
        num_tokens=np.concatenate([num_tokens[goes], returning_tokens[comes]]),
        admit=ids[returning[~is_swapped]],
        resume=ids[returning[is_swapped]],
    )


def _fits(growth: Counts, num_free_blocks: int) -> NDArray[np.bool_]:
    """Who gets blocks, in order; one that needs more than there are keeps nobody else from them."""
    possible = growth <= num_free_blocks
    fits: NDArray[np.bool_] = (growth == 0) | (possible & (np.cumsum(growth * possible) <= num_free_blocks))
    return fits


def _plan_with_evictions(books: Books, running: Rows) -> Plan:
    """Nobody fits: the last to arrive make room for the first."""
    by_arrival = _in_order(books, running, first="arrival_time_us")
    first, others = by_arrival[:1], by_arrival[:0:-1]
    num_tokens, growth = _demand(books, first, books.limits.max_num_batched_tokens)
    missing = int(growth[0]) - books.block_pool.num_free
    num_victims = int(np.searchsorted(_freed_by(books, others), missing)) + 1
    ids = books["id"]
    return Plan(
        iteration=books.iteration,
        scheduled=ids[first],
        num_tokens=num_tokens,
        evict=ids[others[:num_victims]],
        evict_modes=np.full(len(others[:num_victims]), EvictMode.RECOMPUTE, dtype=np.int32),
    )


def _freed_by(books: Books, victims: Rows) -> NDArray[np.int64]:
    """[num_victims] blocks that are free once the first, the first two, ... have left: those that nobody else holds."""
    counts = books.block_pool.reference_counts_without(NO_BLOCKS)
    freed = np.zeros(len(victims), dtype=np.int64)
    for i in range(len(victims)):
        blocks = books.blocks_of(victims[i : i + 1])
        counts[blocks] -= 1
        freed[i] = np.count_nonzero(counts[blocks] == 0)
    return np.cumsum(freed)


def _in_order(books: Books, rows: Rows, *, first: str) -> Rows:
    """By the column ``first``, then arrival, then id."""
    return rows[np.lexsort((books["id"][rows], books["arrival_time_us"][rows], books[first][rows]))]


def _demand(books: Books, rows: Rows, budget: int) -> tuple[Counts, Counts]:
    """Tokens to run of each row, and the blocks that they need beyond those held on the device."""
    num_tokens = books.num_lacking_tokens(rows).clip(max=budget)
    held = np.where(books["status"][rows] == Status.RUNNING, books["num_blocks"][rows], 0)
    needed = books.num_blocks_for(books["num_computed_tokens"][rows] + num_tokens) - held
    return num_tokens, needed.clip(min=0)


def _returning(books: Books, *, num_promised_blocks: int) -> Rows:
    """Evicted requests that can return whole, all that they stored, beside one more block for each that runs."""
    rows = books.rows()
    status = books["status"][rows]
    num_running = int((status == Status.RUNNING).sum())
    evicted = rows[(status == Status.SWAPPED) | ((status == Status.WAITING) & (books["num_preemptions"][rows] > 0))]
    evicted = _in_order(books, evicted, first="arrival_time_us")
    whole = books.num_blocks_for(books["num_prompt_tokens"][evicted] + books["num_output_tokens"][evicted])
    room = books.block_pool.num_free - num_promised_blocks - num_running
    num_places = max(0, books.limits.max_num_seqs - num_running)
    return evicted[np.cumsum(whole) <= room][:num_places]
