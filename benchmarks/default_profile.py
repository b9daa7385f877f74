"""Whether the default profile earns its place: its goodput beside that of the engines' own profiles, in virtual time.

    python benchmarks/default_profile.py TRACES
    python benchmarks/default_profile.py TRACES --half first --requests 200 --only "azure_2023_conv a100"

TRACES is a directory with the published traces as CSV (docs/lab/README.md). What is asked, and why these traces, loads
and targets, is told in docs/lab/targets.md; `--requests` bounds how many of a part are played. First all requests of a
part are there at once, under the engines' profiles, which gives the capacity; then the loads follow. On eight executors
only those of the engines' profiles are played that were near the best on one. Each run is a row of `--results`; what
has a row is not played again, so that a run goes on where it was stopped. Tables of all rows of this half and these
estimates are printed at the end.
"""

from __future__ import annotations

import argparse
import math
import multiprocessing
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path

import numpy as np

from harness.profile_cells import (
    ENGINES,
    FIGURES,
    KEY,
    PROFILE,
    Cells,
    Key,
    Row,
    cells_of,
    key_of,
    near_the_best,
    picture_of,
    print_tables,
    read_rows,
    write_rows,
)
from harness.schedule_bounds import bounds_of
from metronome_lab.figures import Targets, figures_of, is_good
from metronome_lab.hardware.profile import load_hardware
from metronome_lab.order_promise import order_promise
from metronome_lab.policies import named_policy
from metronome_lab.report.drawn import write_picture
from metronome_lab.runs import Run, Scenario
from metronome_lab.simulation import Fleet
from metronome_lab.workload.traces import read_workload

RESULTS = Path(__file__).parents[1] / "docs" / "lab" / "default-profile.csv"
# The most requests of a part: on one executor, and on several.
TRACES = {
    "azure_2023_conv": (800, 2400),
    "azure_2023_code": (800, 2400),
    "azure_2023_conv_code": (1000, 2400),
    "mooncake_conversation": (200, 960),
}
ITL_TARGETS_US = {"a100-80gb-llama3-8b": 100_000, "h100x4-80gb-llama3-70b": 200_000}
EXECUTORS = (1, 8)
LOADS = (0.8, 1.0, 1.2)
HALVES = ("first", "second")
MAX_OUTPUT_TOKENS = 2048
# How wrong the expected lengths of answers are (`Workload.with_estimates_off_by`); "none": there are none.
ESTIMATES = {"none": None, "exact": 0.0, "off by 2": 0.69}
AT_ONCE = 1e6  # times the recorded rate


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Of a trace, on a fleet. `duration_s`: as recorded."""

    scenario: Scenario
    hardware: str
    num_executors: int
    num_requests: int
    duration_s: float

    @property
    def name(self) -> str:
        return f"{self.scenario.path.stem} {self.hardware} x{self.num_executors}"

    @property
    def targets(self) -> Targets:
        is_long = self.scenario.path.stem.startswith("mooncake")
        return Targets(ttft_us=30_000_000 if is_long else 2_000_000, itl_us=ITL_TARGETS_US[self.hardware])


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One run; its result is the row of `key`. `rate`: times the recorded one."""

    key: Key
    part: Part
    policy: str
    rate: float


def main() -> int:
    args = _arguments()
    rows = read_rows(args.results)
    parts = [part for part in _parts(args) if args.only in part.name]
    single, fleets = ([part for part in parts if (part.num_executors > 1) == many] for many in (False, True))
    # Each needs the rows of those before it.
    stages: tuple[Callable[[], Iterator[Job]], ...] = (
        lambda: _at_once(single, args.policies, args),
        lambda: _under_load(single, args.policies, rows, args),
        lambda: _at_once(fleets, _on_fleets(rows, args), args),
        lambda: _under_load(fleets, _on_fleets(rows, args), rows, args),
    )
    with ProcessPoolExecutor(args.jobs, mp_context=multiprocessing.get_context("spawn")) as pool:
        for jobs_of in stages:
            pending = [pool.submit(play, job) for job in jobs_of() if job.key not in rows]
            for done in as_completed(pending):
                row = done.result()
                rows[key_of(row)] = row
                write_rows(args.results, rows)
                print(*key_of(row), row["goodput_per_s"], file=sys.stderr)
    for num_executors, hardware in product(EXECUTORS, ITL_TARGETS_US):
        cells = _cells(rows, args, num_executors, hardware)
        if cells:
            print_tables(f"{num_executors} x {hardware}", cells)
    if args.picture is not None:
        write_picture(picture_of(_cells(rows, args, 1, next(iter(ITL_TARGETS_US)))), args.picture, num_columns=2)
    return 0


