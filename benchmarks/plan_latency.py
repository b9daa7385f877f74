"""Planning time on one core, arrays in and arrays out: every ordering with every composition, at four sizes.

Timed is all that the scheduler does between parsing and formatting: it checks the state (`core/validate.py`), plans and
digests the plan (`core/plan.py`). Each plan is made from a table that nobody has looked at yet, as one that comes from
the parser. Not timed: parsing and formatting; explanations, which are made only where they are asked for; and checking
the policy, which is a profile's, checked when the service starts.

Sizes are requests that run and requests that wait. The running set is full but for two places, most requests decode, a
few prefill, and arrivals come in no order of rows. `--ordering` and `--composition` choose some of them, and
`--vllm-python` times the scheduler of vLLM beside them.

The targets: a median for each size, three times that at the 99th percentile, and at most five times as long at the
fourth size as at the third. Exit status 1 where a median or the growth is above `--max-ratio` times its target: that is
generous, for noisy machines. On one that has other work, `--cpu-time` leaves out the time that others had the core.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from harness.beside_vllm import beside_vllm, vllm_times
from harness.report import Figure, print_json, print_table
from scheduler_service.core.plan import plan
from scheduler_service.core.policy import BatchComposition, Ordering, Policy
from scheduler_service.core.state import (
    ClusterState,
    ExecutorLimits,
    ExecutorState,
    LatencyModel,
    Requests,
    RequestStatus,
    Tenant,
    Tenants,
)
from scheduler_service.core.validate import validate

SIZES = ((8, 8), (64, 64), (256, 1024), (1024, 10_000))
TARGET_US = {(8, 8): 60, (64, 64): 80, (256, 1024): 150, (1024, 10_000): 600}
P99_TARGET_RATIO = 3
TARGET_GROWTH = 5
NUM_WARM_UP_PLANS = 20
NOW_US = 1_700_000_000_000_000
NUM_TENANTS = 4
_WIDTH = 140


def main() -> int:
    args = _arguments()
    states = [state_of(*size) for size in SIZES]
    policies = [Policy(ordering=o, batch_composition=c) for o, c in product(args.ordering, args.composition)]
    clock = time.thread_time_ns if args.cpu_time else time.perf_counter_ns
    rows = {_name(policy): _row(policy, states, args.plans, clock) for policy in policies}
    if args.vllm_python is not None:
        times = vllm_times(args.vllm_python, SIZES, args.plans)
        rows = {name: [beside_vllm(figure, times) for figure in row] for name, row in rows.items()}
    figures = [figure for row in rows.values() for figure in row]
    if args.json:
        print_json(figures)
    elif args.vllm_python is not None:
        print_table(f"planning time, {args.plans} plans each", figures)
    else:
        _print(rows, args.plans)
    broken = [
        f"{figure.name}: {figure.value:.4g}, above {args.max_ratio:g} times {figure.sizes['target']}"
        for figure in figures
        if figure.value > args.max_ratio * float(str(figure.sizes["target"]))
    ]
    for line in broken:
        print(line, file=sys.stderr)
    return 1 if broken else 0


def _name(policy: Policy) -> str:
    return f"{policy.ordering.name}, {policy.batch_composition.name}"


def _row(policy: Policy, states: Sequence[ExecutorState], num_plans: int, clock: Callable[[], int]) -> list[Figure]:
    """A figure for each size, and the growth from the third to the fourth."""
    policy_is = {"ordering": policy.ordering.name, "composition": policy.batch_composition.name}
    figures = []
    for (num_running, num_waiting), state in zip(SIZES, states, strict=True):
        samples = _samples(state, policy, num_plans, clock)
        sizes: dict[str, object] = {
            **policy_is,
            "num_running": num_running,
            "num_waiting": num_waiting,
            "p99": round(float(np.percentile(samples, 99)), 2),
            "target": TARGET_US[num_running, num_waiting],
            "p99_target": P99_TARGET_RATIO * TARGET_US[num_running, num_waiting],
        }
        name = f"{_name(policy)} ({num_running}, {num_waiting})"
        figures.append(Figure(name=name, unit="us", samples=samples, sizes=sizes))
    growth = figures[-1].value / figures[-2].value
    sizes = {**policy_is, "from": str(SIZES[-2]), "to": str(SIZES[-1]), "target": TARGET_GROWTH}
    return [*figures, Figure(name=f"{_name(policy)} growth", unit="times", samples=[growth], sizes=sizes)]


def _samples(state: ExecutorState, policy: Policy, num_plans: int, clock: Callable[[], int]) -> list[float]:
    samples = []
    for _ in range(NUM_WARM_UP_PLANS + num_plans):
        cluster = _as_it_arrives(state)
        started = clock()
        validate(cluster)
        plan(cluster, policy)
        samples.append((clock() - started) / 1000)
    return samples[NUM_WARM_UP_PLANS:]


def _as_it_arrives(state: ExecutorState) -> ClusterState:
    """The state with a table of which nothing is known yet: what follows from its columns is worked out once."""
    executor = replace(state, requests=Requests(state.requests.matrix))
    return ClusterState(now_us=state.now_us, executors=(executor,), tenants=state.tenants)


def _print(rows: dict[str, list[Figure]], num_plans: int) -> None:
    caption = "microseconds: median (least, 99th percentile); growth: of the median from the third size to the fourth"
    table = Table(title=f"planning time, {num_plans} plans each", title_justify="left", caption=caption, box=SIMPLE)
    table.add_column("", no_wrap=True)
    for size in SIZES:
        table.add_column(str(size), justify="right", no_wrap=True)
    table.add_column("growth", justify="right")
    targets = [f"{target} (-, {P99_TARGET_RATIO * target})" for target in TARGET_US.values()]
    table.add_row("target", *targets, str(TARGET_GROWTH), end_section=True)
    for name, (*figures, growth) in rows.items():
        cells = [f"{f.value:.0f} ({min(f.samples):.0f}, {f.sizes['p99']:.0f})" for f in figures]
        table.add_row(name, *cells, f"{growth.value:.1f}")
    Console(width=_WIDTH).print(table)


def state_of(num_running: int, num_waiting: int, seed: int = 0) -> ExecutorState:
    """A busy executor, the same for the same numbers."""
    draw = random.Random(seed)
    num_requests = num_running + num_waiting
    runs = np.arange(num_requests) < num_running
    prompt = np.array([draw.randint(32, 2048) for _ in range(num_requests)])
    output = np.where(runs, [draw.randint(1, 400) for _ in range(num_requests)], 0)
    prefills = runs & (np.arange(num_requests) % 16 == 15)
    output[prefills] = 0
    computed = np.where(prefills, prompt // 2, np.where(runs, prompt + output - 1, 0))
    num_blocks = -(-computed // 16)
    shuffled = np.array(draw.sample(range(num_requests), num_requests))
    columns = {
        "id": np.arange(1, num_requests + 1),
        "status": np.where(runs, RequestStatus.RUNNING.value, RequestStatus.WAITING.value),
        "arrival_time_us": NOW_US - 1000 * (1 + shuffled),
        "priority": [draw.choice([0, 0, 0, 1, 2]) for _ in range(num_requests)],
        "tenant": [draw.randrange(NUM_TENANTS) for _ in range(num_requests)],
        "num_prompt_tokens": prompt,
        "num_output_tokens": output,
        "num_computed_tokens": computed,
        "max_output_tokens": 512,
        "expected_output_tokens": [draw.choice([0, 100, 400]) for _ in range(num_requests)],
        "deadline_us": [draw.choice([0, NOW_US + draw.randint(0, 10**8)]) for _ in range(num_requests)],
        "num_blocks": num_blocks,
        "last_run_iteration": np.where(runs, 99, 0),
    }
    held = int(num_blocks[runs].sum())
    return ExecutorState(
        executor_id="executor-0",
        iteration=100,
        now_us=NOW_US,
        limits=ExecutorLimits(
            max_num_batched_tokens=8192,
            max_num_seqs=num_running + 2,
            block_size=16,
            num_blocks=2 * held + 512,
            max_model_len=4096,
        ),
        num_free_blocks=held + 512,
        latency=LatencyModel(pass_us=5000, prefill_token_us=20, decode_request_us=40, kv_token_us=0.01),
        requests=Requests.from_columns(num_requests, columns),
        tenants=Tenants.of(*(Tenant(name=f"tenant-{i}", service=100.0 * i) for i in range(NUM_TENANTS))),
    )


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ordering", type=Ordering.__getitem__, nargs="*", default=list(Ordering))
    parser.add_argument("--composition", type=BatchComposition.__getitem__, nargs="*", default=list(BatchComposition))
    parser.add_argument("--plans", type=int, default=500, help="plans of each policy and size")
    parser.add_argument("--max-ratio", type=float, default=6, help="most that a figure may be of its target")
    parser.add_argument("--cpu-time", action="store_true", help="count the time on the core instead of the clock's")
    parser.add_argument("--vllm-python", type=Path, help="of an environment with vLLM, to time its scheduler too")
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
