"""One run, top to bottom: a workload on some executors, by one policy, in virtual time.

    for each request, in order of arrival
        choose its executor, which runs every pass that begins before the arrival     placement.py
        submit it there                                                               simulated/executor.py
    let every executor run until it has nothing left

Executors share nothing but the requests, so each is advanced only when somebody looks at it. The same settings give the
same records, byte for byte: what is drawn is drawn by the seed, and no clock is read.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from metronome_lab.errors import LabError
from metronome_lab.hardware.profile import Hardware
from metronome_lab.placement import placer
from metronome_lab.records import Records
from metronome_lab.simulated.executor import SimulatedExecutor
from metronome_lab.simulated.planners import CorePlanner, Planner
from metronome_lab.workload.requests import Workload
from scheduler_service.core.placement import Placement
from scheduler_service.core.policy import Policy

FOREVER_US = 2**60
_MOST_EXECUTORS = 100_000
# How many requests arrive between two calls of `on_progress`.
_PROGRESS_INTERVAL = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """Executors of one kind, and who gets a request."""

    hardware: Hardware
    num_executors: int = 1
    placement: Placement = Placement.LEAST_LOADED

    def __post_init__(self) -> None:
        if not 1 <= self.num_executors <= _MOST_EXECUTORS:
            raise LabError(f"{self.num_executors} executors are out of range", f"give 1 to {_MOST_EXECUTORS:,}")


def simulate(
    workload: Workload,
    fleet: Fleet,
    policy: Policy,
    *,
    seed: int = 0,
    planner: Planner | None = None,
    keep_iterations: bool = True,
    play_ahead: bool = True,
    on_progress: Callable[[int], None] = lambda num_arrived: None,
) -> Records:
    """Play a workload to its end. `planner` None: the planning core, by `policy`; else it must plan by `policy` too.

    `keep_iterations`: whether each pass has a row. `play_ahead` False: `planner` and the books are asked before each
    pass, also where that makes no difference (see simulated/quiet.py). Raises LabError.
    """
    records = Records(workload, keep_iterations=keep_iterations)
    planner = planner or CorePlanner(policy)
    executors = [
        SimulatedExecutor(number, fleet.hardware, planner, records, policy=policy, play_ahead=play_ahead, seed=seed)
        for number in range(fleet.num_executors)
    ]
    place = placer(fleet.placement, executors, workload, seed)
    for index in range(len(workload)):
        place.choose(index).submit(index)
        if index % _PROGRESS_INTERVAL == 0:
            on_progress(index)
    for executor in executors:
        executor.advance(FOREVER_US)
        executor.books.check_integrity()
    on_progress(len(workload))
    return records