def play(job: Job) -> Row:
    """The row of a run."""
    began_s = time.process_time()
    part, targets = job.part, job.part.targets
    scenario = replace(part.scenario, rate=job.rate)
    fleet = Fleet(hardware=load_hardware(part.hardware), num_executors=part.num_executors)
    run = Run(name=job.policy, scenario=scenario, fleet=fleet, policy=named_policy(job.policy), keep_iterations=False)
    workload = scenario.workload()
    records = run.play(workload)
    figures, bounds = figures_of(records, targets), bounds_of(workload, fleet, targets.ttft_us)
    good = is_good(records, targets)
    longest = workload.num_prompt_tokens >= np.quantile(workload.num_prompt_tokens, 0.9)
    values: dict[str, object] = {
        "goodput_per_s": round(figures.goodput_per_s, 4),
        "most_goodput_per_s": round(bounds.goodput_per_s, 4),
        "share_good": round(figures.share_good, 4),
        "share_good_longest": round(float(good[longest].mean()), 4),
        "share_in_time": round(figures_of(records, replace(targets, itl_us=2**60)).share_good, 4),
        "share_even": round(figures_of(records, replace(targets, ttft_us=2**60)).share_good, 4),
        "requests_per_s": round(figures.requests_per_s, 4),
        "most_requests_per_s": round(bounds.requests_per_s, 4),
        "ttft_mean_ms": round(figures.ttft.mean_ms, 1),
        "ttft_p99_ms": round(figures.ttft.p99_ms, 1),
        "itl_p99_ms": round(figures.itl.p99_ms, 1),
        "e2e_mean_ms": round(figures.e2e.mean_ms, 1),
        "least_e2e_mean_ms": round(bounds.e2e_mean_ms, 1),
        "jain": round(figures.fairness.jain, 4),
        "contended_s": round(figures.fairness.contended_s, 1),
        "longest_wait_s": round(figures.longest_wait_s, 1),
        "evictions": figures.num_preemptions,
        "recomputed_tokens": figures.num_recomputed_tokens,
        "bound_kept": {None: "", True: "yes", False: "no"}[order_promise(records, run.policy).is_kept],
        "cpu_s": round(time.process_time() - began_s, 1),
    }
    return dict(zip(KEY, job.key, strict=True)) | {name: str(values[name]) for name in FIGURES}


def _parts(args: argparse.Namespace) -> Iterator[Part]:
    traces = {name: read_workload(args.traces / f"{name}.csv") for name in TRACES}
    for num_executors, hardware, (name, trace) in product(EXECUTORS, ITL_TARGETS_US, traces.items()):
        start = HALVES.index(args.half) * (len(trace) // 2)
        count = min(TRACES[name][num_executors > 1], args.requests * num_executors)
        scenario = Scenario(
            path=args.traces / f"{name}.csv",
            start=start,
            stop=start + count,
            max_output_tokens=MAX_OUTPUT_TOKENS,
            estimate_sigma=ESTIMATES[args.estimates],
        )
        yield Part(
            scenario=scenario,
            hardware=hardware,
            num_executors=num_executors,
            num_requests=count,
            duration_s=trace.part(start, start + count).duration_us / 1e6,
        )


def _key_of(part: Part, load: float, policy: str, args: argparse.Namespace) -> Key:
    """Nothing is known of lengths where all are there at once, so that a part has one capacity."""
    sizes = (str(part.num_executors), str(part.num_requests))
    estimates = args.estimates if load < math.inf else "none"
    return (args.half, part.scenario.path.stem, part.hardware, *sizes, estimates, f"{load:g}", policy)


def _at_once(parts: Sequence[Part], policies: Sequence[str], args: argparse.Namespace) -> Iterator[Job]:
    """All requests of each part on one executor, from the start. The capacity is that of the engines' profiles."""
    for part, policy in product(parts, [name for name in policies if name in ENGINES]):
        alone = replace(part, num_executors=1, scenario=replace(part.scenario, estimate_sigma=None))
        yield Job(key=_key_of(alone, math.inf, policy, args), part=alone, policy=policy, rate=AT_ONCE)


def _under_load(
    parts: Sequence[Part], policies: Sequence[str], rows: Mapping[Key, Row], args: argparse.Namespace
) -> Iterator[Job]:
    for part, load, policy in product(parts, args.loads, policies):
        alone = replace(part, num_executors=1)
        at_once = [_key_of(alone, math.inf, name, args) for name in ENGINES]
        capacity = max(float(rows[key]["requests_per_s"]) for key in at_once if key in rows)
        rate = load * capacity * part.num_executors / (part.num_requests / part.duration_s)
        yield Job(key=_key_of(part, load, policy, args), part=part, policy=policy, rate=rate)


def _cells(rows: Mapping[Key, Row], args: argparse.Namespace, num_executors: int, hardware: str) -> Cells:
    return cells_of(rows, half=args.half, estimates=args.estimates, executors=str(num_executors), hardware=hardware)


def _on_fleets(rows: Mapping[Key, Row], args: argparse.Namespace) -> list[str]:
    """What is worth playing on several executors: of the engines those that were near the best in some cell of one."""
    near: set[str] = set()
    for hardware in ITL_TARGETS_US:
        near |= near_the_best(_cells(rows, args, 1, hardware))
    return [name for name in args.policies if name in near or name not in ENGINES]


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("traces", type=Path)
    parser.add_argument("--half", choices=HALVES, default="second", help="of each trace")
    parser.add_argument("--requests", type=int, default=2400, help="the most for each executor")
    parser.add_argument("--only", default="", help='parts whose "TRACE HARDWARE xEXECUTORS" has this text')
    parser.add_argument("--policies", nargs="+", default=[*ENGINES, "fifo", PROFILE])
    parser.add_argument("--loads", nargs="+", type=float, default=LOADS, help="of the capacity")
    parser.add_argument("--estimates", choices=ESTIMATES, default="none", help="of the lengths of answers")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--picture", type=Path, help="draw one executor of the first hardware there")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
