"""The whole engine beside a peer: the same requests to each in turns, and what a client sees of them.

Ours is scheduler and executor as processes of their own, streaming over gRPC. The peer is the HTTP server of a vLLM in
an environment of its own (`--vllm-python`), streaming too; it is started here, or runs already (`--vllm-url`). Same
weights in bfloat16, same prompts as token ids, greedy, to the same lengths, no prefix cache.

- offline: all requests at time 0. Output tokens per second, from the first request sent to the last token.
- online: Poisson arrivals. Time to first token and inter-token latency.

Then the most memory that each held, with all its processes, and the time from its start until it was ready. How much of
the cores was used by whom is said of each run: a server that does not rest while the other is measured, and whatever
else the machine does, distort its figures.

Exit status 1 if a goal that could be judged is missed.
"""

from __future__ import annotations

import argparse
import signal
import statistics
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from executor_service.model.gguf import default_cache_dir
from executor_service.model.sources import resolve_source
from harness.process_tree import ProcessorMeter, peak_resident_mib
from harness.report import Figure, print_json, print_table
from harness.stack import running_stack
from harness.timings import (
    Answer,
    inter_token_latencies_ms,
    output_tokens_per_s,
    percentile,
    times_to_first_token_ms,
)
from harness.vllm_server import running_vllm_server, vllm_server
from harness.workload import Job, jobs_from_file, mixed_jobs, poisson_arrivals_s
from metronome_cli.stack.services import ExecutorSettings

KV_CACHE_MIB = 1024  # the executor's default


class Engine(Protocol):
    """What is measured."""

    @property
    def name(self) -> str: ...
    @property
    def pids(self) -> tuple[int, ...]: ...
    @property
    def start_s(self) -> float | None: ...

    def run(self, jobs: Sequence[Job], arrivals_s: Sequence[float]) -> list[Answer]: ...


@dataclass(frozen=True, slots=True)
class Quantity:
    """What a run of a mode shows."""

    name: str
    unit: str
    samples: dict[str, list[float]]  # by the name of the engine, one a repetition


def main() -> int:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # a server that was started is ended
    args = _arguments()
    from transformers import AutoTokenizer

    directory = resolve_source(args.model, cache_dir=default_cache_dir(), progress=_say).directory
    tokenizer = AutoTokenizer.from_pretrained(directory)
    jobs = jobs_from_file(args.workload) if args.workload else mixed_jobs(args.num_requests, tokenizer.encode)
    modes = {"offline": [0.0] * len(jobs), "online": poisson_arrivals_s(len(jobs), args.rate, seed=args.seed)}
    with _engines(args, directory) as engines:
        _warm_up(engines, jobs)
        quantities = [
            quantity
            for mode, arrivals_s in modes.items()
            if mode in args.modes
            for quantity in _measure(mode, engines, jobs, arrivals_s, args.reps)
        ]
        quantities += _of_processes(engines)
    sizes: dict[str, object] = {
        "model": args.model,
        "workload": str(args.workload.name) if args.workload else "built-in",
        "num_requests": len(jobs),
        "num_prompt_tokens": sum(len(job.prompt_token_ids) for job in jobs),
        "num_output_tokens": sum(job.num_output_tokens for job in jobs),
        "max_num_seqs": args.max_num_seqs,
        "profile": args.profile or "default",
        "rate": args.rate,
        "seed": args.seed,
        "reps": args.reps,
    }
    figures = [_figure(quantity, engines, sizes) for quantity in quantities]
    if args.json:
        print_json(figures)
    else:
        print_table(", ".join(f"{name} {value}" for name, value in sizes.items()), figures)
    return 0 if _judge(figures, _goals(args, directory)) else 1


@contextmanager
def _engines(args: argparse.Namespace, model: Path) -> Iterator[list[Engine]]:
    """Ours, and the peer where one is named."""
    settings = ExecutorSettings(
        model=args.model,
        dtype="bfloat16",
        max_num_seqs=args.max_num_seqs,
        profile=args.profile,
        prefix_cache="off",  # repetitions send the same prompts again
    )
    with ExitStack() as stack:
        # First, so that each starts beside none that takes memory and the files in it.
        engines: list[Engine] = [stack.enter_context(running_stack(settings))]
        if args.vllm_url:
            engines.append(running_vllm_server(args.vllm_python, args.vllm_url))
        elif args.vllm_python:
            _say("starting vLLM, which takes minutes")
            log = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "vllm.log"
            engines.append(
                stack.enter_context(
                    vllm_server(args.vllm_python, model, log, max_num_seqs=args.max_num_seqs, dtype=args.vllm_dtype)
                )
            )
        yield engines


def _warm_up(engines: Sequence[Engine], jobs: Sequence[Job]) -> None:
    first = [Job(prompt_token_ids=job.prompt_token_ids, num_output_tokens=4) for job in jobs[:8]]
    for engine in engines:
        engine.run(first, [0.0] * len(first))


def _measure(
    mode: str, engines: Sequence[Engine], jobs: Sequence[Job], arrivals_s: Sequence[float], num_repetitions: int
) -> list[Quantity]:
    """In turns, and who begins changes at each turn."""
    runs: dict[str, list[list[Answer]]] = {engine.name: [] for engine in engines}
    for repetition in range(num_repetitions):
        for engine in engines if repetition % 2 == 0 else reversed(engines):
            meter = ProcessorMeter({each.name: each.pids for each in engines})
            answers = engine.run(jobs, arrivals_s)
            cores = meter.cores()
            runs[engine.name].append(answers)
            rate, gap = output_tokens_per_s(answers), percentile(inter_token_latencies_ms(answers), 99)
            _say(f"{mode} {repetition + 1} of {num_repetitions}, {engine.name}: {rate:.1f} tok/s, ITL p99 {gap:.0f} ms")
            _say("  cores used: " + ", ".join(f"{name} {share:.2f}" for name, share in cores.items()))
    return [
        Quantity(f"{mode}: {name}", unit, {engine: [measure(answers) for answers in of] for engine, of in runs.items()})
        for name, unit, measure in _MEASURES
        if mode == "offline" or unit == "ms"
    ]


