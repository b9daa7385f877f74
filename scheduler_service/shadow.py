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


# What a report says, in its order. Each is a counter: it only grows while the service runs.
_COUNTERS = ("num_plans", "num_different", *(kind.value for kind in Difference), "num_dropped", "num_failed")


class Shadow:
    """Observes calls by planning them again. `policy`: what the profile means now, asked for at each call."""

    name = "shadow"

    def __init__(self, profile: str, policy: Callable[[], Policy]) -> None:
        self._profile = profile
        self._policy = policy
        self._totals = Counter(dict.fromkeys(_COUNTERS, 0))
        self._reported = self._totals.copy()

    @property
    def totals(self) -> Counter[str]:
        """Since the start, by the names that a report has."""
        return self._totals.copy()

    def observe(self, call: PlannedCall) -> None:
        """Raises what the planner does where the profile does not go with the state."""
        for ours, theirs in zip(call.plans, plan(call.cluster, self._policy()), strict=True):
            kinds = list(differences(ours, theirs))
            self._totals.update(kinds, num_plans=1, num_different=int(bool(kinds)))

    def report(self, missed: Missed) -> None:
        """Log the counts since the last report, and beside them the totals, for whoever makes metrics of log lines."""
        self._totals.update(num_dropped=missed.num_dropped, num_failed=missed.num_failed)
        counts = {name: self._totals[name] - self._reported[name] for name in _COUNTERS}
        if any(counts.values()):
            log.info("shadow_difference", profile=self._profile, **counts, totals=dict(self._totals))
        self._reported = self._totals.copy()

    def close(self) -> None:
        """Hold nothing that needs an end."""
