"""What the engine needs of a scheduler, wherever it is."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Protocol

from executor_service.engine.plan import Plan

if TYPE_CHECKING:  # settings and logs need this module before torch is imported
    from executor_service.engine.snapshot import Snapshot


class FailureCause(Enum):
    """Why no plan came, in words. Waiting mends the first, and hardly ever the second."""

    NO_ANSWER = "no scheduler answers"
    REFUSAL = "the scheduler answers without a plan"


class PlanUnavailableError(Exception):
    """No scheduler gave a plan in time. The engine runs a safe plan and asks again for the next pass."""

    def __init__(self, detail: str, *, cause: FailureCause = FailureCause.NO_ANSWER) -> None:
        super().__init__(f"{cause.value}: {detail}")
        self.cause = cause


class PendingPlan(Protocol):
    """A plan that has been asked for."""

    def result(self) -> Plan:
        """Wait for the plan, no longer than the planner's own time limit. Raises PlanUnavailableError."""
        ...

    @property
    def round_trip_us(self) -> int:
        """From asking to having; 0 until then."""
        ...

    def cancel(self) -> None:
        """Say that nobody waits for it any more."""
        ...


class Planner(Protocol):
    def request(self, snapshot: Snapshot) -> PendingPlan:
        """Ask for a plan; returns at once."""
        ...
