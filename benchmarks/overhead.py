"""What being watched costs: tokens a second and processor time a token, with metrics, or with traces besides.

Two stacks of scheduler and executor stand ready, alike but for that: one tells nothing; of the other both services have
metrics, scraped each `--scrape-interval-s`, and with `--traces` they send traces of every request, plan and pass to a
collector. They get the same burst of requests in turns, forth and back. The speed of a machine that one shares with
others wanders by some percent within seconds, so bursts are short and many: what drifts cancels out of a round of four.
Two processes that are alike differ by some percent as well, for as long as they live (where their memory lies), so each
pair of stacks gives one ratio, the median of its rounds, and there are several pairs. Told is the median of these, with
a bootstrap interval of 95 %. Beside it stands what no machine's wandering hides: what adding up a pass takes on the
engine's thread, called over and over. With `--control` neither stack is watched: what comes out is the error.

Exit status by the interval of the throughput: 0 where all of it costs at most `--max-overhead`, 1 where all of it costs
more, 2 where it cannot be told: run more pairs, on a machine without other work.
"""

from __future__ import annotations

import argparse
import os
import sys
import threading
import timeit
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field, fields
from statistics import median
from typing import Any

from executor_service.engine.plan import PlanSource
from executor_service.engine.record import Measures, PassRecord
from executor_service.metrics.tally import Tally
from executor_service.metrics.tenants import TenantLabels
from harness.process_tree import cpu_seconds
from harness.report import Figure, print_json, print_table
from harness.server_process import OTLP_SINK, free_port, server_process
from harness.stack import LocalStack, run_jobs, running_stack
from harness.workload import Job, corpus_tokens
from metronome_cli.stack.services import ExecutorSettings
from metronome_client import InferenceClient

COSTS_MORE, CANNOT_TELL = 1, 2


@dataclass(slots=True)
class Arm:
    """A stack, and what each of its rounds took: seconds, and processor seconds of both services."""

    stack: LocalStack
    seconds: list[float] = field(default_factory=list)
    cpu_seconds: list[float] = field(default_factory=list)

    def begin_round(self) -> None:
        self.seconds.append(0.0)
        self.cpu_seconds.append(0.0)

    def run(self, jobs: Sequence[Job]) -> None:
        """One burst of the present round."""
        before = cpu_seconds(self.stack.pids)
        _, seconds = run_jobs(self.stack.address, jobs)
        self.seconds[-1] += seconds
        self.cpu_seconds[-1] += cpu_seconds(self.stack.pids) - before


@dataclass(frozen=True, slots=True, kw_only=True)
class Medians:
    """Of the rounds of a pair of stacks, and of the ratios of their rounds."""

    plain_s: float
    plain_cpu_s: float
    slowdown: float
    cpu_ratio: float


def main() -> int:
    """Measure, print, and give the exit status."""
    args = _arguments()
    pairs = []
    for number in range(1, args.pairs + 1):
        pairs.append(_pair(args, watched_first=number % 2 == 0))
        last = pairs[-1]
        print(f"pair {number} of {args.pairs}: time {last.slowdown:.3f}, CPU {last.cpu_ratio:.3f}", file=sys.stderr)
    figures = [*_figures(pairs, args), _adding_up(args)]
    if args.json:
        print_json(figures)
    else:
        title = f"bursts of {args.num_requests} requests, {args.pairs} pairs of stacks, {args.rounds} rounds each"
        print_table(title, figures)
        for figure in figures[:2]:
            low, high = figure.ratio_interval
            print(f"{figure.name}: {figure.ratio:.4f} times (95 % interval {low:.4f} to {high:.4f})")
    low, high = figures[0].ratio_interval
    if low >= 1 - args.max_overhead:
        return 0
    is_sure = high < 1 - args.max_overhead
    verdict = "more than" if is_sure else "perhaps more than"
    print(f"it costs {verdict} {args.max_overhead:.0%} of the throughput", file=sys.stderr)
    return COSTS_MORE if is_sure else CANNOT_TELL


def _pair(args: argparse.Namespace, *, watched_first: bool) -> Medians:
    """Two stacks, anew. Who starts first changes from pair to pair, whose burst is first from round to round."""
    settings = ExecutorSettings(
        model=args.model,
        dtype=args.dtype,
        max_num_seqs=args.num_requests,
        prefix_cache="off",  # each burst sends the same prompts again
    )
    with ExitStack() as stacks:
        arms: dict[bool, Arm] = {}
        for is_watched in (watched_first, not watched_first):
            stack = _watched(args, settings) if is_watched and not args.control else running_stack(settings)
            arms[is_watched] = Arm(stacks.enter_context(stack))
        plain, watched = arms[False], arms[True]
        jobs = _burst(plain.stack.address, args)
        for arm in (plain, watched, plain, watched):
            run_jobs(arm.stack.address, jobs)  # warm
        for number in range(args.rounds):
            for arm in (plain, watched):
                arm.begin_round()
            order = (plain, watched, watched, plain) if number % 2 else (watched, plain, plain, watched)
            for arm in order:
                arm.run(jobs)
    return Medians(
        plain_s=median(plain.seconds),
        plain_cpu_s=median(plain.cpu_seconds),
        slowdown=median(a / b for a, b in zip(watched.seconds, plain.seconds, strict=True)),
        cpu_ratio=median(a / b for a, b in zip(watched.cpu_seconds, plain.cpu_seconds, strict=True)),
    )


