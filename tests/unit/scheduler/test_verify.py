"""The verifier reports a plan that breaks an invariant: each invariant with plans that break it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from scheduler_service.core.executor_plan import (
    Evictions,
    EvictMode,
    ExecutorPlan,
    Reason,
    Rejections,
    Scheduled,
    Transitions,
)
from scheduler_service.core.plan import plan_executor
from scheduler_service.core.policy import Admission, BatchComposition, HeadOfLine, Ordering, Policy, Preemption
from scheduler_service.core.state import ExecutorState
from scheduler_service.core.verify import Invariant, verify
from support.states import TENANTS, executor_of, loading, preempted, running, swapped, waiting

FIFO = Policy()


def plan_of(
    scheduled: dict[int, int] | None = None,
    admit: tuple[int, ...] = (),
    resume: tuple[int, ...] = (),
    evict: dict[int, EvictMode] | None = None,
    reject: tuple[int, ...] = (),
    **fields: Any,
) -> ExecutorPlan:
    """A hand-made plan for the executor of the tests."""
    scheduled, evict = scheduled or {}, evict or {}
    return ExecutorPlan(
        executor_id=fields.pop("executor_id", "executor-0"),
        iteration=fields.pop("iteration", 10),
        scheduled=Scheduled(id=column(scheduled), num_tokens=column(scheduled.values())),
        admit=Transitions(id=column(admit)),
        resume=Transitions(id=column(resume)),
        evict=Evictions(id=column(evict), mode=column(evict.values())),
        reject=Rejections(id=column(reject), reason=column([Reason.REJECTED_EXCEEDS_BLOCKS] * len(reject))),
        **fields,
    )


def column(values: Any) -> np.ndarray:
    return np.array(list(values), dtype=np.int64)


TWO_RUN = executor_of(running(1), running(2), num_blocks=8)
FULL = executor_of(running(1), running(2), waiting(3), num_blocks=2)
ONE_FREE = executor_of(waiting(1, num_prompt_tokens=17), num_blocks=2, num_free_blocks=1)
SWAP, RECOMPUTE = EvictMode.SWAP, EvictMode.RECOMPUTE


@pytest.mark.parametrize(
    ("state", "plan", "invariant", "ids"),
    [
        (executor_of(running(1), running(2), max_num_batched_tokens=1), plan_of({1: 1, 2: 1}), "BATCH_LIMITS", ()),
        (executor_of(running(1), waiting(2), max_num_seqs=1), plan_of({1: 1, 2: 1}, admit=(2,)), "BATCH_LIMITS", ()),
        (executor_of(loading(1), waiting(2), max_num_seqs=1), plan_of({2: 1}, admit=(2,)), "BATCH_LIMITS", ()),
        (FULL, plan_of({1: 1}), "BLOCKS", ()),
        (ONE_FREE, plan_of({1: 17}, admit=(1,)), "BLOCKS", ()),
        (executor_of(swapped(1), num_swap_blocks=1, num_free_blocks=1), plan_of({1: 1}, resume=(1,)), "BLOCKS", ()),
        (FULL, plan_of({1: 1}, evict={2: SWAP}), "BLOCKS", ()),
        (TWO_RUN, plan_of({1: 2, 2: 1}), "TOKENS", (1,)),
        (TWO_RUN, plan_of({1: 0, 2: 1}), "TOKENS", (1,)),
        (executor_of(waiting(1)), plan_of({1: 17}, admit=(1,)), "TOKENS", (1,)),
        (executor_of(running(1, num_draft_tokens=2)), plan_of({1: 4}), "TOKENS", (1,)),
        (TWO_RUN, plan_of({1: 1, 2: 1}, evict={2: RECOMPUTE}), "ONE_FATE", (2,)),
        (TWO_RUN, plan_of({1: 1, 9: 1}), "ONE_FATE", (9,)),
        (executor_of(waiting(1)), plan_of({1: 1}), "ONE_FATE", (1,)),
        (executor_of(waiting(1)), plan_of(admit=(1,)), "ONE_FATE", (1,)),
        (executor_of(waiting(1)), plan_of({1: 1}, admit=(1,), reject=(1,)), "ONE_FATE", (1,)),
        (executor_of(waiting(1)), plan_of({1: 1}, resume=(1,)), "ONE_FATE", (1,)),
        (executor_of(loading(1)), plan_of({1: 1}), "ONE_FATE", (1,)),
        (executor_of(swapped(1), num_swap_blocks=1), plan_of(evict={1: SWAP}), "ONE_FATE", (1,)),
        (TWO_RUN, plan_of(), "PROGRESS", (1, 2)),
        (executor_of(waiting(1)), plan_of(), "PROGRESS", (1,)),
        (executor_of(waiting(1, num_prompt_tokens=40), num_blocks=2), plan_of(), "PROGRESS", (1,)),
        (executor_of(waiting(1)), plan_of(reject=(1,)), "PROGRESS", (1,)),
        (FULL, plan_of({2: 1}, evict={1: RECOMPUTE}), "NO_LIVELOCK", (1,)),
        (FULL, plan_of({3: 1}, evict={2: RECOMPUTE}, admit=(3,)), "NO_LIVELOCK", (3,)),
        (executor_of(waiting(1), preempted(2)), plan_of({1: 16}, admit=(1,)), "NO_LIVELOCK", (2,)),
        (executor_of(waiting(1), waiting(2)), plan_of({2: 16}, admit=(2,)), "NO_STARVATION", (1, 2)),
        (TWO_RUN, plan_of({1: 1, 2: 1}, iteration=9), "DETERMINISM", ()),
        (TWO_RUN, plan_of({1: 1, 2: 1}, executor_id="other"), "DETERMINISM", ()),
        (TWO_RUN, plan_of({1: 1, 2: 1}, digest=4711), "DETERMINISM", ()),
        (TWO_RUN, plan_of({1: 1}, evict={2: RECOMPUTE}), "EVICTION_ALLOWED", (2,)),
        (
            executor_of(running(1), running(2, num_prompt_tokens=10), waiting(3), num_blocks=9),
            plan_of({1: 1, 3: 16}, admit=(3,)),
            "DECODE_DELAY",
            (2,),
        ),
        (
            executor_of(running(1, num_prompt_tokens=9, last_run_iteration=9), running(2, num_prompt_tokens=9)),
            plan_of({1: 1}),
            "DECODE_DELAY",
            (1, 2),
        ),
        (
            executor_of(running(1, num_prompt_tokens=9, num_draft_tokens=2), running(2, num_prompt_tokens=9)),
            plan_of({1: 3}),
            "DECODE_DELAY",
            (1, 2),
        ),
        (
            executor_of(running(1, num_prompt_tokens=15, num_draft_tokens=3), running(2), num_blocks=2),
            plan_of({1: 4}, evict={2: RECOMPUTE}),
            "EVICTION_ALLOWED",
            (1,),
        ),
    ],
)  # fmt: skip
def test_a_broken_plan_is_reported(
    state: ExecutorState, plan: ExecutorPlan, invariant: str, ids: tuple[int, ...]
) -> None:
    found = verify(state, plan, FIFO)
    assert (Invariant[invariant], ids) in [(violation.invariant, violation.ids) for violation in found]
    assert all(violation.executor_id == "executor-0" and violation.description for violation in found)


def test_under_never_any_eviction_is_reported() -> None:
    never = Policy(preemption=Preemption.NEVER, admission=Admission.RESERVE)
    found = verify(FULL, plan_executor(FULL, FIFO), never)
    assert [violation.invariant for violation in found] == [Invariant.EVICTION_ALLOWED]


def test_a_plan_without_a_digest_is_no_violation() -> None:
    assert verify(TWO_RUN, replace(plan_executor(TWO_RUN, FIFO), digest=0), FIFO) == ()


def policy_of(**settings: Any) -> Policy:
    return replace(FIFO, watermark=0.0, **settings)


PRIORITY = policy_of(ordering=Ordering.PRIORITY)
FOR_PRIORITY = replace(PRIORITY, preemption=Preemption.FOR_PRIORITY)
PREFILLS = running(2, num_prompt_tokens=40, num_output_tokens=0, num_computed_tokens=20, num_blocks=2)
BLOCKED_HEAD = (running(1, num_prompt_tokens=62, max_output_tokens=6), waiting(2, num_prompt_tokens=96))
SMALL = waiting(3, max_output_tokens=2)


def rejecting(id: int, reason: Reason, **fields: Any) -> ExecutorPlan:
    return replace(plan_of(**fields), reject=Rejections(id=column([id]), reason=column([reason])))


@pytest.mark.parametrize(
    ("state", "plan", "policy", "invariant", "ids"),
    [
        (
            executor_of(waiting(1), waiting(2, priority=1), max_num_seqs=1),
            plan_of({1: 16}, admit=(1,)),
            PRIORITY,
            "NO_STARVATION",
            (1, 2),
        ),
        (
            executor_of(waiting(1, deadline_us=9), waiting(2, deadline_us=8), max_num_seqs=1),
            plan_of({1: 16}, admit=(1,)),
            policy_of(ordering=Ordering.EARLIEST_DEADLINE_FIRST),
            "NO_STARVATION",
            (1, 2),
        ),
        (
            executor_of(waiting(1, num_prompt_tokens=40), waiting(2), max_num_seqs=1),
            plan_of({1: 40}, admit=(1,)),
            policy_of(ordering=Ordering.SHORTEST_JOB_FIRST),
            "NO_STARVATION",
            (1, 2),
        ),
        (
            executor_of(waiting(1), waiting(2, num_prompt_tokens=17), max_num_seqs=1, tenants=TENANTS),
            plan_of({2: 17}, admit=(2,)),
            policy_of(ordering=Ordering.FAIR),
            "NO_STARVATION",
            (1, 2),
        ),
        (
            executor_of(running(1), waiting(2), max_num_seqs=1),
            plan_of({2: 16}, admit=(2,), evict={1: RECOMPUTE}),
            FOR_PRIORITY,
            "NO_LIVELOCK",
            (1,),
        ),
        (
            executor_of(running(1), running(2, num_preemptions=2), running(3), num_blocks=5, num_free_blocks=1),
            plan_of({1: 1, 3: 1}, evict={2: RECOMPUTE}),
            policy_of(max_preemptions=2),
            "EVICTION_ALLOWED",
            (2,),
        ),
        (
            executor_of(*BLOCKED_HEAD, SMALL, num_blocks=8),
            plan_of({1: 1, 3: 16}, admit=(3,)),
            policy_of(head_of_line=HeadOfLine.SKIP, max_times_overtaken=0),
            "NO_STARVATION",
            (2, 3),
        ),
        (
            executor_of(*BLOCKED_HEAD, waiting(3, max_output_tokens=50), num_blocks=8),
            plan_of({1: 1, 3: 16}, admit=(3,)),
            policy_of(head_of_line=HeadOfLine.BACKFILL),
            "NO_STARVATION",
            (2, 3),
        ),
        (
            executor_of(running(1), PREFILLS),
            plan_of({1: 1, 2: 20}),
            policy_of(batch_composition=BatchComposition.SEPARATE),
            "DECODE_DELAY",
            (),
        ),
        (
            executor_of(PREFILLS, waiting(3)),
            plan_of({2: 20, 3: 16}, admit=(3,)),
            policy_of(max_num_partial_prefills=1),
            "BATCH_LIMITS",
            (),
        ),
        (
            executor_of(waiting(1), waiting(2), max_num_seqs=1),
            plan_of({1: 16}, admit=(1,)),
            policy_of(max_num_waiting=0),
            "PROGRESS",
            (2,),
        ),
        (
            executor_of(waiting(1), waiting(2), max_num_seqs=1),
            rejecting(2, Reason.REJECTED_QUEUE_FULL, scheduled={1: 16}, admit=(1,)),
            policy_of(max_num_waiting=1),
            "PROGRESS",
            (2,),
        ),
        (
            executor_of(running(9), waiting(1), waiting(2), max_num_seqs=1),
            rejecting(1, Reason.REJECTED_QUEUE_FULL, scheduled={9: 1}),
            policy_of(max_num_waiting=1),
            "PROGRESS",
            (1, 2),
        ),
        (
            executor_of(running(9), waiting(1)),
            rejecting(1, Reason.REJECTED_DEADLINE, scheduled={9: 1}),
            policy_of(reject_missed_deadlines=True),
            "PROGRESS",
            (1,),
        ),
        (
            executor_of(waiting(1, next_block_hash=7), waiting(2, next_block_hash=7)),
            plan_of({1: 16, 2: 16}, admit=(1, 2)),
            policy_of(hold_for_shared_prefix=True),
            "SHARED_PREFIX",
            (1, 2),
        ),
        (
            executor_of({**PREFILLS, "next_block_hash": -7}, waiting(3, next_block_hash=-7)),
            plan_of({2: 20, 3: 16}, admit=(3,)),
            policy_of(hold_for_shared_prefix=True),
            "SHARED_PREFIX",
            (2, 3),
        ),
        (
            executor_of(waiting(1), waiting(2, next_block_hash=7), max_num_seqs=1),
            plan_of({2: 16}, admit=(2,)),
            policy_of(hold_for_shared_prefix=True),
            "NO_STARVATION",
            (1, 2),
        ),
        (
            executor_of(running(1)),
            plan_of({1: 1}),
            policy_of(ordering=Ordering.FAIR, kv_residency_charge=0.5),
            "NO_STARVATION",
            (),
        ),
    ],
)
def test_a_plan_that_breaks_a_rule_of_its_policy_is_reported(
    state: ExecutorState, plan: ExecutorPlan, policy: Policy, invariant: str, ids: tuple[int, ...]
) -> None:
    found = [(violation.invariant, violation.ids) for violation in verify(state, plan, policy)]
    assert (Invariant[invariant], ids) in found
    assert verify(state, plan_executor(state, policy), policy) == ()
