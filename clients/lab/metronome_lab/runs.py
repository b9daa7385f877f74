"""Runs as values: what to play, on what and by which policy, so that it can be sent to another process and named in a
report.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from metronome_lab.records import Records
from metronome_lab.simulated.planners import Planner
from metronome_lab.simulation import Fleet, simulate
from metronome_lab.workload.requests import Workload
from metronome_lab.workload.traces import read_workload
from scheduler_service.core.policy import Policy


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """A trace, or a description of one, and what is done to it. `stop` None: to its end.

    `estimate_sigma`: how wrong the expected lengths of answers are (see `Workload`); None: there are none.
    """

    path: Path
    start: int = 0
    stop: int | None = None
    rate: float = 1.0
    max_output_tokens: int | None = None
    estimate_sigma: float | None = 0.0
    seed: int = 0

    def workload(self) -> Workload:
        """Read it. Raises LabError."""
        workload = read_workload(self.path, self.seed).part(self.start, self.stop).at_rate(self.rate)
        if self.max_output_tokens is not None:
            workload = workload.bounded_by(self.max_output_tokens)
        if self.estimate_sigma is None:
            return workload.without_estimates()
        return workload.with_estimates_off_by(self.estimate_sigma, self.seed) if self.estimate_sigma > 0 else workload


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """`name`: of the policy, in reports."""

    name: str
    scenario: Scenario
    fleet: Fleet
    policy: Policy
    keep_iterations: bool = True

    def at_rate(self, rate: float) -> Run:
        """The same at so many times the recorded rate."""
        return replace(self, scenario=replace(self.scenario, rate=rate))

    def without_iterations(self) -> Run:
        """The same, and no row for an iteration is kept."""
        return replace(self, keep_iterations=False)

    def play(
        self,
        workload: Workload | None = None,
        *,
        planner: Planner | None = None,
        on_progress: Callable[[int], None] = lambda num_arrived: None,
    ) -> Records:
        """`workload`: that of the scenario, where it is read already. Raises LabError."""
        return simulate(
            self.scenario.workload() if workload is None else workload,
            self.fleet,
            self.policy,
            seed=self.scenario.seed,
            planner=planner,
            keep_iterations=self.keep_iterations,
            on_progress=on_progress,
        )
