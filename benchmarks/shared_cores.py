"""What passes take where other programs want the same cores, by how threads wait for each other.

A pass is some hundred parallel regions, and at the end of each the threads of OpenMP wait for the last of them. One
that waits spins for a while and then sleeps. While another program has the core of one of them, all wait for it: the
time of a pass is that of the core that is shared most. Each way to wait is a process of its own, since OpenMP reads it
at the start; in each, passes of decodes run alone and beside programs that compute without end, in turns.

The reference of each is the same way to wait, alone.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from harness.report import Figure, print_json, print_table

NUM_DECODES, CONTEXT_LEN, BLOCK_SIZE = 16, 200, 16
NUM_WARM_UP_PASSES = 3
SETTLE_S = 0.3
COMPETITOR = (sys.executable, "-c", "while True: pass")
# Of each other program: the core that it is bound to, by its place among ours, or None for whatever the system chooses.
BESIDE: Mapping[str, Sequence[int | None]] = {"alone": (), "one": (None,), "one, bound": (0,), "two": (None, None)}
SPIN_COUNTS = (1_000, 4_000, 20_000, 200_000)
PASSIVE, ONE_THREAD = {"OMP_WAIT_POLICY": "passive"}, {"OMP_NUM_THREADS": "1"}


def main() -> int:
    args = _arguments()
    if args.child:
        print(json.dumps(_pass_times_ms(args)))
        return 0
    figures = []
    spinning = {f"spins {count:,} times": {"GOMP_SPINCOUNT": str(count)} for count in args.spin_counts}
    for way, environment in {"never spins": PASSIVE, **spinning, "one thread": ONE_THREAD}.items():
        print(way, file=sys.stderr, flush=True)
        times = _run(args, environment)
        for beside, samples in times.items():
            medians = [statistics.median(each) for each in samples]
            figures.append(
                Figure(
                    name=f"{way}, {beside}",
                    unit="ms",
                    samples=medians,
                    sizes={"model": args.model, "num_decodes": NUM_DECODES, "reps": args.reps},
                    reference="alone",
                    reference_samples=[statistics.median(each) for each in times["alone"]],
                )
            )
    if args.json:
        print_json(figures)
    else:
        print_table(f"a pass of {NUM_DECODES} decodes, {args.model}, beside other programs", figures)
    return 0


def _run(args: argparse.Namespace, environment: Mapping[str, str]) -> dict[str, list[list[float]]]:
    own = {name: value for name, value in os.environ.items() if not name.startswith(("OMP_", "GOMP_"))}
    flags = ["--child", "--model", args.model, "--reps", str(args.reps), "--seconds", str(args.seconds)]
    command = [sys.executable, __file__, *flags]
    output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env={**own, **environment}).stdout
    times: dict[str, list[list[float]]] = json.loads(output.splitlines()[-1])
    return times


def _pass_times_ms(args: argparse.Namespace) -> dict[str, list[list[float]]]:
    """By what runs beside, the times of the passes of each repetition."""
    from harness.passes import greedy_pass

    blocks_each = -(-CONTEXT_LEN // BLOCK_SIZE)
    runner = _runner(args.model, num_blocks=NUM_DECODES * blocks_each)
    batch, sampling = greedy_pass(NUM_DECODES, 1, CONTEXT_LEN, blocks_each)
    for _ in range(NUM_WARM_UP_PASSES):
        runner.execute(batch, sampling)
    times: dict[str, list[list[float]]] = {beside: [] for beside in BESIDE}
    for _ in range(args.reps):
        for beside, cores in BESIDE.items():
            with _competitors(cores):
                times[beside].append([])
                end = time.perf_counter() + args.seconds
                while (started := time.perf_counter()) < end:
                    runner.execute(batch, sampling)
                    times[beside][-1].append((time.perf_counter() - started) * 1e3)
    return times


def _runner(model: str, *, num_blocks: int) -> Any:
    from executor_service.kv.cache import KVCache, KVCacheSpec
    from executor_service.model.loader import load_model
    from executor_service.model.runner import ModelRunner

    loaded = load_model(model, dtype="bfloat16", progress=lambda line: None)
    spec = KVCacheSpec.from_config(loaded.config, block_size=BLOCK_SIZE, dtype=loaded.dtype)
    return ModelRunner(loaded, KVCache(spec, num_blocks=num_blocks, num_swap_blocks=0))


@contextmanager
def _competitors(cores: Sequence[int | None]) -> Iterator[None]:
    """Programs that compute meanwhile."""
    ours = sorted(os.sched_getaffinity(0))
    running = []
    try:
        for core in cores:
            running.append(subprocess.Popen(COMPETITOR))
            if core is not None:
                os.sched_setaffinity(running[-1].pid, {ours[core]})
        time.sleep(SETTLE_S)
        yield
    finally:
        for process in running:
            process.kill()
            process.wait()


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="gemma3-270m")
    parser.add_argument("--spin-counts", type=int, nargs="*", default=SPIN_COUNTS, help="rounds before a thread sleeps")
    parser.add_argument("--seconds", type=float, default=2.0, help="of passes, for each way and what runs beside it")
    parser.add_argument("--reps", type=int, default=2)
    parser.add_argument("--json", action="store_true", help="one JSON line a figure")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
