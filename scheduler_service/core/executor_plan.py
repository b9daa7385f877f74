"""What a decision consists of: the lists of plan.proto as columns.

Columns of one list have one length. `scheduled`, `admit`, `resume`, `evict` and `reject` are sorted by the policy's
order, `explanations` by id. An executor applies a plan whole or refuses it whole.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from typing import NamedTuple

import numpy as np

from scheduler_service.core.state import IntArray


class EvictMode(IntEnum):
    """Where the KV of an evicted request goes, numbered as in plan.proto."""

    SWAP = 1
    RECOMPUTE = 2


class Reason(IntEnum):
    """Why a request was treated as it was, numbered as in plan.proto, where each is described."""

    DECODE = 1
    PREFILL = 2
    PREFILL_CHUNK_SIZE = 3
    PREFILL_TOKEN_BUDGET = 4
    ADMITTED = 10
    READMITTED = 11
    BACKFILLED = 12
    RESUMED = 13
    SKIPPED_AHEAD = 14
    EVICTED_OUT_OF_BLOCKS = 20
    EVICTED_FOR_PRIORITY = 21
    WAITING_FOR_BLOCKS = 30
    WAITING_FOR_SEQS = 31
    WAITING_FOR_TOKEN_BUDGET = 32
    WAITING_BEHIND = 33
    WAITING_AFTER_EVICTION = 34
    WAITING_FOR_KV = 35
    WAITING_DRAINING = 36
    WAITING_FOR_SHARED_PREFIX = 37
    WAITING_FOR_PREFILL_SLOT = 38
    WAITING_FOR_PHASE = 39
    REJECTED_EXCEEDS_BLOCKS = 50
    REJECTED_EXCEEDS_MODEL_LEN = 51
    REJECTED_QUEUE_FULL = 52
    REJECTED_TENANT_QUEUE_FULL = 53
    REJECTED_DEADLINE = 54


_NONE: IntArray = np.zeros(0, dtype=np.int64)


def _empty() -> IntArray:
    return _NONE


@dataclass(frozen=True, slots=True, eq=False)
class Scheduled:
    """Who runs in the pass, and how many tokens each."""

    id: IntArray = field(default_factory=_empty)
    num_tokens: IntArray = field(default_factory=_empty)
    reason: IntArray = field(default_factory=_empty)


@dataclass(frozen=True, slots=True, eq=False)
class Transitions:
    """Who enters the running set."""

    id: IntArray = field(default_factory=_empty)
    reason: IntArray = field(default_factory=_empty)


@dataclass(frozen=True, slots=True, eq=False)
class Evictions:
    """Who leaves the device, and where the KV goes."""

    id: IntArray = field(default_factory=_empty)
    mode: IntArray = field(default_factory=_empty)
    reason: IntArray = field(default_factory=_empty)


@dataclass(frozen=True, slots=True, eq=False)
class Rejections:
    """Who is turned away, and what they would have needed of what there is."""

    id: IntArray = field(default_factory=_empty)
    reason: IntArray = field(default_factory=_empty)
    needed: IntArray = field(default_factory=_empty)
    available: IntArray = field(default_factory=_empty)
    estimated_wait_us: IntArray = field(default_factory=_empty)


NO_TRANSITIONS, NO_EVICTIONS, NO_REJECTIONS = Transitions(), Evictions(), Rejections()


class Composition(NamedTuple):
    """The phases of a pass in figures."""

    num_prefill_tokens: int = 0
    num_decode_tokens: int = 0
    num_prefill_requests: int = 0
    num_decode_requests: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Shortfall:
    """What keeps the first waiting request out: "needs 14 blocks, 9 free"."""

    id: int
    reason: Reason
    needed: int = 0
    available: int = 0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Explanations:
    """The reason of every request. `behind_id` 0: behind nobody."""

    id: IntArray
    reason: IntArray
    needed: IntArray
    available: IntArray
    behind_id: IntArray


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ExecutorPlan:
    """The decision for one pass of one executor. `digest`: signed, as `digest.py` computes it; 0: none given.

    `kv_residency_charge`: what the executor charges tenants for a block held during the pass, in tokens.
    """

    executor_id: str
    iteration: int
    scheduled: Scheduled = field(default_factory=Scheduled)
    admit: Transitions = field(default_factory=Transitions)
    resume: Transitions = field(default_factory=Transitions)
    evict: Evictions = field(default_factory=Evictions)
    reject: Rejections = field(default_factory=Rejections)
    composition: Composition = field(default_factory=Composition)
    predicted_time_us: int = 0
    shortfall: Shortfall | None = None
    explanations: Explanations | None = None
    digest: int = 0
    kv_residency_charge: float = 0.0
