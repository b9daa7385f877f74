"""The verifier reports a plan that breaks an invariant: each invariant with plans that break it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from support.states import executor_of, loading, preempted, running, swapped, waiting

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
from scheduler_service.core.policy import Admission, Policy, Preemption
from scheduler_service.core.state import ExecutorState
from scheduler_service.core.verify import Invariant, verify

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
