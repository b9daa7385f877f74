"""Has the plan of the next pass ready: asks early, asks anew when it is out of date, goes without when it must."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from executor_service.engine.plan import Plan, PlanSource
from executor_service.engine.planner import PendingPlan, Planner, PlanUnavailableError

if TYPE_CHECKING:  # settings and logs need this module before torch is imported
    from executor_service.engine.snapshot import Snapshot


class Overlap(Enum):
    """Whether the next plan is asked for while a pass runs, or after it."""

    ON = "on"
    OFF = "off"


@dataclass(frozen=True, slots=True, kw_only=True)
class ObtainedPlan:
    """``plan`` is None where no scheduler gave one; then ``failure`` says why, and is None otherwise."""

    plan: Plan | None
    source: PlanSource
    wait_us: int  # that the device stood still
    round_trip_us: int
    failure: PlanUnavailableError | None


class Planning:
    def __init__(self, planner: Planner, overlap: Overlap) -> None:
        self._planner = planner
        self._overlap = overlap
        self._pending: PendingPlan | None = None

    def ask_ahead(self, project: Callable[[], Snapshot]) -> None:
        """Ask for the plan that follows the pass about to run."""
        if self._overlap is Overlap.ON:
            self._pending = self._planner.request(project())

    def forget(self) -> None:
        """The plan asked for is of no use any more: requests arrived that it does not know, or nobody is left."""
        if self._pending is not None:
            self._pending.cancel()
            self._pending = None

    def obtain(self, take: Callable[[], Snapshot]) -> ObtainedPlan:
        """The plan asked for ahead, or else one for the state as it is."""
        started = time.perf_counter_ns()
        pending, self._pending = self._pending, None
        source = PlanSource.OVERLAPPED
        if pending is None:
            source = PlanSource.DIRECT
            pending = self._planner.request(take())
        plan: Plan | None = None
        failure: PlanUnavailableError | None = None
        try:
            plan = pending.result()
        except PlanUnavailableError as error:
            failure = error
        return ObtainedPlan(
            plan=plan,
            source=source,
            wait_us=(time.perf_counter_ns() - started) // 1000,
            round_trip_us=pending.round_trip_us,
            failure=failure,
        )
