"""What can be asked for: every setting of policy.proto, with the same names, numbers and defaults.

`check_policy` refuses what makes no sense for any scheduler; the planner and the verifier rely on it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from scheduler_service.core.errors import ErrorReason, PolicyConflictError, PolicyError


class Ordering(IntEnum):
    """Who comes first."""

    FIFO = 1
    SHORTEST_JOB_FIRST = 2
    PRIORITY = 3
    EARLIEST_DEADLINE_FIRST = 4
    FAIR = 5
    SHORTEST_PREFILL_FIRST = 6
    FEWEST_LATE = 7


class Admission(IntEnum):
    """When memory allows to admit."""

    RESERVE = 1
    WATERMARK = 2
    PREDICTIVE = 3


class Preemption(IntEnum):
    """When running work may be evicted."""

    NEVER = 1
    WHEN_FULL = 2
    FOR_PRIORITY = 3


class Victim(IntEnum):
    """Whom to evict."""

    LAST_IN_ORDER = 1
    CHEAPEST = 2


class Eviction(IntEnum):
    """What happens to the KV of an evicted request."""

    SWAP = 1
    RECOMPUTE = 2
    AUTO = 3


class PrefillSharing(IntEnum):
    """How prefills share the tokens that decodes leave."""

    FIRST_COME = 1
    EQUAL = 2
    IN_ORDER = 3


class BatchComposition(IntEnum):
    """Which phases share a pass."""

    MIXED = 1
    PREFILL_FIRST = 2
    DECODE_FIRST = 3
    SEPARATE = 4


class HeadOfLine(IntEnum):
    """What happens when the first in order does not fit."""

    STRICT = 1
    SKIP = 2
    BACKFILL = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """How to decide. Each setting is described in policy.proto; None means unbounded, or none."""

    ordering: Ordering = Ordering.FIFO
    aging_seconds: float = 10.0
    kv_residency_charge: float = 0.0
    admission: Admission = Admission.WATERMARK
    watermark: float = 0.01
    preemption: Preemption = Preemption.WHEN_FULL
    victim: Victim = Victim.LAST_IN_ORDER
    max_preemptions: int | None = None
    eviction: Eviction = Eviction.AUTO
    chunk_size_tokens: int = 512
    max_num_partial_prefills: int | None = None
    prefill_sharing: PrefillSharing = PrefillSharing.FIRST_COME
    target_inter_token_latency_us: int | None = None
    batch_composition: BatchComposition = BatchComposition.MIXED
    head_of_line: HeadOfLine = HeadOfLine.STRICT
    max_times_overtaken: int = 16
    hold_for_shared_prefix: bool = False
    max_num_waiting: int | None = None
    max_num_waiting_per_tenant: int | None = None
    reject_missed_deadlines: bool = False
    max_inter_token_slowdown: float = 0.0
    ordering_within_tenant: Ordering = Ordering.FIFO
    target_time_to_first_token_us: int = 2_000_000


# Least value that a setting may have; the value itself is allowed where `_ABOVE` does not name the setting.
_LEAST: dict[str, int] = {
    "aging_seconds": 0,
    "kv_residency_charge": 0,
    "watermark": 0,
    "max_preemptions": 0,
    "chunk_size_tokens": 1,
    "max_num_partial_prefills": 1,
    "target_inter_token_latency_us": 1,
    "target_time_to_first_token_us": 1,
    "max_inter_token_slowdown": 0,
    "max_times_overtaken": 0,
    "max_num_waiting": 0,
    "max_num_waiting_per_tenant": 0,
}
_ABOVE = ("aging_seconds",)
_MOST: dict[str, float] = {"watermark": 1.0, "kv_residency_charge": 1e6, "max_inter_token_slowdown": 1e6}


def check_policy(policy: Policy, field: str) -> None:
    """Refuse a policy that makes no sense. `field`: its path in the message.

    Raises PolicyError (a setting out of its range) or PolicyConflictError.
    """
    _check_ranges(policy, field)
    if policy.preemption is Preemption.NEVER and policy.admission is not Admission.RESERVE:
        raise PolicyConflictError(
            f"{field}.preemption",
            f"NEVER needs admission RESERVE, and admission is {policy.admission.name}: a full cache would stand still",
        )
    if policy.ordering_within_tenant is Ordering.FAIR:
        raise PolicyConflictError(
            f"{field}.ordering_within_tenant", "FAIR is between tenants: within one there is nobody to share with"
        )
    if policy.preemption is Preemption.FOR_PRIORITY and policy.ordering is not Ordering.PRIORITY:
        raise PolicyConflictError(
            f"{field}.preemption",
            f"FOR_PRIORITY needs ordering PRIORITY, and ordering is {policy.ordering.name}: nobody is more important",
        )


def _check_ranges(policy: Policy, field: str) -> None:
    for name, least in _LEAST.items():
        value = getattr(policy, name)
        if value is None:
            continue
        # Written so that NaN, which is above and below nothing, is out of range too.
        inside = (value > least if name in _ABOVE else value >= least) and value <= _MOST.get(name, float("inf"))
        if not inside or value == float("inf"):
            raise PolicyError(
                f"{field}.{name}", ErrorReason.OUT_OF_RANGE, f"{value} is out of range", {"value": str(value)}
            )
