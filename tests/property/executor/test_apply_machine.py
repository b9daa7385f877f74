"""Laws of plans against books: refused and nothing has changed, or applied and every block is accounted for."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from executor_service.engine.apply import CheckedPlan, PlanRefusedError, apply, check
from executor_service.engine.books import Books, Status
from executor_service.engine.plan import EvictMode, Plan, Rejection
from executor_service.engine.safe_plan import make_safe_plan
from executor_service.engine.snapshot import take
from scheduler_service.core.policy import Ordering, Preemption
from support.books import Standing, books_with, image_of
from support.depth import num_examples
from support.engine import limits_of
from support.planners import RECOMPUTE, SWAP, real_plan

BLOCK_SIZE = 4
ITERATION = 10
UNKNOWN_ID = 99
NOBODY: frozenset[int] = frozenset()


@st.composite
def standings(draw: st.DrawFn, id: int) -> Standing:
    status, text = draw(st.sampled_from(Status)), draw(st.sampled_from([1, 1, 1, 2, 0]))
    reuse_prefix = draw(st.sampled_from([True, True, False]))
    num_prompt, num_output = draw(st.integers(1, 16)), draw(st.sampled_from([0, 0, 1, 1, 5]))
    num_lacking = 1 if num_output and draw(st.booleans()) else draw(st.integers(1, num_prompt + num_output))
    num_computed = num_prompt + num_output - num_lacking
    if status is Status.WAITING or num_computed == 0:
        # Whoever is on the device or in swap space has run at least one token.
        num_preemptions = 1 if num_output else draw(st.integers(0, 1))
        return Standing(
            id=id,
            status=Status.WAITING,
            num_prompt_tokens=num_prompt,
            num_output_tokens=num_output,
            num_preemptions=num_preemptions,
            text=text,
            reuse_prefix=reuse_prefix,
        )
    return Standing(
        id=id,
        status=status,
        num_prompt_tokens=num_prompt,
        num_output_tokens=num_output,
        num_computed_tokens=num_computed,
        last_run_iteration=draw(st.integers(1, ITERATION - 1)),
        text=text,
        reuse_prefix=reuse_prefix,
    )


@st.composite
def random_books(draw: st.DrawFn) -> Books:
    """Up to six requests of three texts, on an executor that each of them fits into by itself.

    Some may have ended already, so that what they computed is among the free blocks.
    """
    requests = [draw(standings(id)) for id in range(1, draw(st.integers(0, 6)) + 1)]

    def held(status: Status) -> list[int]:
        return [-(-r.num_computed_tokens // BLOCK_SIZE) for r in requests if r.status is status]

    longest = max((r.num_prompt_tokens + r.num_output_tokens for r in requests), default=1)
    running, in_swap = held(Status.RUNNING), held(Status.SWAPPED)
    limits = limits_of(
        block_size=BLOCK_SIZE,
        # Those in swap space passed through device blocks when these books were made.
        num_blocks=max(sum(running) + draw(st.integers(0, 6)), -(-longest // BLOCK_SIZE), *in_swap, 1),
        num_swap_blocks=sum(in_swap) + draw(st.integers(0, 4)),
        max_num_seqs=max(1, len(running) + draw(st.integers(0, 2))),
        max_num_batched_tokens=draw(st.sampled_from([1, 3, 8, 64])),
    )
    books = books_with(limits, *requests, iteration=ITERATION)
    for request in requests:
        if draw(st.integers(0, 3)) == 0:
            books.end(request.id)
        else:
            books["priority"][books.rows_of([request.id])] = draw(st.integers(0, 2))
    return books


@dataclass
class PlanInTheMaking:
    scheduled: dict[int, int] = field(default_factory=dict)
    admit: list[int] = field(default_factory=list)
    resume: list[int] = field(default_factory=list)
    evict: dict[int, EvictMode] = field(default_factory=dict)
    reject: list[int] = field(default_factory=list)

    def finished(self, iteration: int) -> Plan:
        return Plan(
            iteration=iteration,
            scheduled=np.array(list(self.scheduled), dtype=np.int64),
            num_tokens=np.array(list(self.scheduled.values()), dtype=np.int32),
            admit=np.array(self.admit, dtype=np.int64),
            resume=np.array(self.resume, dtype=np.int64),
            evict=np.array(list(self.evict), dtype=np.int64),
            evict_modes=np.array(list(self.evict.values()), dtype=np.int32),
            reject=tuple(Rejection(id=request_id, detail="") for request_id in self.reject),
        )


FATES = {
    Status.RUNNING: ("run", "run", "run", "evict", "leave"),
    Status.WAITING: ("admit", "admit", "reject", "leave"),
    Status.SWAPPED: ("resume", "resume", "leave"),
}
ALL_FATES = ("run", "evict", "admit", "reject", "resume")


@st.composite
def near_valid_plans(draw: st.DrawFn, books: Books) -> Plan:
    """Each request gets a fate that suits it; now and then one thing is wrong."""
    plan = PlanInTheMaking()
    rows = books.rows()
    wrong_id = draw(st.sampled_from([*books["id"][rows].tolist(), UNKNOWN_ID, *([0] * 6)]))
    for row in rows:
        request_id, status = int(books["id"][row]), Status(books["status"][row])
        fate = draw(st.sampled_from(ALL_FATES if request_id == wrong_id else FATES[status]))
        _decide(draw, plan, request_id, fate, max_tokens=int(books.num_lacking_tokens(rows[rows == row])[0]))
    if wrong_id == UNKNOWN_ID:
        _decide(draw, plan, UNKNOWN_ID, draw(st.sampled_from(ALL_FATES)), max_tokens=1)
    off_by = draw(st.sampled_from([0] * 9 + [1]))
    return plan.finished(ITERATION + off_by)


def _decide(draw: st.DrawFn, plan: PlanInTheMaking, request_id: int, fate: str, *, max_tokens: int) -> None:
    if fate in ("run", "admit", "resume"):
        one_too_many = draw(st.sampled_from([0] * 19 + [1]))
        plan.scheduled[request_id] = draw(st.integers(1, max_tokens)) + one_too_many * max_tokens
    if fate == "admit":
        plan.admit.append(request_id)
    elif fate == "resume":
        plan.resume.append(request_id)
    elif fate == "evict":
        plan.evict[request_id] = draw(st.sampled_from(EvictMode))
    elif fate == "reject":
        plan.reject.append(request_id)


URGENT_FIRST = replace(RECOMPUTE, ordering=Ordering.PRIORITY, preemption=Preemption.FOR_PRIORITY)
LAW = settings(max_examples=num_examples(200), suppress_health_check=list(HealthCheck))


@LAW
@given(data=st.data(), books=random_books())
def test_a_plan_is_refused_and_nothing_changes_or_it_is_applied_and_all_adds_up(data: Any, books: Books) -> None:
    plan = data.draw(near_valid_plans(books))
    before, num_free = image_of(books), books.block_pool.num_free
    try:
        checked = check(plan, books, ended=NOBODY)
    except PlanRefusedError:
        event("refused")
        assert image_of(books) == before
        return
    event("applied")
    assert image_of(books) == before
    copies = apply(checked, books)
    books.check_integrity()
    scheduled = checked.rows
    assert (books["status"][scheduled] == Status.RUNNING).all()
    stored = books["num_computed_tokens"][scheduled] + checked.num_tokens
    assert (books["num_blocks"][scheduled] == -(-stored // BLOCK_SIZE)).all()
    assert num_free >= 0
    assert checked.num_tokens.sum() <= books.limits.max_num_batched_tokens
    _assert_copies_can_be_made_in_their_order(books, copies.out, copies.into)
    _assert_each_writes_blocks_of_its_own(books, checked)
    _assert_what_is_reused_is_what_was_meant(books, checked)


def _assert_each_writes_blocks_of_its_own(books: Books, checked: CheckedPlan) -> None:
    """From the first token on that the pass computes, nobody else holds a block or can find what is written there."""
    for row, first_token in zip(checked.rows, books["num_computed_tokens"][checked.rows], strict=True):
        written = books.blocks_of(np.array([row]))[first_token // BLOCK_SIZE :]
        assert (books.block_pool.reference_counts(written) == 1).all()
        found = books.prefixes.cache.num_found_tokens(written)
        assert found[0] <= first_token % BLOCK_SIZE
        assert not found[1:].any()


def _assert_what_is_reused_is_what_was_meant(books: Books, checked: CheckedPlan) -> None:
    """A prefix is still what the cache knows its text by, once all blocks of the plan are allocated."""
    entering = zip((*checked.admit, *checked.resume), (*checked.admit_prefixes, *checked.resume_prefixes), strict=True)
    for row, prefix in entering:
        num_tokens = len(prefix.blocks) * BLOCK_SIZE
        assert books.blocks_of(np.array([row]))[: len(prefix.blocks)].tolist() == prefix.blocks.tolist()
        assert books.prefixes.match(row, num_tokens).tolist() == prefix.blocks.tolist()
        event("reuses blocks" if len(prefix.blocks) else "reuses nothing")


def _assert_copies_can_be_made_in_their_order(books: Books, out: Any, into: Any) -> None:
    """All of ``out`` first: none may overwrite what a later one reads, and no two write the same block."""
    written_swap = [block for copy in out for block in copy.target.tolist()]
    read_swap = [block for copy in into for block in copy.source.tolist()]
    written_device = [block for copy in into for block in copy.target.tolist()]
    assert len(set(written_swap)) == len(written_swap)
    assert not set(written_swap) & set(read_swap)
    assert len(set(written_device)) == len(written_device)


@LAW
@given(books=random_books(), policy=st.sampled_from([SWAP, RECOMPUTE, URGENT_FIRST]))
def test_a_plan_of_the_scheduler_always_holds(books: Books, policy: Any) -> None:
    plan = real_plan(take(books, now_us=1, latency=None), policy)
    checked = check(plan, books, ended=NOBODY)
    apply(checked, books)
    books.check_integrity()
    _assert_each_writes_blocks_of_its_own(books, checked)
    _assert_what_is_reused_is_what_was_meant(books, checked)


@LAW
@given(books=random_books())
def test_the_safe_plan_always_holds_and_runs_somebody_who_ran_before(books: Books) -> None:
    has_run = (books["status"] > Status.WAITING) | (books["num_preemptions"] > 0)
    plan = make_safe_plan(books)
    assert (len(plan.scheduled) > 0) == bool(has_run.any())
    assert has_run[books.rows_of(plan.scheduled.tolist())].all()
    apply(check(plan, books, ended=NOBODY), books)
    books.check_integrity()
