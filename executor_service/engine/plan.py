"""A plan as the engine reads it: ids and small arrays. What each list means is said in the contract (plan.proto)."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.int64]


class EvictMode(IntEnum):
    """Numbered as in the contract."""

    SWAP = 1
    RECOMPUTE = 2


class EvictReason(IntEnum):
    """Numbered as in the contract. What a plan does not say, or says by a number of a later contract, is UNKNOWN."""

    UNKNOWN = 0
    OUT_OF_BLOCKS = 20
    FOR_PRIORITY = 21

    @classmethod
    def _missing_(cls, value: object) -> EvictReason:
        return cls.UNKNOWN


class PlanSource(IntEnum):
    """Where the plan of a pass came from; numbered as in the contract."""

    OVERLAPPED = 1
    DIRECT = 2
    SAFE = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejection:
    """A request that the scheduler turns away for good: the sentence for its client, and the figures behind it."""

    id: int
    detail: str
    reason: str = ""  # the contract's name of it, without its prefix
    needed: int = 0
    available: int = 0
    estimated_wait_us: int = 0  # 0: unknown, or it can never run


def _no_ids() -> Ids:
    return np.empty(0, dtype=np.int64)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Plan:
    """Applied in the order evict, resume, admit; then one pass over ``scheduled``."""

    iteration: int
    scheduled: Ids = field(default_factory=_no_ids)  # [n]
    num_tokens: NDArray[np.int32] = field(default_factory=lambda: np.empty(0, dtype=np.int32))  # [n]
    admit: Ids = field(default_factory=_no_ids)
    resume: Ids = field(default_factory=_no_ids)
    evict: Ids = field(default_factory=_no_ids)  # [m]
    evict_modes: NDArray[np.int32] = field(default_factory=lambda: np.empty(0, dtype=np.int32))  # [m] EvictMode
    evict_reasons: NDArray[np.int32] = field(
        default_factory=lambda: np.empty(0, dtype=np.int32)
    )  # [m], or [0]: unknown
    shortfall_reason: str = ""  # what keeps the first of those that wait out, by the contract's name; empty: nothing
    reject: tuple[Rejection, ...] = ()
    predicted_us: int = 0
    kv_residency_charge: float | None = None  # tokens for a block held during the pass; None: as before
