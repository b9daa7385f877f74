"""A plan in eight bytes: the same on any replica for the same state and policy.

BLAKE2b-64 over the executor's id, the iteration and the columns of the five lists in the order of plan.proto, numbers
as little-endian int64; the lengths of the id and of the lists stand before them. What describes the plan (composition,
prediction, shortfall, explanations) follows from these and is left out.
"""

from __future__ import annotations

from hashlib import blake2b

import numpy as np

from scheduler_service.core.executor_plan import Evictions, ExecutorPlan, Rejections, Scheduled, Transitions


def digest(plan: ExecutorPlan) -> int:
    """The digest of a plan as a signed 64-bit number, as `ExecutorPlan.digest` carries it."""
    lists = (plan.scheduled, plan.admit, plan.resume, plan.evict, plan.reject)
    return digest_of(plan.executor_id, plan.iteration, *lists)


def digest_of(
    executor_id: str,
    iteration: int,
    scheduled: Scheduled,
    admit: Transitions,
    resume: Transitions,
    evict: Evictions,
    reject: Rejections,
) -> int:
    """The digest of a plan of these lists."""
    encoded = executor_id.encode()
    hasher = blake2b(len(encoded).to_bytes(8, "little"), digest_size=8)
    hasher.update(encoded)
    tables = (
        (scheduled.id, scheduled.num_tokens, scheduled.reason),
        (admit.id, admit.reason),
        (resume.id, resume.reason),
        (evict.id, evict.mode, evict.reason),
        (reject.id, reject.reason, reject.needed, reject.available, reject.estimated_wait_us),
    )
    lengths = np.array([iteration, *(len(columns[0]) for columns in tables)], dtype=np.int64)
    numbers = np.concatenate([lengths, *(column for columns in tables for column in columns)])
    hasher.update(numbers.astype("<i8", copy=False).tobytes())
    return int.from_bytes(hasher.digest(), "little", signed=True)
