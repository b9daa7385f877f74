"""A plan meets the books: first it is checked, then it is applied, whole or not at all.

The executor never trusts a plan for memory safety. ``check`` reads the books and changes nothing; whatever is wrong
with a plan raises PlanRefusedError there, so ``apply`` cannot fail half way.

A plan made while the pass before ran may name requests that ended in it. Those, and no others, are dropped: the blocks
that they gave back make the rest of the plan fit the better. One that enters may find more of its text in the prefix
cache than the scheduler knew of: it computes what it then lacks, never more than the plan says. One in decode runs the
drafts that it has by now, and no more than it is granted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from executor_service.engine.books import BlockCopy, Books, Rows, Status
from executor_service.engine.entering import work_out
from executor_service.engine.plan import EvictMode, EvictReason, Ids, Plan, Rejection
from executor_service.kv.prefix_cache import Prefix


class RefusalReason(StrEnum):
    """What kind of fault a refused plan has."""

    STALE = "stale"
    CONTRADICTORY = "contradictory"
    UNKNOWN_REQUEST = "unknown_request"
    WRONG_STATUS = "wrong_status"
    WRONG_NUM_TOKENS = "wrong_num_tokens"
    TOKEN_BUDGET = "token_budget"
    BATCH_LIMIT = "batch_limit"
    BLOCKS = "blocks"
    SWAP_BLOCKS = "swap_blocks"


class PlanRefusedError(Exception):
    """The plan is stale, names requests that are not there, contradicts itself or does not fit. Nothing has changed."""

    def __init__(self, reason: RefusalReason, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CheckedPlan:
    """A plan that holds, in rows of the books."""

    rows: Rows  # [n] scheduled
    num_tokens: NDArray[np.int32]  # [n]
    admit: Rows
    resume: Rows
    evict_by_swap: Rows
    evict_by_recompute: Rows
    evictions: tuple[tuple[EvictMode, EvictReason], ...]  # of both, in the plan's order
    reject: tuple[Rejection, ...]
    predicted_us: int
    kv_residency_charge: float | None
    admit_prefixes: tuple[Prefix, ...] = ()  # what each of ``admit`` reuses
    resume_prefixes: tuple[Prefix, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Copies:
    """What to copy before the pass: all of ``out``, then all of ``within`` at once, then all of ``into``."""

    out: tuple[BlockCopy, ...]  # device to swap space
    into: tuple[BlockCopy, ...]  # swap space to device
    within: tuple[BlockCopy, ...] = ()  # on the device; a block may be the source of one and the target of another

    @property
    def rows(self) -> list[int]:
        return [copy.row for copy in self.out + self.within + self.into]


def check(plan: Plan, books: Books, *, ended: AbstractSet[int]) -> CheckedPlan:
    """Find the rows of a plan and make sure that it can be applied.

    ``ended``: ids that ended since the state was taken that the plan was made for.

    Raises PlanRefusedError.
    """
    if plan.iteration != books.iteration:
        raise PlanRefusedError(RefusalReason.STALE, f"made for iteration {plan.iteration}, this is {books.iteration}")
    _check_one_fate(plan)
    scheduled, kept = _rows_of(plan.scheduled, "scheduled", books, ended)
    evict, kept_evictions = _rows_of(plan.evict, "evict", books, ended)
    modes = plan.evict_modes[kept_evictions]
    if not ((modes == EvictMode.SWAP) | (modes == EvictMode.RECOMPUTE)).all():
        raise PlanRefusedError(RefusalReason.CONTRADICTORY, "evicts without saying where to")
    reasons = plan.evict_reasons[kept_evictions] if len(plan.evict_reasons) else np.zeros_like(modes)
    checked = CheckedPlan(
        rows=scheduled,
        num_tokens=plan.num_tokens[kept],
        admit=_rows_of(plan.admit, "admit", books, ended)[0],
        resume=_rows_of(plan.resume, "resume", books, ended)[0],
        evict_by_swap=evict[modes == EvictMode.SWAP],
        evict_by_recompute=evict[modes == EvictMode.RECOMPUTE],
        evictions=tuple(zip(map(EvictMode, modes.tolist()), map(EvictReason, reasons.tolist()), strict=True)),
        reject=tuple(r for r in plan.reject if r.id not in ended),
        predicted_us=plan.predicted_us,
        kv_residency_charge=plan.kv_residency_charge,
    )
    _check_statuses(checked, books)
    _check_rejections(checked, books)
    _check_tokens(checked, books)
    _check_swap(checked, books)
    return _with_blocks(checked, books)


def apply(checked: CheckedPlan, books: Books) -> Copies:
    """Change the books as a checked plan says. Returns the copies that must be made before the pass."""
    out = tuple(books.evict_by_swap(row) for row in checked.evict_by_swap)
    for row in checked.evict_by_recompute:
        books.evict_by_recompute(row)
    # Cached prefixes first: what is allocated afterwards may take the place of cached text.
    books.admit(checked.admit, checked.admit_prefixes)
    into = tuple(map(books.resume, checked.resume, checked.resume_prefixes))
    books.grow(checked.rows, checked.num_tokens)
    if checked.kv_residency_charge is not None:
        books.tenants.kv_residency_charge = checked.kv_residency_charge
    return Copies(out=out, into=into, within=books.tail_copies(checked.admit, checked.admit_prefixes))


_NO_ROWS: Rows = np.empty(0, dtype=np.int64)
_NO_MASK: NDArray[np.bool_] = np.empty(0, dtype=np.bool_)


def _check_one_fate(plan: Plan) -> None:
    """Columns of one length; nobody twice in a list, nor in two lists that exclude each other."""
    is_even = len(plan.scheduled) == len(plan.num_tokens) and len(plan.evict) == len(plan.evict_modes)
    if not is_even or len(plan.evict_reasons) not in (0, len(plan.evict)):
        raise PlanRefusedError(RefusalReason.CONTRADICTORY, "has columns of unequal length")
    scheduled, entering = plan.scheduled.tolist(), plan.admit.tolist() + plan.resume.tolist()
    leaving = plan.evict.tolist() + [r.id for r in plan.reject]
    for ids in (scheduled + leaving, entering + leaving):
        if len(set(ids)) != len(ids):
            twice = sorted(request_id for request_id, count in Counter(ids).items() if count > 1)
            raise PlanRefusedError(RefusalReason.CONTRADICTORY, f"decides twice on requests {twice}")
    idle = set(entering).difference(scheduled)
    if idle:
        raise PlanRefusedError(RefusalReason.CONTRADICTORY, f"brings in requests {sorted(idle)} and does not run them")


def _rows_of(ids: Ids, which: str, books: Books, ended: AbstractSet[int]) -> tuple[Rows, NDArray[np.bool_]]:
    """The rows of those of ``ids`` that are still there, and which these are."""
    if not len(ids):  # as most lists of most plans
        return _NO_ROWS, _NO_MASK
    rows = books.rows_of(ids.tolist())
    missing = rows < 0
    if missing.any():
        unknown = [i for i in ids[missing].tolist() if i not in ended]
        if unknown:
            raise PlanRefusedError(RefusalReason.UNKNOWN_REQUEST, f"names unknown requests {unknown} in {which}")
    return rows[~missing], ~missing


def _check_statuses(checked: CheckedPlan, books: Books) -> None:
    status = books["status"].copy()
    steps = (
        (checked.evict_by_swap, Status.RUNNING, Status.SWAPPED, "evicts"),
        (checked.evict_by_recompute, Status.RUNNING, Status.WAITING, "evicts"),
        (checked.resume, Status.SWAPPED, Status.RUNNING, "resumes"),
        (checked.admit, Status.WAITING, Status.RUNNING, "admits"),
        (checked.rows, Status.RUNNING, Status.RUNNING, "runs"),
    )
    for rows, before, after, verb in steps:
        if not len(rows):
            continue
        wrong = rows[status[rows] != before]
        if len(wrong):
            row = wrong[0]
            is_now = Status(status[row]).name
            raise PlanRefusedError(
                RefusalReason.WRONG_STATUS, f"{verb} request {books['id'][row]}, which is {is_now}, not {before.name}"
            )
        status[rows] = after


def _check_rejections(checked: CheckedPlan, books: Books) -> None:
    """Anyone may be turned away but those on the device: what began to run is evicted first."""
    if not checked.reject:
        return
    rows = books.rows_of(r.id for r in checked.reject)
    if (rows < 0).any():
        raise PlanRefusedError(RefusalReason.UNKNOWN_REQUEST, "names unknown requests in reject")
    running = rows[books["status"][rows] == Status.RUNNING]
    if len(running):
        raise PlanRefusedError(
            RefusalReason.WRONG_STATUS, f"rejects request {books['id'][running[0]]}, which is RUNNING"
        )


def _check_tokens(checked: CheckedPlan, books: Books) -> None:
    limits = books.limits
    num_tokens = checked.num_tokens
    may_have_drafts = books.in_decode(checked.rows) & (books["status"][checked.rows] == Status.RUNNING)
    most = books.num_lacking_tokens(checked.rows) + books.max_num_drafts * may_have_drafts
    wrong = (num_tokens < 1) | (num_tokens > most)
    if wrong.any():
        row, count = checked.rows[wrong][0], num_tokens[wrong][0]
        lacking = books.num_lacking_tokens(checked.rows[wrong])[0]
        raise PlanRefusedError(
            RefusalReason.WRONG_NUM_TOKENS, f"runs {count} tokens of request {books['id'][row]}, which lacks {lacking}"
        )
    if num_tokens.sum() > limits.max_num_batched_tokens:
        raise PlanRefusedError(
            RefusalReason.TOKEN_BUDGET, f"runs {num_tokens.sum()} tokens, the budget is {limits.max_num_batched_tokens}"
        )
    num_running = len(books.rows_with(Status.RUNNING)) + len(checked.admit) + len(checked.resume)
    num_running -= len(checked.evict_by_swap) + len(checked.evict_by_recompute)
    if num_running > limits.max_num_seqs and len(checked.admit) + len(checked.resume):
        raise PlanRefusedError(
            RefusalReason.BATCH_LIMIT, f"leaves {num_running} requests running, the limit is {limits.max_num_seqs}"
        )


def _check_swap(checked: CheckedPlan, books: Books) -> None:
    if not len(checked.evict_by_swap):
        return
    swapped_out = int(books["num_blocks"][checked.evict_by_swap].sum())
    if swapped_out > books.swap_space.num_free:
        ids = books["id"][checked.evict_by_swap].tolist()
        raise PlanRefusedError(
            RefusalReason.SWAP_BLOCKS,
            f"swaps requests {ids} out to {swapped_out} swap blocks, {books.swap_space.num_free} are free",
        )


def _with_blocks(checked: CheckedPlan, books: Books) -> CheckedPlan:
    """The plan with what its requests reuse, if there are blocks for the rest."""
    entrance = work_out(
        books,
        rows=checked.rows,
        num_tokens=checked.num_tokens,
        admit=checked.admit,
        resume=checked.resume,
        evict=np.concatenate([checked.evict_by_swap, checked.evict_by_recompute]),
    )
    if entrance.num_taken_blocks > entrance.num_free_blocks:
        raise PlanRefusedError(
            RefusalReason.BLOCKS, f"needs {entrance.num_taken_blocks} KV blocks, {entrance.num_free_blocks} are free"
        )
    return replace(
        checked,
        num_tokens=entrance.num_tokens,
        admit_prefixes=entrance.admit_prefixes,
        resume_prefixes=entrance.resume_prefixes,
    )
