"""A plan in eight bytes: the same on any replica for the same state and policy.

BLAKE2b-64 over the executor's id, the iteration and the columns of the five lists in the order of plan.proto, numbers
as little-endian int64; the lengths of the id and of the lists stand before them. What describes the plan (composition,
prediction, shortfall, explanations) follows from these and is left out.
"""

from __future__ import annotations

from hashlib import blake2b

import numpy as np

from scheduler_service.core.executor_plan import ExecutorPlan
from scheduler_service.core.state import IntArray


def digest(plan: ExecutorPlan) -> int:
    """The digest as a signed 64-bit number, as `ExecutorPlan.digest` carries it."""
    executor_id = plan.executor_id.encode()
    hasher = blake2b(len(executor_id).to_bytes(8, "little"), digest_size=8)
    hasher.update(executor_id)
    hasher.update(np.concatenate(_numbers(plan)).astype("<i8", copy=False).tobytes())
    return int.from_bytes(hasher.digest(), "little", signed=True)


def _numbers(plan: ExecutorPlan) -> list[IntArray]:
    scheduled, admit, resume, evict, reject = plan.scheduled, plan.admit, plan.resume, plan.evict, plan.reject
    tables = (
        (scheduled.id, scheduled.num_tokens, scheduled.reason),
        (admit.id, admit.reason),
        (resume.id, resume.reason),
        (evict.id, evict.mode, evict.reason),
        (reject.id, reject.reason, reject.needed, reject.available, reject.estimated_wait_us),
    )
    lengths = np.array([plan.iteration, *(len(columns[0]) for columns in tables)], dtype=np.int64)
    return [lengths, *(column for columns in tables for column in columns)]
