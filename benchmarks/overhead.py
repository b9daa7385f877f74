"""What being watched costs: tokens a second and processor time a token, with metrics, or with traces besides.

Two stacks of scheduler and executor stand ready, alike but for that: one tells nothing; of the other both services have
metrics, scraped each `--scrape-interval-s`, and with `--traces` they send traces of every request, plan and pass to a
collector. They get the same burst of requests in turns, forth and back. The speed of a machine that one shares with
others wanders by some percent within seconds, so bursts are short and many: what drifts cancels out of a round of four,
and a round gives one ratio. Told is their median, with a bootstrap interval of 95 %. Beside it stands what no machine's
wandering hides: what adding up a pass takes on the engine's thread, called over and over.

Exit status by the interval of the throughput: 0 where all of it costs at most `--max-overhead`, 1 where all of it costs
more, 2 where it cannot be told: run more rounds, on a machine without other work.
"""

from __future__ import annotations

import argparse
import os
import sys
import threading
import timeit
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, fields
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


def main() -> int:
    """Measure, print, and give the exit status."""
    args = _arguments()
    settings = ExecutorSettings(
        model=args.model,
        dtype=args.dtype,
        max_num_seqs=args.num_requests,
        prefix_cache="off",  # each burst sends the same prompts again
    )
    with ExitStack() as stacks:
        plain = Arm(stacks.enter_context(running_stack(settings)))
        stack = _traced_stack if args.traces else _watched_stack
        watched = Arm(stacks.enter_context(stack(settings, args.scrape_interval_s)))
        jobs = _burst(plain.stack.address, args)
        for arm in (plain, watched, plain, watched):
            run_jobs(arm.stack.address, jobs)  # warm
        for number in range(1, args.rounds + 1):
            for arm in (plain, watched):
                arm.begin_round()
            # Who is first changes as well: the burst after a pause between rounds may differ.
            order = (plain, watched, watched, plain) if number % 2 else (watched, plain, plain, watched)
            for arm in order:
                arm.run(jobs)
            print(f"round {number} of {args.rounds}: {watched.seconds[-1] / plain.seconds[-1]:.3f}", file=sys.stderr)
    figures = [*_figures(plain, watched, args), _adding_up(args)]
    if args.json:
        print_json(figures)
    else:
        print_table(f"bursts of {args.num_requests} requests, {args.rounds} rounds of two for each stack", figures)
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


def _figures(plain: Arm, watched: Arm, args: argparse.Namespace) -> Iterator[Figure]:
    """Of the stack that is watched against the other one, round by round."""
    name = "metrics and traces" if args.traces else "metrics"
    sizes = {"num_requests": args.num_requests, "output_tokens": args.output_tokens, "rounds": args.rounds}
    num_tokens = 2 * args.num_requests * args.output_tokens  # of a round
    yield Figure(
        name=f"throughput with {name}",
        unit="tok/s",
        samples=[num_tokens / seconds for seconds in watched.seconds],
        sizes=sizes,
        reference="with nothing",
        reference_samples=[num_tokens / seconds for seconds in plain.seconds],
    )
    yield Figure(
        name=f"processor time with {name}",
        unit="ms/token",
        samples=[1e3 * seconds / num_tokens for seconds in watched.cpu_seconds],
        sizes=sizes,
        reference="with nothing",
        reference_samples=[1e3 * seconds / num_tokens for seconds in plain.cpu_seconds],
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


@contextmanager
def _watched_stack(settings: ExecutorSettings, interval_s: float) -> Iterator[LocalStack]:
    scheduler, executor = (f"127.0.0.1:{free_port()}" for _ in range(2))
    environment = {
        "METRONOME_SCHEDULER_METRICS_ADDRESS": scheduler,
        "METRONOME_EXECUTOR_METRICS_ADDRESS": executor,
    }
    with _environment(environment), running_stack(settings) as stack, _scraped([scheduler, executor], interval_s):
        yield stack


@contextmanager
def _traced_stack(settings: ExecutorSettings, interval_s: float) -> Iterator[LocalStack]:
    with server_process(*OTLP_SINK) as collector:
        environment = {
            "METRONOME_SCHEDULER_TRACING": "otlp",
            "METRONOME_EXECUTOR_TRACING": "otlp",
            "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://{collector.address}",
        }
        with _environment(environment), _watched_stack(settings, interval_s) as stack:
            yield stack


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
    parser.add_argument("--num-requests", type=int, default=16, help="of a burst, all at once")
    parser.add_argument("--prompt-tokens", type=int, default=16)
    parser.add_argument("--output-tokens", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--traces", action="store_true", help="with traces besides")
    parser.add_argument("--scrape-interval-s", type=float, default=5.0)
    parser.add_argument("--max-overhead", type=float, default=0.02)
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
