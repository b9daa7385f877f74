"""The rules of the conformance kit: they pass what keeps the invariants, and find what the scheduler's own check finds.

The two were written apart. Where `verify` finds a plan wrong in what one plan alone shows whatever the policy (limits,
blocks, tokens, fates), the kit must find it too; and it must find nothing in the plans of the real planner.
"""

from __future__ import annotations

from random import Random

import pytest
from google.protobuf.message import Message

from metronome.scheduler.v1 import plan_pb2, policy_pb2, state_pb2
from metronome_conformance.plan_rules import plan_faults
from scheduler_service import convert
from scheduler_service.core.facts import Invariant
from scheduler_service.core.plan import plan_executor
from scheduler_service.core.verify import verify
from support.messages import request_of
from support.random_states import random_executor, random_policy

NUM_STATES = 250
FOUND_BY_BOTH = {Invariant.BATCH_LIMITS, Invariant.BLOCKS, Invariant.TOKENS, Invariant.ONE_FATE}


def asked(seed: int):
    """A random state and policy, as the core and as the wire have them."""
    random = Random(seed)
    executor, policy = random_executor(random), random_policy(random)
    request = request_of(executor, policy)
    return random, executor, policy, request.state.executors[0], request.policy


@pytest.mark.parametrize("batch", range(2))
def test_nothing_is_found_in_the_plans_of_the_planner(batch: int) -> None:
    for seed in range(batch * NUM_STATES, (batch + 1) * NUM_STATES):
        _, executor, policy, state_message, policy_message = asked(seed)
        plan = convert.plan_message(plan_executor(executor, policy))
        assert plan_faults(state_message, policy_message, plan) == (), f"seed {seed}"


def append(table: Message, id: int, **values: int) -> None:
    """Add a row; what is not given is 1."""
    for field in table.DESCRIPTOR.fields:
        getattr(table, field.name).append(id if field.name == "id" else values.get(field.name, 1))


def spoil(random: Random, plan: plan_pb2.ExecutorPlan, ids: list[int]) -> None:
    """Change one thing of a plan."""
    table = plan.scheduled
    match random.choice(["tokens", "schedule", "admit", "evict", "reject", "drop", "resume"]):
        case "tokens" if table.id:
            table.num_tokens[random.randrange(len(table.id))] += random.choice([-600, -1, 1, 20, 600])
        case "drop" if table.id:
            row = random.randrange(len(table.id))
            for column in (table.id, table.num_tokens, table.reason):
                del column[row]
        case "admit" | "resume" | "evict" | "reject" as name:
            append(getattr(plan, name), random.choice(ids), mode=random.choice([1, 2]))
        case _:
            append(table, random.choice([*ids, 999_999]))


def test_what_the_scheduler_s_own_check_finds_is_found() -> None:
    num_broken = 0
    for seed in range(NUM_STATES):
        random, executor, policy, state_message, policy_message = asked(seed)
        plan = convert.plan_message(plan_executor(executor, policy))
        plan.digest = 0
        spoil(random, plan, list(state_message.requests.id))
        found = {violation.invariant for violation in verify(executor, convert.plan_from(plan, "plan"), policy)}
        if found & FOUND_BY_BOTH:
            num_broken += 1
            assert plan_faults(state_message, policy_message, plan), f"seed {seed}: {found}"
    assert num_broken > NUM_STATES / 2


def two_running() -> state_pb2.ExecutorState:
    state = state_pb2.ExecutorState(
        executor_id="one",
        iteration=3,
        limits=state_pb2.ExecutorLimits(
            max_num_batched_tokens=64, max_num_seqs=4, block_size=16, num_blocks=4, max_model_len=128
        ),
        num_free_blocks=0,
        num_free_swap_blocks=0,
    )
    table = state.requests
    table.id.extend([1, 2])
    table.status.extend([state_pb2.REQUEST_STATUS_RUNNING] * 2)
    table.num_prompt_tokens.extend([32, 20])
    table.num_output_tokens.extend([1, 1])
    table.num_computed_tokens.extend([32, 20])
    table.num_blocks.extend([2, 2])
    table.arrival_time_us.extend([1, 2])
    return state


def plan_for(state: state_pb2.ExecutorState, **tables: object) -> plan_pb2.ExecutorPlan:
    return plan_pb2.ExecutorPlan(executor_id=state.executor_id, iteration=state.iteration, **tables)


@pytest.mark.parametrize(
    ("tables", "number"),
    [
        ({"scheduled": plan_pb2.ScheduledTable(id=[1, 2], num_tokens=[1, 1])}, "2"),
        ({"scheduled": plan_pb2.ScheduledTable(id=[2], num_tokens=[2])}, "3"),
        ({}, "5"),
        (
            {
                "scheduled": plan_pb2.ScheduledTable(id=[2], num_tokens=[1]),
                "evict": plan_pb2.EvictTable(id=[1], mode=[plan_pb2.EVICT_MODE_RECOMPUTE]),
            },
            "6",
        ),
    ],
)
def test_each_fault_has_the_number_of_its_invariant(tables: dict[str, object], number: str) -> None:
    state = two_running()
    for table in tables.values():
        table.reason.extend([plan_pb2.REASON_DECODE] * len(table.id))
    faults = plan_faults(state, policy_pb2.Policy(), plan_for(state, **tables))
    assert number in {fault.partition(":")[0] for fault in faults}
