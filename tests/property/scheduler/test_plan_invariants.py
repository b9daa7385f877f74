"""Invariants 1 to 6, 8 and 9 (and 10) of the design, on random states and policies."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import numpy as np
from hypothesis import assume, given
from hypothesis import strategies as st

from scheduler_service.core.executor_plan import ExecutorPlan, Reason
from scheduler_service.core.explain import explain_executor
from scheduler_service.core.plan import plan_executor
from scheduler_service.core.policy import Policy, check_policy
from scheduler_service.core.state import ExecutorState, RequestStatus
from scheduler_service.core.validate import validate
from scheduler_service.core.verify import verify
from support.states import cluster_of, executors, permuted, policies


@given(executors(), policies())
def test_a_plan_keeps_every_invariant(executor: ExecutorState, policy: Policy) -> None:
    validate(cluster_of(executor))
    check_policy(policy, "policy")
    assert verify(executor, plan_executor(executor, policy), policy) == ()


@given(executors(), policies(), st.randoms(use_true_random=False))
def test_the_order_of_the_rows_does_not_matter(executor: ExecutorState, policy: Policy, random: Random) -> None:
    order = list(range(len(executor.requests)))
    random.shuffle(order)
    shuffled = replace(executor, requests=permuted(executor, np.array(order)))
    plan, again = plan_executor(executor, policy), plan_executor(shuffled, policy)
    assert plan.digest == again.digest
    assert plan.shortfall == again.shortfall
    assert plan.composition == again.composition
    assert plan.predicted_time_us == again.predicted_time_us
    for table in ("scheduled", "admit", "resume", "evict", "reject"):
        for column in getattr(plan, table).__slots__:
            before, after = getattr(getattr(plan, table), column), getattr(getattr(again, table), column)
            assert before.tolist() == after.tolist(), (table, column)


@given(executors(), policies())
def test_every_request_has_its_reason(executor: ExecutorState, policy: Policy) -> None:
    plan = plan_executor(executor, policy)
    explanations = explain_executor(executor, plan, policy)
    assert explanations.id.tolist() == sorted(executor.requests.id.tolist())
    ids_waiting = {*explanations.id.tolist()} - {*plan.scheduled.id.tolist(), *plan.evict.id.tolist()}
    for id, reason in zip(explanations.id.tolist(), explanations.reason.tolist(), strict=True):
        is_waiting = Reason(reason).name.startswith(("WAITING", "REJECTED"))
        assert is_waiting == (id in ids_waiting)


@given(executors(), policies(), st.integers(1, 20))
def test_more_free_blocks_never_shorten_the_admitted_prefix(executor: ExecutorState, policy: Policy, more: int) -> None:
    # With someone running, a block more may let it run, and take the tokens that an admission had.
    assume(RequestStatus.RUNNING not in executor.requests.status)
    fewer = replace(executor, limits=replace(executor.limits, num_blocks=executor.limits.num_blocks + more))
    larger = replace(fewer, num_free_blocks=executor.num_free_blocks + more)
    assert in_turn(plan_executor(fewer, policy)) <= in_turn(plan_executor(larger, policy))


def in_turn(plan: ExecutorPlan) -> set[int]:
    """Those admitted who passed nobody: with more blocks the one that they passed may enter, and take their tokens."""
    passing = np.isin(plan.admit.reason, [Reason.SKIPPED_AHEAD, Reason.BACKFILLED])
    return set(plan.admit.id[~passing].tolist())
