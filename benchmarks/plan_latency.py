"""Planning time, arrays to arrays, on one core: every ordering and every composition, at four sizes.

Sizes are requests that run and requests that wait. The running set is full but for two places, most requests decode,
a few prefill, and arrivals come in no order of rows. `--ordering` and `--composition` choose some of them.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from pathlib import Path

import numpy as np

from harness.beside_vllm import beside_vllm, vllm_times
from harness.report import Figure, print_json, print_table
from scheduler_service.core.plan import plan_executor
from scheduler_service.core.policy import BatchComposition, Ordering, Policy
from scheduler_service.core.state import (
    ClusterState,
    ExecutorLimits,
    ExecutorState,
    LatencyModel,
    Requests,
    RequestStatus,
    Tenant,
)
from scheduler_service.core.validate import validate

SIZES = ((8, 8), (64, 64), (256, 1024), (1024, 10_000))
TARGET_US = {(8, 8): 60, (64, 64): 80, (256, 1024): 150, (1024, 10_000): 600}
NOW_US = 1_700_000_000_000_000
NUM_TENANTS = 4


def main() -> int:
    args = _arguments()
    policies = [Policy(ordering=ordering) for ordering in args.ordering]
    policies += [Policy(batch_composition=c) for c in args.composition if c is not BatchComposition.MIXED]
    figures = [_figure(policy, *size, args.plans) for policy in policies for size in SIZES]
    if args.vllm_python is not None:
        times = vllm_times(args.vllm_python, SIZES, args.plans)
        figures = [beside_vllm(figure, times) for figure in figures]
    if args.json:
        print_json(figures)
    else:
        print_table(f"planning time, {args.plans} plans each", figures)
    return 0


def _figure(policy: Policy, num_running: int, num_waiting: int, num_plans: int) -> Figure:
    state = state_of(num_running, num_waiting)
    for _ in range(10):
        plan_executor(state, policy)
    samples = []
    for _ in range(num_plans):
        started = time.perf_counter_ns()
        plan_executor(state, policy)
        samples.append((time.perf_counter_ns() - started) / 1000)
    composition = policy.batch_composition
    name = policy.ordering.name if composition is BatchComposition.MIXED else composition.name
    return Figure(
        name=f"{name} ({num_running}, {num_waiting})",
        unit="us",
        samples=samples,
        sizes={
            "ordering": policy.ordering.name,
            "composition": composition.name,
            "num_running": num_running,
            "num_waiting": num_waiting,
            "p99": round(float(np.percentile(samples, 99)), 2),
            "target": TARGET_US[num_running, num_waiting],
        },
    )


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
    state = ExecutorState(
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
        tenants=tuple(Tenant(name=f"tenant-{i}", service=100.0 * i) for i in range(NUM_TENANTS)),
    )
    validate(ClusterState(now_us=NOW_US, executors=(state,), tenants=state.tenants))
    return state


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ordering", type=Ordering.__getitem__, nargs="*", default=list(Ordering))
    parser.add_argument("--composition", type=BatchComposition.__getitem__, nargs="*", default=list(BatchComposition))
    parser.add_argument("--plans", type=int, default=500, help="plans of each policy and size")
    parser.add_argument("--vllm-python", type=Path, help="of an environment with vLLM, to time its scheduler too")
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
