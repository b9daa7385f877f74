"""Valid states and policies drawn from a `random.Random`: busier than what Hypothesis thinks up, and faster to make."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from scheduler_service.core.policy import (
    Admission,
    BatchComposition,
    Eviction,
    HeadOfLine,
    Ordering,
    Policy,
    Preemption,
    PrefillSharing,
    Victim,
)
from scheduler_service.core.state import ExecutorState, RequestStatus
from support.states import EVEN_TENANTS, LATENCY, NOW_US, TENANTS, executor_of, share_prefixes

BLOCK_SIZE = 16


def random_policy(random: Random) -> Policy:
    """Any combination that the contract allows, half of the settings as they are by default."""
    choices = {
        "ordering": list(Ordering),
        "aging_seconds": [1e-6, 4e-6, 10.0],
        "admission": list(Admission),
        "watermark": [0.0, 0.1],
        "victim": list(Victim),
        "max_preemptions": [0, 1],
        "eviction": list(Eviction),
        "chunk_size_tokens": [5, 16, 512],
        "max_num_partial_prefills": [1, 2],
        "prefill_sharing": list(PrefillSharing),
        "target_inter_token_latency_us": [1, 1300],
        "max_inter_token_slowdown": [0.5, 1.0, 1.5],
        "batch_composition": list(BatchComposition),
        "head_of_line": list(HeadOfLine),
        "max_times_overtaken": [0, 1, 2],
        "hold_for_shared_prefix": [True],
        "kv_residency_charge": [0.5, 30.0],
        "max_num_waiting": [0, 2, 5],
        "max_num_waiting_per_tenant": [0, 2],
        "reject_missed_deadlines": [True],
        "target_time_to_first_token_us": [1, 500, 2_000],
        "ordering_within_tenant": [ordering for ordering in Ordering if ordering is not Ordering.FAIR],
    }
    policy = Policy(**{name: random.choice(values) for name, values in choices.items() if random.random() < 0.5})
    allowed = [Preemption.WHEN_FULL]
    if policy.admission is Admission.RESERVE:
        allowed.append(Preemption.NEVER)
    if policy.ordering is Ordering.PRIORITY:
        allowed += [Preemption.FOR_PRIORITY] * 2
    return replace(policy, preemption=random.choice(allowed))


def random_executor(random: Random, most_requests: int = 16) -> ExecutorState:
    """An executor whose requests mostly fit, one by one, and compete for blocks, places and tokens."""
    num_requests = random.randint(1, most_requests)
    statuses = random.choices(list(RequestStatus), weights=(5, 5, 1, 1), k=num_requests)
    rows = [_row(random, id, status) for id, status in enumerate(statuses, 1)]
    on_device = [row for row in rows if row["status"] in (RequestStatus.RUNNING, RequestStatus.LOADING)]
    held = sum(row["num_blocks"] - row["num_shared_blocks"] for row in on_device)
    in_swap = sum(row["num_blocks"] for row in rows if row["status"] == RequestStatus.SWAPPED)
    num_free = random.choice([0, 1, 2, 4, 8, 16])
    prefixes = share_prefixes(rows, num_free, random.choice)
    return executor_of(
        *random.sample(rows, len(rows)),
        prefixes=prefixes,
        block_size=BLOCK_SIZE,
        max_num_seqs=max(len(on_device) + random.choice([0, 0, 1, 2, 4]), 1),
        max_num_batched_tokens=random.choice([2, 8, 32, 64, 256]),
        num_blocks=max([held + num_free, random.choice([6, 12, 12]), *(row["num_blocks"] for row in rows)]),
        num_free_blocks=num_free,
        num_swap_blocks=in_swap + random.choice([0, 0, 3, 8]),
        max_num_waiting=random.choice([None, None, 3]),
        max_model_len=random.choice([96, 128, 128, 256]),
        latency=random.choice([None, LATENCY]),
        tenants=random.choice([TENANTS, EVEN_TENANTS]),
        draining=random.random() < 0.1,
    )


def _row(random: Random, id: int, status: RequestStatus) -> dict[str, int]:
    num_prompt, max_output = random.randint(1, 60), random.randint(1, 60)
    num_output = 0
    if status is not RequestStatus.WAITING or random.random() < 0.2:
        num_output = random.randint(0, max_output - 1) if random.random() < 0.8 else 0
    ran_before = status is RequestStatus.SWAPPED or (status is RequestStatus.WAITING and num_output > 0)
    num_computed = max(num_prompt + num_output - (1 if num_output else random.randint(1, num_prompt)), 0)
    if status is RequestStatus.WAITING:
        num_computed = random.choice([0, *range(0, num_prompt, BLOCK_SIZE)])
    num_blocks = -(-num_computed // BLOCK_SIZE)
    return {
        "id": id,
        "status": status,
        "arrival_time_us": random.randint(0, 12),
        "priority": random.choice([0, 0, 1, 3]),
        "tenant": random.randrange(len(TENANTS)),
        "num_prompt_tokens": num_prompt,
        "num_output_tokens": num_output,
        "num_computed_tokens": num_computed,
        "max_output_tokens": max_output if random.random() < 0.9 else 0,
        "expected_output_tokens": random.choice([0, max_output, random.randint(1, 60)]),
        "num_draft_tokens": random.choice([0, 0, 0, 3]) if num_output else 0,
        "deadline_us": random.choice([0, 0, NOW_US + random.randint(-100, 60_000)]),
        "num_blocks": num_blocks,
        "num_shared_blocks": random.choice([0, 0, 0, num_blocks // 2]) if status is not RequestStatus.SWAPPED else 0,
        "num_preemptions": random.choice([1, 2]) if ran_before else random.choice([0, 0, 1]) if num_output else 0,
        "last_run_iteration": random.randint(0, 9) if num_computed and status is not RequestStatus.WAITING else 0,
        "times_overtaken": random.choice([0, 0, 1, 2]) if status is RequestStatus.WAITING else 0,
        "next_block_hash": random.choice([0, 0, 7, -7, 2**62]),
    }
