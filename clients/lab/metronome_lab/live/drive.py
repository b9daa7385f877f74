"""A scheduler service under the load of many executors: what one core of it sustains.

The executors are simulated, their states are not made up: one is played in virtual time, and the state before each of
its passes is kept. Then so many tasks send these states, each from another place on, at the pace at which the passes
would run: the next state goes out when the pass of the one before would be over, or its plan comes, if that is later.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from executor_service.convert.state import cluster_state
from metronome.scheduler.v1 import scheduler_pb2
from metronome_client import AsyncSchedulerClient, DeadlineExceededError, ResourceExhaustedError, UnavailableError
from metronome_lab.errors import LabError
from metronome_lab.hardware.profile import Hardware
from metronome_lab.simulated.planners import RecordingPlanner
from metronome_lab.simulation import Fleet, simulate
from metronome_lab.workload.requests import Workload
from scheduler_service.convert import policy_message
from scheduler_service.core.policy import Policy

# How a scheduler that cannot keep up fails.
_OVERLOADED = (DeadlineExceededError, ResourceExhaustedError, UnavailableError)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanCall:
    """What an executor asks before a pass, and how long until it asks again."""

    request: scheduler_pb2.PlanRequest
    pass_s: float


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DriveFigures:
    """`latency_ms`: [num_plans] of each call. `asked_per_s`: what the executors ask for if nothing is ever late.

    `num_unanswered`: calls that the scheduler did not answer in time, or turned away. `client_busy`: for which share of
    the time this side computed; near 1 it is this side that was measured.
    """

    num_executors: int
    seconds: float
    asked_per_s: float
    num_unanswered: int
    client_busy: float
    latency_ms: NDArray[np.float64]

    @property
    def plans_per_s(self) -> float:
        return len(self.latency_ms) / self.seconds

    def percentile_ms(self, percent: float) -> float:
        return float(np.percentile(self.latency_ms, percent)) if len(self.latency_ms) else 0.0


def plan_calls(
    workload: Workload,
    hardware: Hardware,
    policy: Policy,
    *,
    on_progress: Callable[[int], None] = lambda num_arrived: None,
) -> list[PlanCall]:
    """Play a workload on one executor and keep what it asks. Raises LabError."""
    recorder = RecordingPlanner(policy)
    fleet = Fleet(hardware=hardware)
    simulate(workload, fleet, policy, planner=recorder, play_ahead=False, on_progress=on_progress)
    if len(recorder.asked) < 2:
        raise LabError(f"{workload.name} asks for {len(recorder.asked)} plans", "give more requests")
    times_us = [snapshot.now_us for snapshot in recorder.asked]
    message = policy_message(policy)
    return [
        PlanCall(
            request=scheduler_pb2.PlanRequest(state=cluster_state(snapshot, executor_id="executor-0"), policy=message),
            pass_s=(next_us - snapshot.now_us) / 1e6,
        )
        for snapshot, next_us in zip(recorder.asked[:-1], times_us[1:], strict=True)
    ]


async def drive(
    client: AsyncSchedulerClient, calls: Sequence[PlanCall], *, num_executors: int, seconds: float, seed: int = 0
) -> DriveFigures:
    """Send the calls of so many executors for a while, and wait for the last answers.

    Raises MetronomeError where the scheduler is not there, or takes no such calls.
    """
    await client.plan(calls[0].request)
    latency_ms: list[float] = []
    num_unanswered = 0
    started_s, started_cpu_s = time.perf_counter(), time.thread_time()
    end_s = started_s + seconds
    places = random.Random(seed)

    async def run(place: int, delay_s: float) -> None:
        nonlocal num_unanswered
        await asyncio.sleep(delay_s)
        while (sent_s := time.perf_counter()) < end_s:
            call = calls[place % len(calls)]
            try:
                await client.plan(call.request)
                latency_ms.append((time.perf_counter() - sent_s) * 1e3)
            except _OVERLOADED:
                num_unanswered += 1
            await asyncio.sleep(max(0.0, sent_s + call.pass_s - time.perf_counter()))
            place += 1

    mean_pass_s = sum(call.pass_s for call in calls) / len(calls)
    await asyncio.gather(
        *(run(places.randrange(len(calls)), places.random() * mean_pass_s) for _ in range(num_executors))
    )
    lasted_s = time.perf_counter() - started_s
    return DriveFigures(
        num_executors=num_executors,
        seconds=lasted_s,
        asked_per_s=num_executors / mean_pass_s,
        num_unanswered=num_unanswered,
        client_busy=(time.thread_time() - started_cpu_s) / lasted_s,
        latency_ms=np.array(latency_ms),
    )
