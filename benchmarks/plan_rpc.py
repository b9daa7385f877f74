"""The scheduler over the wire: the round trip, plans per second on one core, and memory over many plans.

Round trip: `PlanStream` on loopback, one message at a time, against what it cannot be without, in turns within one run:
a round trip to a bare gRPC server with messages of the same sizes, then checking and planning the same state in this
process, arrays to arrays. What the ratio is over 1 is parsing, formatting and the service around them. Sizes are
requests that run and requests that wait.

Plans per second: the service on one core, this program on the others, several requests in flight, over one stream and
over unary calls.

Memory: what the service has in RAM after a warm-up and after `--plans` more, half over streams, half over unary calls.

Exit status 1 where a bound is broken (`--max-ratio`, `--min-rate`, `--max-growth-mib`; generous, for noisy machines).
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import grpc

from harness.calls import PLAN_STREAM_METHOD, Stream, open_channel, open_stream, stream_seconds, unary_seconds
from harness.echo_server import STREAM_METHOD
from harness.messages import plan_request
from harness.report import Figure, print_json, print_table
from harness.server_process import ECHO, SCHEDULER, on_cores, server_process
from metronome.scheduler.v1 import scheduler_pb2
from plan_latency import SIZES, state_of
from scheduler_service.core.plan import plan
from scheduler_service.core.state import ClusterState, ExecutorState, Requests
from scheduler_service.core.validate import validate
from scheduler_service.profiles import load_profiles

BOUNDED_SIZE = (256, 1024)
RATE_SIZE = (64, 64)
TARGET_RATIO, TARGET_PLANS_PER_S, TARGET_GROWTH_MIB = 1.3, 1500, 4
NUM_WARM_UP_PLANS = 8000
NUM_PLANS_A_TURN = 1000


def main() -> int:
    args = _arguments()
    round_trips = {size: _round_trip(size, args.reps, args.round_trips) for size in SIZES}
    rates = _rates(args.reps, args.in_flight)
    memory = _memory(args.plans, args.in_flight)
    figures = [*round_trips.values(), *rates, *memory]
    if args.json:
        print_json(figures)
    else:
        print_table(f"scheduler over the wire, {args.reps} repetitions", figures)
    broken = [
        *_above("round trip against its parts", round_trips[BOUNDED_SIZE].ratio, args.max_ratio),
        *_above("growth of memory in MiB", memory[-1].value, args.max_growth_mib),
        *(f"{rate.name}: {rate.value:.4g}, below {args.min_rate:g}" for rate in rates if rate.value < args.min_rate),
    ]
    for line in broken:
        print(line, file=sys.stderr)
    return 1 if broken else 0


def _above(name: str, value: float, bound: float) -> Iterator[str]:
    if value > bound:
        yield f"{name}: {value:.4g}, above {bound:g}"


def _round_trip(size: tuple[int, int], num_repetitions: int, num_round_trips: int) -> Figure:
    """Each sample is the median of one repetition, as is each sample of the reference."""
    executor, policy = state_of(*size), load_profiles().default.policy
    request = plan_request(executor).SerializeToString()
    with server_process(*SCHEDULER) as scheduler, open_stream(scheduler.address, PLAN_STREAM_METHOD) as plans:
        plans.send(request)
        response = plans.receive()
        (answer,) = scheduler_pb2.PlanResponse.FromString(response).plans
        assert answer.digest == plan(_as_it_arrives(executor), policy)[0].digest, "the service plans something else"
        with (
            server_process(*ECHO, "--response-bytes", str(len(response))) as echo,
            open_stream(echo.address, STREAM_METHOD) as echoes,
        ):

            def parts() -> tuple[float, float]:
                cluster = _as_it_arrives(executor)
                echo_us = _round_trip_us(echoes, request)
                return echo_us, _microseconds(lambda: (validate(cluster), plan(cluster, policy)))

            samples: list[float] = []
            part_samples: list[tuple[float, float, float]] = []  # both together, echo, planning
            for repetition in range(num_repetitions + 1):
                sample = statistics.median(_round_trip_us(plans, request) for _ in range(num_round_trips))
                pairs = [parts() for _ in range(num_round_trips)]
                if repetition > 0:  # the first is the warm-up
                    samples.append(sample)
                    columns = (map(sum, pairs), *zip(*pairs, strict=True))
                    part_samples.append(tuple(map(statistics.median, columns)))  # type: ignore[arg-type]
    both, echo_us, planning_us = zip(*part_samples, strict=True)
    sizes: dict[str, object] = {
        "num_running": size[0],
        "num_waiting": size[1],
        "request_bytes": len(request),
        "response_bytes": len(response),
        "echo_us": round(statistics.median(echo_us), 1),
        "planning_us": round(statistics.median(planning_us), 1),
    }
    return Figure(
        name=f"PlanStream round trip {size}",
        unit="us",
        samples=samples,
        sizes={**sizes, "target_ratio": TARGET_RATIO} if size == BOUNDED_SIZE else sizes,
        reference="bare echo, then planning",
        reference_samples=both,
    )


def _as_it_arrives(executor: ExecutorState) -> ClusterState:
    """A cluster of one, with a copy of its table: what an earlier plan worked out from the columns is not there."""
    executor = replace(executor, requests=Requests(executor.requests.matrix.copy()))
    return ClusterState(now_us=executor.now_us, executors=(executor,), tenants=executor.tenants)


def _round_trip_us(stream: Stream, request: bytes) -> float:
    def there_and_back() -> None:
        stream.send(request)
        stream.receive()

    return _microseconds(there_and_back)


def _microseconds(action: Callable[[], object]) -> float:
    started = time.perf_counter_ns()
    action()
    return (time.perf_counter_ns() - started) / 1000


def _rates(num_repetitions: int, num_in_flight: int) -> list[Figure]:
    """The service has one core, and this program the others, where there are any."""
    core, *others = sorted(os.sched_getaffinity(0))
    requests = [plan_request(state_of(*RATE_SIZE)).SerializeToString()]
    ways = {"one stream": stream_seconds, "unary calls": unary_seconds}
    samples: dict[str, list[float]] = {name: [] for name in ways}
    with (
        server_process(*SCHEDULER, cores=[core]) as scheduler,
        on_cores(others or None),
        open_channel(scheduler.address) as channel,
    ):
        _plan_many(channel, requests, NUM_WARM_UP_PLANS, num_in_flight)
        for _ in range(num_repetitions):
            for name, seconds in ways.items():
                samples[name].append(NUM_PLANS_A_TURN / seconds(channel, requests, NUM_PLANS_A_TURN, num_in_flight))
    sizes = {
        "num_running": RATE_SIZE[0],
        "num_waiting": RATE_SIZE[1],
        "num_in_flight": num_in_flight,
        "num_cores": 1,
        "num_client_cores": len(others),
        "target": TARGET_PLANS_PER_S,
    }
    return [
        Figure(name=f"plans per second over {name} {RATE_SIZE}", unit="plans/s", samples=rates, sizes=sizes)
        for name, rates in samples.items()
    ]


def _memory(num_plans: int, num_in_flight: int) -> list[Figure]:
    """At the start, after the warm-up, at the end, and the growth from the second to the third."""
    requests = [plan_request(state_of(*RATE_SIZE, seed=seed)).SerializeToString() for seed in range(16)]
    with server_process(*SCHEDULER) as scheduler, open_channel(scheduler.address) as channel:
        at_start = scheduler.resident_mib
        _plan_many(channel, requests, NUM_WARM_UP_PLANS, num_in_flight)
        warm = scheduler.resident_mib
        _plan_many(channel, requests, num_plans, num_in_flight)
        at_end = scheduler.resident_mib
    sizes = {"num_running": RATE_SIZE[0], "num_waiting": RATE_SIZE[1], "num_plans": num_plans}
    moments = {"at the start": at_start, "after the warm-up": warm, "at the end": at_end, "growth": at_end - warm}
    return [
        Figure(
            name=f"memory of the service, {moment}",
            unit="MiB",
            samples=[mib],
            sizes={**sizes, "target": TARGET_GROWTH_MIB} if moment == "growth" else sizes,
        )
        for moment, mib in moments.items()
    ]


def _plan_many(channel: grpc.Channel, requests: Sequence[bytes], num_plans: int, num_in_flight: int) -> None:
    """By turns on a stream and over unary calls; a new stream each turn."""
    ways = (stream_seconds, unary_seconds)
    for turn, first in enumerate(range(0, num_plans, NUM_PLANS_A_TURN)):
        ways[turn % 2](channel, requests, min(NUM_PLANS_A_TURN, num_plans - first), num_in_flight)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--reps", type=int, default=15, help="repetitions of round trips and rates")
    parser.add_argument("--round-trips", type=int, default=50, help="round trips of each repetition")
    parser.add_argument("--in-flight", type=int, default=8, help="requests in flight where rates are measured")
    parser.add_argument("--plans", type=int, default=40_000, help="plans over which memory is watched")
    parser.add_argument("--max-ratio", type=float, default=2.0, help=f"of the round trip at {BOUNDED_SIZE}")
    parser.add_argument("--min-rate", type=float, default=500.0, help="plans per second, over either way")
    parser.add_argument("--max-growth-mib", type=float, default=8.0, help="growth of memory after the warm-up")
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
