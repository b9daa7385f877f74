"""How near to the limit of the matrix products alone the engine comes.

A workload runs offline over the whole stack, and the executor says what each of its passes held: how many tokens went
through the layers, and how many rows through the output head. Then the model's own matrix products are run alone at
those sizes, in bfloat16 with weights that oneDNN has packed, as the executor runs them: the least times, added up over
the passes, are the floor for an engine that runs these passes, whatever else it does. Two more figures say where the
rest goes: the forward passes with sampling, and all iterations without the waits for plans.

The products are measured at some sizes; between two of them their time is taken to be linear.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from executor_service.model.gguf import default_cache_dir
from executor_service.model.sources import resolve_source
from harness.report import Figure, print_json, print_table
from harness.stack import run_watched, running_stack
from harness.timings import output_tokens_per_s
from harness.workload import Job, jobs_from_file, mixed_jobs
from metronome.executor.v1 import executor_pb2
from metronome_cli.stack.services import ExecutorSettings

SIZES = (1, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 1024, 2048)
# oneDNN lays weights out for a number of rows; the executor has one layout for all, the floor has the best of these.
ROWS_TO_PACK_FOR = (1, 64)
SECONDS_A_SIZE = 0.4
LEAST_TIMES = 3


def main() -> int:
    args = _arguments()
    from transformers import AutoTokenizer

    directory = resolve_source(args.model, cache_dir=default_cache_dir(), progress=_say).directory
    tokenizer = AutoTokenizer.from_pretrained(directory)
    jobs = jobs_from_file(args.workload) if args.workload else mixed_jobs(args.num_requests, tokenizer.encode)
    settings = ExecutorSettings(model=args.model, dtype="bfloat16", prefix_cache="off")
    with running_stack(settings) as stack:
        warm_up = [Job(prompt_token_ids=job.prompt_token_ids, num_output_tokens=4) for job in jobs[:8]]
        stack.run(warm_up, [0.0] * len(warm_up))
        runs = [asyncio.run(run_watched(stack.address, jobs)) for _ in range(args.reps)]
    largest = max(_num_tokens(each) for _, passes in runs for each in passes)
    body, head = _products(args.model, largest)
    num_output_tokens = sum(job.num_output_tokens for job in jobs)
    floors, forwards, iterations, walls = [], [], [], []
    for answers, passes in runs:
        floors.append(_seconds(body, map(_num_tokens, passes)) + _seconds(head, map(_num_head_rows, passes)))
        forwards.append(sum(each.forward_us for each in passes) / 1e6)
        iterations.append(sum(each.total_us - each.plan_wait_us for each in passes) / 1e6)
        walls.append(num_output_tokens / output_tokens_per_s(answers))
    sizes: dict[str, object] = {
        "model": args.model,
        "workload": str(args.workload.name) if args.workload else "built-in",
        "num_requests": len(jobs),
        "num_output_tokens": num_output_tokens,
        "num_passes": [len(passes) for _, passes in runs],
        "floor_tokens_per_s": [round(num_output_tokens / floor, 1) for floor in floors],
        "head_share_of_floor": round(_seconds(head, map(_num_head_rows, runs[0][1])) / floors[0], 3),
        "reps": args.reps,
    }
    parts = {"the whole run": walls, "iterations, without waits for plans": iterations, "forward passes": forwards}
    figures = [
        Figure(
            name=name,
            unit="s",
            samples=samples,
            sizes=sizes,
            reference="matrix products alone",
            reference_samples=floors,
        )
        for name, samples in parts.items()
    ]
    if args.json:
        print_json(figures)
    else:
        print_table(", ".join(f"{name} {value}" for name, value in sizes.items()), figures)
    return 0 if 1 / figures[0].ratio >= args.min_share else 1


def _num_tokens(each: executor_pb2.Pass) -> int:
    return each.num_prefill_tokens + each.num_decode_tokens


def _num_head_rows(each: executor_pb2.Pass) -> int:
    """At most: one for each request that decodes, and for each prompt, of which only the last chunk has one."""
    return each.num_decode_requests + each.num_prefill_requests


def _seconds(times: dict[int, float], sizes: Iterable[int]) -> float:
    """Of the products at so many rows, by interpolation."""
    counts = Counter(size for size in sizes if size)
    return sum(count * float(np.interp(size, list(times), list(times.values()))) for size, count in counts.items())


def _products(source: str, largest: int) -> tuple[dict[int, float], dict[int, float]]:
    """Seconds of all products of the layers, and of that of the output head, by number of rows."""
    import torch

    from executor_service.kernels.choice import KernelChoice
    from executor_service.model.loader import load_model

    loaded = load_model(source, dtype="bfloat16", progress=_say, kernels=KernelChoice.TORCH)
    head = loaded.model.get_output_embeddings()
    layers = [module for module in loaded.model.modules() if type(module) is torch.nn.Linear and module is not head]
    sizes = [size for size in SIZES if size < largest] + [largest]
    _say(f"measuring {len(layers)} products and that of the output head at {len(sizes)} sizes")
    with torch.inference_mode():
        return tuple({size: _least_seconds(linears, size) for size in sizes} for linears in (layers, [head]))


def _least_seconds(linears: Sequence[Any], num_rows: int) -> float:
    """Of the products of so many rows with each weight, one after the other, so that each comes from memory."""
    import torch

    ops = torch.ops.mkldnn
    packed = [
        [ops._reorder_linear_weight(linear.weight.detach(), rows) for linear in linears] for rows in ROWS_TO_PACK_FOR
    ]
    states = {
        width: torch.randn(num_rows, width, generator=torch.Generator().manual_seed(0)).bfloat16()
        for width in {linear.in_features for linear in linears}
    }
    least, num_times, deadline = float("inf"), 0, time.monotonic() + SECONDS_A_SIZE
    while num_times < LEAST_TIMES or time.monotonic() < deadline:
        for weights in packed:
            started = time.perf_counter()
            for linear, weight in zip(linears, weights, strict=True):
                ops._linear_pointwise(states[linear.in_features], weight, linear.bias, "none", [], "")
            least = min(least, time.perf_counter() - started)
        num_times += 1
    return least


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="gemma3-270m")
    parser.add_argument("--workload", type=Path, help="JSON file of requests, instead of the built-in ones")
    parser.add_argument("--num-requests", type=int, default=64, help="of the built-in ones")
    parser.add_argument("--reps", type=int, default=1)
    parser.add_argument("--min-share", type=float, default=0.0, help="of the floor in the whole run")
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    return parser.parse_args()


def _say(message: str) -> None:
    print(message, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
