"""What the engine needs of a scheduler, wherever it is."""

from __future__ import annotations

from typing import Protocol

from executor_service.engine.plan import Plan
from executor_service.engine.snapshot import Snapshot


class PlanUnavailableError(Exception):
    """No scheduler answered in time. The engine runs a safe plan and asks again for the next pass."""


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
