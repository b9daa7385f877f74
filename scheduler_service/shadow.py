"""Plans every state a second time, under another profile, and counts how the two plans differ.

Nothing that the shadow decides reaches an executor: it sees the states that the policy in use leads to, so its counts
say what it would do next, not where it would lead.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from enum import StrEnum

import structlog

from scheduler_service.core.executor_plan import ExecutorPlan
from scheduler_service.core.plan import plan
from scheduler_service.core.policy import Policy
from scheduler_service.core.state import IntArray
from scheduler_service.observers import Missed, PlannedCall

log = structlog.get_logger(__name__)


class Difference(StrEnum):
    """In what two plans for one executor differ."""

    ADMITTED = "admitted"
    RESUMED = "resumed"
    EVICTED = "evicted"
    SCHEDULED_TOKENS = "scheduled_tokens"
    REJECTED = "rejected"


def differences(one: ExecutorPlan, other: ExecutorPlan) -> Iterator[Difference]:
    """List the kinds in which they differ. Order within a list and reasons do not count: they change nobody's fate."""
    pairs = {
        Difference.ADMITTED: (_rows(one.admit.id), _rows(other.admit.id)),
        Difference.RESUMED: (_rows(one.resume.id), _rows(other.resume.id)),
        Difference.EVICTED: (_rows(one.evict.id, one.evict.mode), _rows(other.evict.id, other.evict.mode)),
        Difference.SCHEDULED_TOKENS: (
            _rows(one.scheduled.id, one.scheduled.num_tokens),
            _rows(other.scheduled.id, other.scheduled.num_tokens),
        ),
        Difference.REJECTED: (_rows(one.reject.id), _rows(other.reject.id)),
    }
    yield from (kind for kind, (ours, theirs) in pairs.items() if ours != theirs)


def _rows(*columns: IntArray) -> set[tuple[int, ...]]:
    return set(zip(*(column.tolist() for column in columns), strict=True))


class Shadow:
    """Observes calls by planning them again. `policy`: what the profile means now, asked for at each call."""

    name = "shadow"

    def __init__(self, profile: str, policy: Callable[[], Policy]) -> None:
        self._profile = profile
        self._policy = policy
        self._num_plans = 0
        self._num_different = 0
        self._counts: Counter[Difference] = Counter()

    def observe(self, call: PlannedCall) -> None:
        """Raises what the planner does where the profile does not go with the state."""
        for ours, theirs in zip(call.plans, plan(call.cluster, self._policy()), strict=True):
            kinds = list(differences(ours, theirs))
            self._num_plans += 1
            self._num_different += bool(kinds)
            self._counts.update(kinds)

    def report(self, missed: Missed) -> None:
        if not (self._num_plans or missed.num_dropped or missed.num_failed):
            return
        log.info(
            "shadow_difference",
            profile=self._profile,
            num_plans=self._num_plans,
            num_different=self._num_different,
            **{kind.value: self._counts[kind] for kind in Difference},
            num_dropped=missed.num_dropped,
            num_failed=missed.num_failed,
        )
        self._num_plans = self._num_different = 0
        self._counts.clear()

    def close(self) -> None:
        """Hold nothing that needs an end."""
