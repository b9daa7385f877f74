"""Whoever has drafts, everything else is decided as if nobody had any: in this pass, and in the next one."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import numpy as np
import pytest

from scheduler_service.core.executor_plan import ExecutorPlan, Reason
from scheduler_service.core.plan import plan_executor
from scheduler_service.core.policy import Policy
from scheduler_service.core.state import ExecutorState, Requests, RequestStatus
from support.depth import seeds
from support.random_states import random_executor, random_policy

SEEDS = seeds(1500)
CHUNKS = range(6)
MOST_DRAFTS = 24


def drawn(seed: int) -> tuple[ExecutorState, Policy]:
    """A state in which many have drafts."""
    random = Random(seed)
    executor, policy = random_executor(random), random_policy(random)
    table = executor.requests
    table.num_draft_tokens[:] = [random.choice([0, random.randint(1, MOST_DRAFTS)]) for _ in range(len(table))]
    return executor, policy


def without_drafts(executor: ExecutorState) -> ExecutorState:
    requests = Requests(executor.requests.matrix.copy())
    requests.num_draft_tokens[:] = 0
    return replace(executor, requests=requests)


def tokens(plan: ExecutorPlan) -> dict[int, int]:
    return dict(zip(plan.scheduled.id.tolist(), plan.scheduled.num_tokens.tolist(), strict=True))


def lists(plan: ExecutorPlan) -> list[list[int]]:
    tables = (plan.admit, plan.resume, plan.evict, plan.reject)
    return [getattr(table, name).tolist() for table in tables for name in table.__slots__]


@pytest.mark.parametrize("chunk", CHUNKS)
def test_all_else_is_decided_as_without(chunk: int) -> None:
    for seed in SEEDS[chunk :: len(CHUNKS)]:
        executor, policy = drawn(seed)
        plan, plain = plan_executor(executor, policy), plan_executor(without_drafts(executor), policy)
        assert (lists(plan), plan.shortfall) == (lists(plain), plain.shortfall), seed
        drafts = dict(zip(executor.requests.id.tolist(), executor.requests.num_draft_tokens.tolist(), strict=True))
        assert list(tokens(plan)) == list(tokens(plain)), seed
        for (id, with_drafts), alone in zip(tokens(plan).items(), tokens(plain).values(), strict=True):
            assert alone <= with_drafts <= alone + drafts[id], seed


@pytest.mark.parametrize("chunk", CHUNKS)
def test_blocks_do_not_run_out_in_the_next_pass_for_them(chunk: int) -> None:
    for seed in SEEDS[chunk :: len(CHUNKS)]:
        executor, policy = drawn(seed)
        plan, plain = plan_executor(executor, policy), plan_executor(without_drafts(executor), policy)
        after = without_drafts(foreseen(executor, plan))
        if not ran_out(plan_executor(without_drafts(foreseen(executor, plain)), policy)):
            assert not ran_out(plan_executor(after, policy)), seed


def test_drafts_run_and_do_not_run() -> None:
    num_run, num_asked, num_more_blocks = 0, 0, 0
    for seed in range(1500):
        executor, policy = drawn(seed)
        plan, plain = plan_executor(executor, policy), plan_executor(without_drafts(executor), policy)
        num_run += plan.composition.num_decode_tokens - plain.composition.num_decode_tokens
        num_asked += int(executor.requests.num_draft_tokens[executor.requests.status == RequestStatus.RUNNING].sum())
        num_more_blocks += foreseen(executor, plan).num_free_blocks < foreseen(executor, plain).num_free_blocks
    assert num_asked / 20 < num_run < num_asked / 2
    assert num_more_blocks > 100


def ran_out(plan: ExecutorPlan) -> bool:
    short = plan.shortfall is not None and plan.shortfall.reason == Reason.WAITING_AFTER_EVICTION
    return short or bool((plan.evict.reason == Reason.EVICTED_OUT_OF_BLOCKS).any())


def foreseen(executor: ExecutorState, plan: ExecutorPlan) -> ExecutorState:
    """What a plan leaves of those on the device, all drafts being right and nobody having ended."""
    table, block_size = Requests(executor.requests.matrix.copy()), executor.limits.block_size
    run = np.array([tokens(plan).get(id, 0) for id in table.id.tolist()], dtype=np.int64)
    evicted, enters = np.isin(table.id, plan.evict.id), np.isin(table.id, [*plan.admit.id, *plan.resume.id])
    on_device = (table.status == RequestStatus.RUNNING) | (table.status == RequestStatus.LOADING)
    had = table.num_blocks * on_device + table.num_shared_blocks * (table.status == RequestStatus.WAITING)
    table.num_computed_tokens[:] += run
    lacks = table.num_prompt_tokens + table.num_output_tokens - table.num_computed_tokens
    table.num_output_tokens[:] += np.maximum(1 - lacks, 0)
    table.num_blocks[:] = np.maximum(-(-table.num_computed_tokens // block_size), table.num_blocks)
    table.status[enters] = RequestStatus.RUNNING
    stays = (on_device | enters) & ~evicted
    freed = (had - table.num_shared_blocks)[evicted].sum()
    return replace(
        executor,
        iteration=executor.iteration + 1,
        num_free_blocks=int(executor.num_free_blocks + freed - (table.num_blocks - had)[stays].sum()),
        requests=Requests(table.matrix[:, stays]),
    )