def _figures(pairs: Sequence[Medians], args: argparse.Namespace) -> Iterator[Figure]:
    """Of the stacks that are watched against the others, pair by pair."""
    name = "nothing, either" if args.control else "metrics and traces" if args.traces else "metrics"
    sizes = {
        "num_requests": args.num_requests,
        "output_tokens": args.output_tokens,
        "pairs": args.pairs,
        "rounds": args.rounds,
    }
    num_tokens = 2 * args.num_requests * args.output_tokens  # of a round
    speeds = [num_tokens / pair.plain_s for pair in pairs]
    yield Figure(
        name=f"throughput with {name}",
        unit="tok/s",
        samples=[speed / pair.slowdown for speed, pair in zip(speeds, pairs, strict=True)],
        sizes=sizes,
        reference="with nothing",
        reference_samples=speeds,
    )
    costs = [1e3 * pair.plain_cpu_s / num_tokens for pair in pairs]
    yield Figure(
        name=f"processor time with {name}",
        unit="ms/token",
        samples=[cost * pair.cpu_ratio for cost, pair in zip(costs, pairs, strict=True)],
        sizes=sizes,
        reference="with nothing",
        reference_samples=costs,
    )


def _adding_up(args: argparse.Namespace) -> Figure:
    """What the executor's metrics add to a pass in which each request of a burst decodes."""
    counts: dict[str, Any] = dict.fromkeys((one.name for one in fields(PassRecord)), 1_000)
    record = PassRecord(**counts | {"plan_source": PlanSource.OVERLAPPED})
    measures = Measures(token_gaps_us=[40_000 + number for number in range(args.num_requests)])
    tally = Tally(TenantLabels(1))
    number, repeats = 2_000, 20
    took = timeit.repeat(lambda: tally.pass_done(record, measures), number=number, repeat=repeats)
    return Figure(
        name=f"adding up a pass of {args.num_requests} decodes",
        unit="µs",
        samples=[1e6 * seconds / number for seconds in took],
        sizes={"num_requests": args.num_requests},
    )


def _burst(address: str, args: argparse.Namespace) -> list[Job]:
    """Requests of one length, over the executor's own tokens: all decode together, and end together."""
    with InferenceClient(address) as client:
        start_token, tokens = corpus_tokens(lambda text: client.tokenize(text or " "))
    length = args.prompt_tokens - 1
    return [
        Job(
            prompt_token_ids=(start_token, *tokens[number * length : (number + 1) * length]),
            num_output_tokens=args.output_tokens,
        )
        for number in range(args.num_requests)
    ]


def _watched(args: argparse.Namespace, settings: ExecutorSettings) -> AbstractContextManager[LocalStack]:
    return (_traced_stack if args.traces else _watched_stack)(settings, args.scrape_interval_s)


@contextmanager
def _watched_stack(settings: ExecutorSettings, interval_s: float, **more: str) -> Iterator[LocalStack]:
    scheduler, executor = (f"127.0.0.1:{free_port()}" for _ in range(2))
    environment = {
        "METRONOME_SCHEDULER_METRICS_ADDRESS": scheduler,
        "METRONOME_EXECUTOR_METRICS_ADDRESS": executor,
        **more,
    }
    with ExitStack() as stacks:
        with _environment(environment):
            stack = stacks.enter_context(running_stack(settings))
        stacks.enter_context(_scraped([scheduler, executor], interval_s))
        yield stack


@contextmanager
def _traced_stack(settings: ExecutorSettings, interval_s: float) -> Iterator[LocalStack]:
    with server_process(*OTLP_SINK) as collector:
        environment = {
            "METRONOME_SCHEDULER_TRACING": "otlp",
            "METRONOME_EXECUTOR_TRACING": "otlp",
            "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://{collector.address}",
        }
        with _watched_stack(settings, interval_s, **environment) as stack:
            yield stack


@contextmanager
def _environment(variables: dict[str, str]) -> Iterator[None]:
    """Services that start now inherit these."""
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
    parser.add_argument("--num-requests", type=int, default=16, help="of a burst, all at once")
    parser.add_argument("--prompt-tokens", type=int, default=16)
    parser.add_argument("--output-tokens", type=int, default=8)
    parser.add_argument("--pairs", type=int, default=10, help="of stacks, each started anew")
    parser.add_argument("--rounds", type=int, default=10, help="of a pair, of two bursts for each stack")
    parser.add_argument("--traces", action="store_true", help="with traces besides")
    parser.add_argument("--control", action="store_true", help="with nothing on either side")
    parser.add_argument("--scrape-interval-s", type=float, default=5.0)
    parser.add_argument("--max-overhead", type=float, default=0.02)
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
