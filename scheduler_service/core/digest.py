"""A plan in eight bytes: the same on any replica for the same state and policy.

BLAKE2b-64 over the executor's id, the iteration and the columns of the five lists in the order of plan.proto, numbers
as little-endian int64; the lengths of the id and of the lists stand before them. What describes the plan (composition,
prediction, shortfall, explanations) follows from these and is left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from struct import Struct

import numpy as np

from scheduler_service.core.executor_plan import ExecutorPlan
from scheduler_service.core.state import IntArray

_INT64 = np.dtype("<i8")
_NUM_BYTES = Struct("<q")
_ITERATION_AND_LENGTHS = Struct("<6q")


def digest(plan: ExecutorPlan) -> int:
    """The digest of a plan as a signed 64-bit number, as `ExecutorPlan.digest` carries it."""
    lists = (plan.scheduled, plan.admit, plan.resume, plan.evict, plan.reject)
    lengths = [len(table.id) for table in lists]
    columns = [getattr(table, name) for table in lists if len(table.id) > 0 for name in table.__slots__]
    return digest_of(plan.executor_id, plan.iteration, lengths, columns)


def digest_of(executor_id: str, iteration: int, lengths: Sequence[int], columns: Sequence[IntArray]) -> int:
    """The digest of a plan of five lists of these lengths, and of their columns, one or more in each array."""
    encoded = executor_id.encode()
    parts = [_NUM_BYTES.pack(len(encoded)), encoded, _ITERATION_AND_LENGTHS.pack(iteration, *lengths)]
    parts += [column.astype(_INT64, copy=False).tobytes() for column in columns]
    return int.from_bytes(blake2b(b"".join(parts), digest_size=8).digest(), "little", signed=True)
