"""How the policy lab, and the planner in it, grow with the fleet: processor time and memory of simulated requests.

Requests are drawn (Poisson arrivals at --rate a second for each executor, log-normal lengths) and played in virtual
time on 1, 10, 100 ... executors, each fleet in a process of its own. Shown for each: processor time a request, on one
core; peak memory of the process; plans a request; what one plan takes, its digest included, which does not depend on
the fleet, since plans are made for one executor at a time; and what `Place` takes for one request where it looks at all
executors of a fleet.

    python benchmarks/simulator_scale.py                                       up to 1,000 executors, 100 requests each
    python benchmarks/simulator_scale.py --executors 1000 --requests 1000      a million requests

The target is a million requests on a thousand executors in half an hour of one core and 4 GiB. Exit status 1 where a
request takes more than --max-ms, or a fleet more than --max-gib.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path

import numpy as np

from executor_service.engine.plan import Plan
from executor_service.engine.snapshot import Snapshot
from executor_service.kv.prefix_cache import PrefixScope
from harness.report import Figure, print_json, print_table
from metronome_lab.hardware.profile import load_hardware
from metronome_lab.planning import planning_times
from metronome_lab.policies import named_policy
from metronome_lab.report.charts import Chart, planning_against_fleet
from metronome_lab.report.drawn import write_picture
from metronome_lab.simulated.planners import CorePlanner
from metronome_lab.simulation import Fleet, simulate
from metronome_lab.workload.generate import generate
from metronome_lab.workload.requests import Workload
from plan_latency import state_of
from scheduler_service.core.placement import Placement, place
from scheduler_service.core.state import ClusterState, Requests, RequestStatus

TARGET_MS = 1.8  # half an hour over a million
# Of the executors that Place looks at: requests that run, and that wait.
LOAD = (16, 4)
NUM_PLACED = 20


class TimedPlanner(CorePlanner):
    """The planning core, and how long it took: `times_us`, each plan that the lab asked it for."""

    def __init__(self, profile: str) -> None:
        super().__init__(named_policy(profile))
        self.times_us: list[float] = []

    def plan(self, snapshot: Snapshot, executor_id: str) -> Plan:
        started_ns = time.thread_time_ns()
        plan = super().plan(snapshot, executor_id)
        self.times_us.append((time.thread_time_ns() - started_ns) / 1e3)
        return plan


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What one fleet took. `place_us`: a sample for each request that was placed."""

    num_executors: int
    num_requests: int
    ms_per_request: float
    peak_mib: float
    plans_per_request: float
    plan_us: float
    place_us: list[float]


def main() -> int:
    args = _arguments()
    fleets = []
    for num_executors in args.executors:
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
            fleets.append(pool.submit(measure, num_executors, args).result())
        print(f"{num_executors} executors: {fleets[-1].ms_per_request:.3f} ms a request", file=sys.stderr)
    figures = [figure for fleet in fleets for figure in _figures(fleet)]
    if args.json:
        print_json(figures)
    else:
        print_table(f"{args.profile}, {args.placement.name}, prefix cache {args.prefix_scope.name}", figures)
    if args.picture is not None:
        write_picture(_picture(args), args.picture, num_columns=2)
    broken = [
        f"{fleet.num_executors} executors: {fleet.ms_per_request:.2f} ms a request, {fleet.peak_mib:.0f} MiB"
        for fleet in fleets
        if fleet.ms_per_request > args.max_ms or fleet.peak_mib > args.max_gib * 1024
    ]
    for line in broken:
        print(line, file=sys.stderr)
    return 1 if broken else 0


