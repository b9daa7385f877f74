"""What being watched costs: tokens a second with metrics, and with traces besides, against a stack that tells nothing.

Three stacks of scheduler and executor stand ready, alike but for that: nothing; metrics on both services, scraped each
`--scrape-interval-s`; the same with traces of every request, plan and pass, sent to a collector. The same requests go
to each in turns, all at once, and the ratio is of neighbours in time.

Exit status 1 where metrics cost more than `--max-overhead` of the throughput. The target is 0.02; the bound is wider,
since on a machine with other work single runs differ by more.
"""

from __future__ import annotations

import argparse
import os
import sys
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from harness.report import Figure, print_json, print_table
from harness.server_process import OTLP_SINK, free_port, server_process
from harness.stack import local_stack, run_jobs
from harness.workload import Job, mixed_jobs
from metronome_cli.stack.services import ExecutorSettings
from metronome_client import InferenceClient

TARGET_OVERHEAD = 0.02
NOTHING, METRICS, TRACES = "nothing", "metrics", "metrics and traces"


def main() -> int:
    """Measure, print, and give the exit status."""
    args = _arguments()
    settings = ExecutorSettings(
        model=args.model,
        dtype=args.dtype,
        max_num_seqs=args.batch_size,
        prefix_cache="off",  # repetitions send the same prompts again
    )
    samples: dict[str, list[float]] = {NOTHING: [], METRICS: [], TRACES: []}
    with ExitStack() as stacks:
        addresses = {
            NOTHING: stacks.enter_context(local_stack(settings)),
            METRICS: stacks.enter_context(_watched_stack(settings, args.scrape_interval_s)),
            TRACES: stacks.enter_context(_traced_stack(settings, args.scrape_interval_s)),
        }
        jobs = _jobs(addresses[NOTHING], args.num_requests)
        for address in addresses.values():
            run_jobs(address, jobs[: args.batch_size])  # warm
        for repetition in range(args.reps):
            # Who is first changes: whatever drifts favours nobody.
            order = list(addresses) if repetition % 2 == 0 else list(reversed(addresses))
            for name in order:
                answers, seconds = run_jobs(addresses[name], jobs)
                samples[name].append(sum(map(len, answers)) / seconds)
                print(f"repetition {repetition + 1}: {name} {samples[name][-1]:.1f} tok/s", file=sys.stderr)
    figures = [
        Figure(
            name=f"with {name}",
            unit="tok/s",
            samples=samples[name],
            sizes={"num_requests": args.num_requests, "batch_size": args.batch_size, "reps": args.reps},
            reference="with nothing",
            reference_samples=samples[NOTHING],
        )
        for name in (METRICS, TRACES)
    ]
    if args.json:
        print_json(figures)
    else:
        print_table(f"{args.num_requests} requests, {args.batch_size} at once, {args.reps} repetitions", figures)
    overhead = 1 - figures[0].ratio
    if overhead > args.max_overhead:
        print(f"metrics cost {overhead:.1%} of the throughput, more than {args.max_overhead:.0%}", file=sys.stderr)
    return int(overhead > args.max_overhead)


def _jobs(address: str, count: int) -> list[Job]:
    """Over the executor's own tokens."""
    with InferenceClient(address) as client:
        return mixed_jobs(count, lambda text: client.tokenize(text or " "))


@contextmanager
def _watched_stack(settings: ExecutorSettings, interval_s: float) -> Iterator[str]:
    scheduler, executor = (f"127.0.0.1:{free_port()}" for _ in range(2))
    environment = {
        "METRONOME_SCHEDULER_METRICS_ADDRESS": scheduler,
        "METRONOME_EXECUTOR_METRICS_ADDRESS": executor,
    }
    with _environment(environment), local_stack(settings) as address, _scraped([scheduler, executor], interval_s):
        yield address


@contextmanager
def _traced_stack(settings: ExecutorSettings, interval_s: float) -> Iterator[str]:
    with server_process(*OTLP_SINK) as collector:
        environment = {
            "METRONOME_SCHEDULER_TRACING": "otlp",
            "METRONOME_EXECUTOR_TRACING": "otlp",
            "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://{collector.address}",
        }
        with _environment(environment), _watched_stack(settings, interval_s) as address:
            yield address


@contextmanager
def _environment(variables: dict[str, str]) -> Iterator[None]:
    """Services inherit these."""
    before = dict(os.environ)
    os.environ.update(variables)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


@contextmanager
def _scraped(addresses: list[str], interval_s: float) -> Iterator[None]:
    """Read the metrics as Prometheus does. Raises what a scrape did, at the end."""
    done, failures = threading.Event(), list[Exception]()

    def scrape() -> None:
        while not done.wait(interval_s):
            try:
                for address in addresses:
                    with urllib.request.urlopen(f"http://{address}/metrics", timeout=30) as answer:
                        answer.read()
            except OSError as error:
                failures.append(error)
                return

    scraping = threading.Thread(target=scrape)
    scraping.start()
    try:
        yield
    finally:
        done.set()
        scraping.join()
    if failures:
        raise failures[0]


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="gemma3-270m")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--batch-size", type=int, default=16, help="requests at once")
    parser.add_argument("--num-requests", type=int, default=32)
    parser.add_argument("--reps", type=int, default=6)
    parser.add_argument("--scrape-interval-s", type=float, default=5.0)
    parser.add_argument("--max-overhead", type=float, default=0.1)
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