_MEASURES = (
    ("output tokens per second", "tok/s", output_tokens_per_s),
    ("TTFT mean", "ms", lambda answers: statistics.fmean(times_to_first_token_ms(answers))),
    ("TTFT p50", "ms", lambda answers: percentile(times_to_first_token_ms(answers), 50)),
    ("TTFT p99", "ms", lambda answers: percentile(times_to_first_token_ms(answers), 99)),
    ("ITL p50", "ms", lambda answers: percentile(inter_token_latencies_ms(answers), 50)),
    ("ITL p99", "ms", lambda answers: percentile(inter_token_latencies_ms(answers), 99)),
)


def _of_processes(engines: Sequence[Engine]) -> Iterator[Quantity]:
    yield Quantity("peak memory", "MiB", {engine.name: [peak_resident_mib(engine.pids)] for engine in engines})
    starts = {engine.name: [engine.start_s] for engine in engines if engine.start_s is not None}
    yield Quantity("start to ready", "s", starts)


def _figure(quantity: Quantity, engines: Sequence[Engine], sizes: dict[str, object]) -> Figure:
    ours, *peers = (engine.name for engine in engines)
    peer = next((name for name in peers if name in quantity.samples), "")
    return Figure(
        name=quantity.name,
        unit=quantity.unit,
        samples=quantity.samples[ours],
        sizes=sizes,
        reference=peer,
        reference_samples=quantity.samples.get(peer, ()),
    )


@dataclass(frozen=True, slots=True)
class Goal:
    """A bound on a figure's ratio, or on its value where it needs no peer."""

    figure: str
    of_ratio: bool
    least: float = 0.0
    most: float = float("inf")


def _goals(args: argparse.Namespace, model: Path) -> list[Goal]:
    return [
        Goal("offline: output tokens per second", True, least=args.min_throughput_ratio),
        Goal("online: TTFT mean", True, most=args.max_ttft_ratio),
        Goal("online: ITL p50", True, most=args.max_itl_p50_ratio),
        Goal("online: ITL p99", True, most=args.max_itl_p99_ratio),
        Goal("start to ready", False, most=args.max_start_s),
        Goal("peak memory", False, most=_weights_mib(model) + KV_CACHE_MIB + args.max_other_mib),
    ]


def _judge(figures: Sequence[Figure], goals: Sequence[Goal]) -> bool:
    """Say of each goal that can be judged whether it is met. Returns whether all are."""
    by_name, are_met = {figure.name: figure for figure in figures}, True
    for goal in goals:
        figure = by_name.get(goal.figure)
        if figure is None or (goal.of_ratio and not figure.reference):
            continue
        value, unit = (figure.ratio, "times") if goal.of_ratio else (figure.value, figure.unit)
        is_met = goal.least <= value <= goal.most
        bound = f"at least {goal.least:g}" if goal.least > 0 else f"at most {goal.most:.4g}"
        _say(f"{'met' if is_met else 'MISSED'}: {goal.figure} {value:.4g} {unit}, to be {bound}")
        are_met &= is_met
    return are_met


def _weights_mib(model: Path) -> float:
    """Of all parameters in bfloat16."""
    from safetensors import safe_open

    num_parameters = 0
    for file in model.glob("*.safetensors"):
        with safe_open(file, framework="np") as tensors:
            for name in tensors.keys():  # noqa: SIM118  (it is no dictionary)
                size = 1
                for length in tensors.get_slice(name).get_shape():
                    size *= length
                num_parameters += size
    return num_parameters * 2 / 2**20


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="gemma3-270m")
    parser.add_argument("--workload", type=Path, help="JSON file of requests, instead of the built-in ones")
    parser.add_argument("--num-requests", type=int, default=64, help="of the built-in ones")
    parser.add_argument("--modes", nargs="+", default=["offline", "online"], choices=["offline", "online"])
    parser.add_argument("--rate", type=float, default=1.84, help="requests a second, online")
    parser.add_argument("--seed", type=int, default=7, help="of the arrivals, online")
    parser.add_argument("--reps", type=int, default=3)
    parser.add_argument("--max-num-seqs", type=int, default=64, help="requests at once, on both sides")
    parser.add_argument("--profile", help="of our scheduler (default: its default)")
    parser.add_argument("--vllm-python", type=Path, help="the Python of an environment with vLLM")
    parser.add_argument("--vllm-dtype", default="bfloat16", help="float32 is its best where a processor lacks bfloat16")
    parser.add_argument("--vllm-url", help="its server, if it runs already; else it is started")
    parser.add_argument("--min-throughput-ratio", type=float, default=1.25, help="offline")
    parser.add_argument("--max-ttft-ratio", type=float, default=1.0, help="of the mean, online")
    parser.add_argument("--max-itl-p50-ratio", type=float, default=1.0, help="online")
    parser.add_argument("--max-itl-p99-ratio", type=float, default=0.5, help="online")
    parser.add_argument("--max-start-s", type=float, default=10.0)
    parser.add_argument("--max-other-mib", type=float, default=700.0, help="memory beside weights and cache")
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    args = parser.parse_args()
    if args.vllm_url and not args.vllm_python:
        parser.error("--vllm-url needs --vllm-python, whose HTTP client streams the requests")
    return args


def _say(message: str) -> None:
    print(message, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