def measure(num_executors: int, args: argparse.Namespace) -> Measured:
    """Play one fleet, in this process."""
    hardware = replace(load_hardware(args.hardware), prefix_scope=args.prefix_scope)
    simulate(_workload(100, 1.0), Fleet(hardware=hardware), named_policy(args.profile))  # compiles, or loads
    workload = _workload(num_executors * args.requests, num_executors * args.rate)
    fleet = Fleet(hardware=hardware, num_executors=num_executors, placement=args.placement)
    planner = TimedPlanner(args.profile)
    started_s = time.process_time()
    records = simulate(workload, fleet, named_policy(args.profile), planner=planner, keep_iterations=False)
    seconds = time.process_time() - started_s
    peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return Measured(
        num_executors=num_executors,
        num_requests=len(workload),
        ms_per_request=seconds * 1e3 / len(workload),
        peak_mib=peak_mib,
        plans_per_request=records.num_plans / len(workload),
        plan_us=statistics.median(planner.times_us),
        place_us=[_place_us(num_executors) for _ in range(NUM_PLACED)],
    )


def _picture(args: argparse.Namespace) -> Chart:
    """Of the planning core alone."""
    hardware = replace(load_hardware(args.hardware), prefix_scope=args.prefix_scope)
    times = planning_times(_workload(200, args.rate), Fleet(hardware=hardware), named_policy(args.profile))
    return planning_against_fleet({args.profile: times})


def _workload(num_requests: int, rate: float) -> Workload:
    stream = {
        "arrivals": {"kind": "poisson", "rate": rate},
        "prompt_tokens": {"kind": "lognormal", "median": 800, "sigma": 1.0, "most": 8000},
        "output_tokens": {"kind": "lognormal", "median": 150, "sigma": 0.8, "most": 2000},
    }
    return generate({"num_requests": num_requests, "streams": [stream]}, name="drawn", seed=0)


def _place_us(num_executors: int) -> float:
    """What it takes to place one request by the states of all executors of a fleet."""
    state = state_of(*LOAD)
    executors = tuple(replace(state, executor_id=f"{number:08}") for number in range(num_executors))
    cluster = ClusterState(now_us=state.now_us, executors=executors, tenants=state.tenants)
    columns = {"id": 2**40, "status": RequestStatus.WAITING.value, "num_prompt_tokens": 800, "max_output_tokens": 150}
    request, cached = Requests.from_columns(1, columns), np.zeros((1, num_executors), dtype=np.int64)
    started_ns = time.thread_time_ns()
    place(cluster, request, cached, Placement.LEAST_LOADED, 0, frozenset())
    return (time.thread_time_ns() - started_ns) / 1e3


def _figures(fleet: Measured) -> list[Figure]:
    name = f"{fleet.num_executors:,} executors, {fleet.num_requests:,} requests"
    sizes: dict[str, object] = {"num_executors": fleet.num_executors, "num_requests": fleet.num_requests}
    rows = (
        ("processor time a request", "ms", [fleet.ms_per_request]),
        ("peak memory", "MiB", [fleet.peak_mib]),
        ("plans a request", "plans", [fleet.plans_per_request]),
        ("a plan", "us", [fleet.plan_us]),
        ("Place over all", "us", fleet.place_us),
    )
    return [Figure(name=f"{name}: {of}", unit=unit, samples=samples, sizes=sizes) for of, unit, samples in rows]


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--executors", type=int, nargs="+", default=[1, 10, 100, 1000], help="sizes of fleets")
    parser.add_argument("--requests", type=int, default=100, help="for each executor")
    parser.add_argument("--rate", type=float, default=2.0, help="requests a second for each executor")
    parser.add_argument("--profile", default="vllm")
    parser.add_argument("--hardware", default="a100-80gb-llama3-8b")
    parser.add_argument("--placement", type=Placement.__getitem__, default=Placement.POWER_OF_TWO_CHOICES)
    parser.add_argument("--prefix-scope", type=PrefixScope.__getitem__, default=PrefixScope.OFF)
    parser.add_argument("--max-ms", type=float, default=3 * TARGET_MS, help="most processor time a request")
    parser.add_argument("--max-gib", type=float, default=4, help="most memory of a fleet")
    parser.add_argument("--picture", type=Path, help="SVG or PNG file for how planning grows with the fleet")
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
