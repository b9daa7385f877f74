"""A plan in eight bytes: the same on any replica for the same state and policy.

BLAKE2b-64 over the executor's id, the iteration and the columns of the five lists in the order of plan.proto, numbers
as little-endian int64; the lengths of the id and of the lists stand before them. What describes the plan (composition,
prediction, shortfall, explanations) follows from these and is left out.
"""

from __future__ import annotations

from hashlib import blake2b
from struct import Struct

import numpy as np

from scheduler_service.core.executor_plan import Evictions, ExecutorPlan, Rejections, Scheduled, Transitions

_INT64 = np.dtype("<i8")
_NUM_BYTES = Struct("<q")
_ITERATION_AND_LENGTHS = Struct("<6q")


def digest(plan: ExecutorPlan) -> int:
    """The digest of a plan as a signed 64-bit number, as `ExecutorPlan.digest` carries it."""
    return digest_of(plan.executor_id, plan.iteration, plan.scheduled, plan.admit, plan.resume, plan.evict, plan.reject)


def digest_of(executor_id: str, iteration: int, *lists: Scheduled | Transitions | Evictions | Rejections) -> int:
    """The digest of a plan of these five lists."""
    encoded = executor_id.encode()
    parts = [_NUM_BYTES.pack(len(encoded)), encoded]
    parts.append(_ITERATION_AND_LENGTHS.pack(iteration, *[len(table.id) for table in lists]))
    for table in lists:
        if len(table.id) > 0:
            parts += [getattr(table, name).astype(_INT64, copy=False).tobytes() for name in table.__slots__]
    return int.from_bytes(blake2b(b"".join(parts), digest_size=8).digest(), "little", signed=True)
