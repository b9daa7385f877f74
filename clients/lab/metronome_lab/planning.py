"""How planning grows with the fleet: processor time of the planning core, by the number of executors.

The states are those of a run: an executor plays the first requests of its workload by its policy, and the states that
plans were asked for are handed out in turn to as many executors as there are. What a service adds to each call is not
in it; `metronome load` measures that.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from metronome_lab.errors import LabError
from metronome_lab.simulated.planners import RecordingPlanner, core_state
from metronome_lab.simulation import Fleet, simulate
from metronome_lab.workload.requests import Workload
from scheduler_service.core.placement import Placement, place
from scheduler_service.core.plan import plan
from scheduler_service.core.policy import Policy
from scheduler_service.core.state import ClusterState, ExecutorState, Requests, RequestStatus

FLEETS = (1, 10, 100, 1000)
_NUM_REQUESTS = 200
_NUM_CALLS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanningTimes:
    """For each of `FLEETS`, in milliseconds: a plan for each of its executors, and one request placed over them all."""

    plan_ms: tuple[float, ...]
    place_ms: tuple[float, ...]


def planning_times(workload: Workload, fleet: Fleet, policy: Policy) -> PlanningTimes:
    """Measure in this process: the median of a few calls. `fleet`: whom the workload is for. Raises LabError."""
    states = _states(workload, fleet, policy)
    fleets = [_fleet_of(count, states) for count in FLEETS]
    return PlanningTimes(
        plan_ms=tuple(_median_ms(partial(plan, of_all, policy)) for of_all in fleets),
        place_ms=tuple(_median_ms(partial(_place_one, of_all)) for of_all in fleets),
    )


def _states(workload: Workload, fleet: Fleet, policy: Policy) -> Sequence[ExecutorState]:
    share = workload.part(0, _NUM_REQUESTS).at_rate(1 / fleet.num_executors)
    planner = RecordingPlanner(policy)
    simulate(share, replace(fleet, num_executors=1), policy, planner=planner, keep_iterations=False)
    if not planner.asked:
        raise LabError(f"{workload.name} asks for no plan", "give more requests")
    return [core_state(snapshot, "") for snapshot in planner.asked]


def _fleet_of(count: int, states: Sequence[ExecutorState]) -> ClusterState:
    """Spread over the run, so that few executors are not all at its beginning."""
    places = np.linspace(0, len(states), count, endpoint=False).astype(int) + len(states) // 2
    executors = tuple(
        replace(states[place % len(states)], executor_id=f"{number:08}") for number, place in enumerate(places.tolist())
    )
    return ClusterState(now_us=max(executor.now_us for executor in executors), executors=executors)


def _place_one(fleet: ClusterState) -> None:
    columns = {"id": 2**40, "status": RequestStatus.WAITING.value, "num_prompt_tokens": 800, "max_output_tokens": 150}
    cached = np.zeros((1, len(fleet.executors)), dtype=np.int64)
    place(fleet, Requests.from_columns(1, columns), cached, Placement.LEAST_LOADED, 0, frozenset())


def _median_ms(call: Callable[[], object]) -> float:
    times_ms = []
    call()  # what is compiled at the first call is not counted
    for _ in range(_NUM_CALLS):
        started_ns = time.thread_time_ns()
        call()
        times_ms.append((time.thread_time_ns() - started_ns) / 1e6)
    return statistics.median(times_ms)
