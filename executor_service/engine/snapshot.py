"""What the executor tells the scheduler: the books, as they stand or as a running pass will leave them.

Overlapped planning asks for the plan of the next pass while a pass runs. By then almost all that the pass will do is
known: how many tokens each request computes, which blocks that fills, and who ends because its answer has the length
asked for. Only what the tokens say (an end token, a stop string) is not; a request that ends so is dropped from the
plan when it is applied.

Where drafts are verified it is not known either how many tokens the pass gives, and the most is foreseen: that all
prove right. With fewer tokens a request needs no more blocks than that, so a plan that fits what was foreseen fits what
comes. Such a request is never foreseen to end. And whoever has drafts now is expected to have as many as it may again;
it runs those that it has when the plan is applied.

What requests share is looked up here, for each state anew: a request that waits holds nothing, and is shown with the
cached prefix that it would reuse if it entered now. Of several samples of one prompt a state to plan has only the
first, until the prompt's KV is there for the others (docs/adr/0019).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from executor_service.engine.books import NO_BLOCKS, SCHEDULER_COLUMNS, Books, Rows, Status
from executor_service.engine.common_prefixes import CommonPrefixes, sharing_of
from executor_service.engine.limits import Limits

# What a snapshot adds to the columns of the books, under the names of the contract.
SHARING_COLUMNS: dict[str, type[np.generic]] = {
    "num_shared_blocks": np.int32,
    "next_block_hash": np.int64,
    "cached_prefix": np.int32,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Latency:
    """The fitted cost of a pass, microseconds each; see LatencyModel in the contract."""

    pass_us: float
    prefill_token_us: float
    decode_request_us: float
    kv_token_us: float
    swap_block_us: float
    relative_error: float


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Snapshot:
    """A copy: the books go on changing, this does not."""

    iteration: int  # the pass to plan
    now_us: int
    limits: Limits
    num_free_blocks: int
    num_free_swap_blocks: int
    latency: Latency | None
    tenants: tuple[str, ...]  # [num_tenants] names; `tenant` is an index into them
    tenant_service: NDArray[np.float64]  # [num_tenants] in tokens; see tenants.py
    columns: dict[str, NDArray[Any]]  # SCHEDULER_COLUMNS and SHARING_COLUMNS, [num_requests] each
    common_prefixes: CommonPrefixes | None = None  # what `cached_prefix` points into

    @property
    def num_requests(self) -> int:
        return len(self.columns["id"])


def take(books: Books, *, now_us: int, latency: Latency | None) -> Snapshot:
    """The books as they stand between two passes, with everybody who is in them."""
    _, columns, common = _columns_now(books)
    return _as_they_stand(books, columns, common, now_us=now_us, latency=latency)


def take_to_plan(books: Books, *, now_us: int, latency: Latency | None) -> Snapshot:
    """The same without those whom another computes the prompt for."""
    rows, columns, common = _columns_now(books)
    columns = _without_held(books, rows, columns)
    return _as_they_stand(books, columns, common, now_us=now_us, latency=latency)


def _columns_now(books: Books) -> tuple[Rows, dict[str, NDArray[Any]], CommonPrefixes | None]:
    """The rows in use, the columns of a snapshot for them, and the prefixes that some have in common."""
    rows = books.rows()
    columns = {name: books[name][rows] for name in SCHEDULER_COLUMNS}
    all_known = np.zeros(len(rows), dtype=np.int32)
    # Of all blocks, which nobody looks at where nothing can be shared.
    counts = books.block_pool.reference_counts_without(NO_BLOCKS) if books.prefixes.has_texts else NO_BLOCKS
    common = _show_sharing(books, rows, columns, counts, soon={}, num_guessed=all_known)
    return rows, columns, common


def _as_they_stand(
    books: Books,
    columns: dict[str, NDArray[Any]],
    common: CommonPrefixes | None,
    *,
    now_us: int,
    latency: Latency | None,
) -> Snapshot:
    return Snapshot(
        iteration=books.iteration,
        now_us=now_us,
        limits=books.limits,
        num_free_blocks=books.block_pool.num_free,
        num_free_swap_blocks=books.swap_space.num_free,
        latency=latency,
        tenants=tuple(books.tenants.names),
        tenant_service=books.tenants.service,
        columns=columns,
        common_prefixes=common,
    )


def project(
    books: Books, rows: Rows, num_tokens: NDArray[np.int32], *, now_us: int, latency: Latency | None
) -> Snapshot:
    """The books as the pass over ``num_tokens`` of each of ``rows`` will leave them, its plan being applied already."""
    projected = {name: books[name].copy() for name in SCHEDULER_COLUMNS}
    lacking = books.num_lacking_tokens(rows)
    num_drafts = (num_tokens - lacking).clip(min=0)
    sampled, verifies = rows[num_tokens >= lacking], rows[num_drafts > 0]
    projected["num_computed_tokens"][rows] += num_tokens
    projected["last_run_iteration"][rows] = books.iteration
    projected["num_output_tokens"][sampled] += 1
    finished = sampled[projected["num_output_tokens"][sampled] >= projected["max_output_tokens"][sampled]]
    projected["status"][finished] = 0
    num_guessed = np.zeros(len(projected["id"]), dtype=np.int32)
    num_guessed[rows] = num_drafts
    _add_guessed(projected, verifies, num_guessed)
    _expect_drafts(projected, books.max_num_drafts)
    counts = books.block_pool.reference_counts_without(books.blocks_of(finished))
    num_free_blocks = int(np.count_nonzero(counts == 0))
    num_known_tokens = num_tokens - num_drafts
    soon = books.prefixes.published_by(rows, books["num_computed_tokens"][rows], num_known_tokens, books.block_tables)
    remaining = np.flatnonzero(projected["status"])
    columns = {name: column[remaining] for name, column in projected.items()}
    common = _show_sharing(books, remaining, columns, counts, soon, num_guessed[remaining])
    columns = _without_held(books, remaining, columns)
    return Snapshot(
        iteration=books.iteration + 1,
        now_us=now_us,
        limits=books.limits,
        num_free_blocks=num_free_blocks,
        num_free_swap_blocks=books.swap_space.num_free,
        latency=latency,
        tenants=tuple(books.tenants.names),
        tenant_service=books.tenants.service_after(*books.costs_of_pass(rows, num_tokens)),
        columns=columns,
        common_prefixes=common,
    )


def _add_guessed(projected: dict[str, NDArray[Any]], verifies: Rows, num_guessed: NDArray[np.int32]) -> None:
    """Count the drafts of the rows ``verifies`` as tokens of their answers, short of what would end one.

    ``num_guessed``: [capacity] drafts of each row; becomes the tokens of each that were guessed.
    """
    num_output, most = projected["num_output_tokens"], projected["max_output_tokens"]
    room = most[verifies] - 1 - num_output[verifies]
    num_too_many = (num_guessed[verifies] - room).clip(min=0)
    num_guessed[verifies] -= num_too_many
    projected["num_computed_tokens"][verifies] -= num_too_many
    num_output[verifies] += num_guessed[verifies]


def _expect_drafts(projected: dict[str, NDArray[Any]], max_num_drafts: int) -> None:
    """Of a text that goes on as one before did this is expected to go on; whether another begins to is not known."""
    room = projected["max_output_tokens"] - projected["num_output_tokens"] - 1
    has_drafts = projected["num_draft_tokens"] > 0
    projected["num_draft_tokens"] = (room * has_drafts).clip(0, max_num_drafts)


def _show_sharing(
    books: Books,
    rows: Rows,
    columns: dict[str, NDArray[Any]],
    counts: NDArray[np.int32],
    soon: Mapping[bytes, int],
    num_guessed: NDArray[np.int32],
) -> CommonPrefixes | None:
    """Add the SHARING_COLUMNS, and the cached prefixes of those that wait. Returns those that some have in common.

    ``columns``, ``num_guessed``: of ``rows``. ``counts``: [num_blocks] references of each block. ``soon``: block by
    digest, what will have been published by then.
    """
    for name, dtype in SHARING_COLUMNS.items():
        columns[name] = np.zeros(len(rows), dtype=dtype)
    if not books.prefixes.has_texts:
        return None
    status, block_size = columns["status"], books.limits.block_size
    running, waiting = np.flatnonzero(status == Status.RUNNING), np.flatnonzero(status == Status.WAITING)
    columns["num_shared_blocks"][running] = books.num_shared_blocks(rows[running], counts)
    # A new token that the pass samples is not known yet when a state is sent ahead, so the newest one never counts.
    num_tokens = columns["num_prompt_tokens"] + columns["num_output_tokens"] - num_guessed
    num_reusable_tokens = num_tokens - ((status == Status.WAITING) | (columns["num_output_tokens"] > 0))
    common = None
    if len(waiting):
        prefixes = books.prefixes.find(rows[waiting], num_reusable_tokens[waiting], soon)
        common = _show_cached(books, rows, columns, counts, soon, waiting, prefixes)
    next_block = columns["num_computed_tokens"] // block_size
    named = np.flatnonzero((next_block + 1) * block_size <= num_reusable_tokens)
    columns["next_block_hash"][named] = books.prefixes.hashes(rows[named], next_block[named])
    return common


def _show_cached(
    books: Books,
    rows: Rows,
    columns: dict[str, NDArray[Any]],
    counts: NDArray[np.int32],
    soon: Mapping[bytes, int],
    waiting: Rows,
    prefixes: Sequence[list[int]],
) -> CommonPrefixes | None:
    """The same of those that wait, ``waiting`` in the columns, of whom each would reuse one of ``prefixes``."""
    num_blocks = np.fromiter(map(len, prefixes), dtype=np.int32, count=len(prefixes))
    num_tail_tokens = books.prefixes.tail_lengths(rows[waiting], num_blocks, soon)
    columns["num_computed_tokens"][waiting] = num_blocks * books.limits.block_size + num_tail_tokens
    # The copy of a tail takes a free block: it counts among those that nobody else holds.
    columns["num_blocks"][waiting] = num_blocks + (num_tail_tokens > 0)
    sharing = sharing_of(prefixes, counts)
    columns["num_shared_blocks"][waiting] = sharing.num_held_blocks
    columns["cached_prefix"][waiting] = sharing.row
    return sharing.common


def _without_held(books: Books, rows: Rows, columns: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """Leave those out who never ran and wait for the first of the samples of their prompt to compute it.

    Planned, they would compute the same. The first is the one that came first of those that have not got the prompt on
    the device: should it end, the next one takes over. One that was swapped out brings it back.
    """
    samples_of = books["samples_of"][rows]
    if not samples_of.any():
        return columns
    status = columns["status"]
    lacks = columns["num_computed_tokens"] < columns["num_prompt_tokens"] - 1
    lacking = np.flatnonzero((samples_of > 0) & (lacks | (status == Status.SWAPPED)))
    lacking = lacking[np.lexsort((columns["id"][lacking], samples_of[lacking]))]
    is_first = np.ones(len(lacking), dtype=np.bool_)
    is_first[1:] = np.diff(samples_of[lacking]) > 0
    never_ran = (status[lacking] == Status.WAITING) & (columns["num_preemptions"][lacking] == 0)
    shown = np.ones(len(rows), dtype=np.bool_)
    shown[lacking[never_ran & ~is_first]] = False
    return {name: column[shown] for name, column in columns.items()}
