"""The simulator held against reality: one trace on a real executor and in the policy lab, with the calibrated profile.

    calibrate ── compare ── calibrate ── compare ── calibrate        --rounds 2

A scheduler and an executor with default settings are started, and --requests of the trace are played on the executor as
a user's traffic, and in virtual time. The hardware profile is fitted to the passes of --calibration-requests of the
trace that come before, between and after them: to nothing that it is judged by, and all over the run, since a machine
that is shared is not always as fast. Half of them come as fast as those compared, for what passes cost that follow a
pause or hold little, and half twice as fast, for those that hold much. All of a part are answered before the next
begins. Latencies of the executor are those that a client sees, the network included. Lengths are --lengths times the
recorded ones, at least a token each: the trace is of GPUs.

How much of the time passes ran is printed too. Where that is near all of it, the time to first token is mostly waiting,
and a machine that is by 3 percent slower than it was when it was calibrated shows as several times that. By how much
it was, is printed: what the passes compared took, to what the profile says that they cost.

Exit status 1 if throughput, mean TTFT or mean ITL is off by more than 10 percent, or a p99 by more than 25.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from harness.report import Figure, print_json, print_table
from harness.stack import local_stack
from metronome.executor.v1 import executor_pb2
from metronome_cli.stack.services import ExecutorSettings
from metronome_client import AsyncInferenceClient
from metronome_lab.figures import Spread
from metronome_lab.hardware.profile import Hardware, write_hardware
from metronome_lab.live.calibrate import fit_hardware, measured_passes
from metronome_lab.live.replay import replay
from metronome_lab.policies import named_policy
from metronome_lab.records import GapRecords, Outcome, Records, RequestRecords
from metronome_lab.simulation import Fleet, simulate
from metronome_lab.workload.requests import Workload
from metronome_lab.workload.traces import read_workload

TRACE = Path(__file__).parents[1] / "tests" / "data" / "traces" / "azure_2023_conv_code.csv"


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """What clients saw of some runs, one after the other."""

    num_output_tokens: int
    duration_s: float
    ttft: Spread
    gaps: GapRecords

    @classmethod
    def of(cls, runs: Sequence[Records]) -> Played:
        gaps = GapRecords()
        for run in runs:
            gaps.add_all(run.gaps)
        requests = [run.requests for run in runs]
        return cls(
            num_output_tokens=sum(int(one.num_output_tokens.sum()) for one in requests),
            duration_s=sum(run.end_us for run in runs) / 1e6,
            ttft=Spread.of(np.concatenate([_ttft_us(one) for one in requests])),
            gaps=gaps,
        )


def _ttft_us(requests: RequestRecords) -> NDArray[np.int64]:
    """Of those that finished, as the lab's figures have it."""
    times_us: NDArray[np.int64] = requests.first_token_us - requests.workload.arrival_us
    return times_us[requests.outcome == Outcome.FINISHED]


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantity:
    """What is compared, and how far it may be off."""

    name: str
    unit: str
    of: Callable[[Played], float]
    most_off: float


QUANTITIES = (
    Quantity(name="throughput", unit="tokens/s", of=lambda p: p.num_output_tokens / p.duration_s, most_off=0.10),
    Quantity(name="TTFT, mean", unit="ms", of=lambda p: p.ttft.mean_ms, most_off=0.10),
    Quantity(name="TTFT, p99", unit="ms", of=lambda p: p.ttft.p99_ms, most_off=0.25),
    Quantity(name="ITL, mean", unit="ms", of=lambda p: p.gaps.mean_us / 1e3, most_off=0.10),
    Quantity(name="ITL, p99", unit="ms", of=lambda p: p.gaps.percentile_us(99) / 1e3, most_off=0.25),
)


def main() -> int:
    args = _arguments()
    parts = _parts(_of_lengths(read_workload(args.trace), args.lengths), args)
    settings = ExecutorSettings(
        model=args.model, profile=args.profile, max_num_seqs=args.max_num_seqs, num_blocks=args.num_blocks
    )
    with local_stack(settings) as address:
        hardware, real = asyncio.run(_on_the_executor(address, parts))
    if args.hardware is not None:
        write_hardware(hardware, args.hardware)
    simulated = [
        simulate(part.workload, Fleet(hardware=hardware), named_policy(args.profile), seed=args.seed + number)
        for number, part in enumerate(part for part in parts if part.is_compared)
    ]
    figures = list(_figures(Played.of(simulated), Played.of(real)))
    if args.json:
        print_json(figures)
    else:
        print_table(f"{args.requests} requests, simulated and on the executor", figures)
    wrong = [
        f"{quantity.name}: {figure.ratio:.3f} of the executor's, more than {quantity.most_off:.0%} off"
        for quantity, figure in zip(QUANTITIES, figures, strict=True)
        if abs(figure.ratio - 1) > quantity.most_off
    ]
    for line in wrong:
        print(line, file=sys.stderr)
    return 1 if wrong else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Requests that are played together, to be compared or to calibrate with."""

    workload: Workload
    is_compared: bool


def _parts(trace: Workload, args: argparse.Namespace) -> list[Part]:
    """All of the run, in order."""
    parts: list[Part] = []
    stop = 0

    def add(num_requests: int, rate: float, *, is_compared: bool) -> None:
        nonlocal stop
        start, stop = stop, stop + num_requests
        parts.append(Part(workload=trace.part(start, stop).at_rate(rate), is_compared=is_compared))

    num_to_calibrate = max(args.calibration_requests // (args.rounds + 1) // 2, 1)
    for number in range(args.rounds + 1):
        add(num_to_calibrate, 2 * args.rate, is_compared=False)
        add(num_to_calibrate, args.rate, is_compared=False)
        if number < args.rounds:
            num_before, num_then = (count * args.requests // args.rounds for count in (number, number + 1))
            add(num_then - num_before, args.rate, is_compared=True)
    return parts


async def _on_the_executor(address: str, parts: Sequence[Part]) -> tuple[Hardware, list[Records]]:
    calibration: list[executor_pb2.Pass] = []
    compared: list[executor_pb2.Pass] = []
    runs: list[Records] = []
    async with AsyncInferenceClient(address) as client:
        for number, part in enumerate(parts):
            run, passes = await replay(client, part.workload, seed=number)
            if part.is_compared:
                runs.append(run)
            (compared if part.is_compared else calibration).extend(passes)
            busy_s = sum(one.total_us for one in passes) / 1e6
            what = "to compare" if part.is_compared else "to calibrate"
            _say(f"{len(part.workload)} requests {what}: passes took {busy_s:.1f} of {run.end_us / 1e6:.1f} seconds")
        source = f"passes of {parts[0].workload.name}"
        hardware = await fit_hardware(client, calibration, name="calibrated", source=source)
    _say(f"{hardware.description} {hardware.cost}")
    assert hardware.cost is not None
    passes_compared = measured_passes(compared)
    ratio = passes_compared.times_us.sum() / passes_compared.costs_us(hardware.cost).sum()
    _say(f"{len(compared):,} passes compared took {ratio:.3f} of what the profile says that they cost")
    return hardware, runs


def _of_lengths(workload: Workload, factor: float) -> Workload:
    """The same requests, with prompts and answers so many times as long."""

    def scaled(lengths: NDArray[np.int32]) -> NDArray[np.int32]:
        return np.maximum(np.rint(lengths * factor), 1).astype(np.int32)

    answers = scaled(workload.num_output_tokens)
    return replace(
        workload,
        num_prompt_tokens=scaled(workload.num_prompt_tokens),
        num_output_tokens=answers,
        max_output_tokens=answers,
        expected_output_tokens=answers,
    )


def _figures(simulated: Played, real: Played) -> list[Figure]:
    return [
        Figure(
            name=quantity.name,
            unit=quantity.unit,
            samples=[quantity.of(simulated)],
            reference="executor",
            reference_samples=[quantity.of(real)],
            sizes={"most_off": quantity.most_off},
        )
        for quantity in QUANTITIES
    ]


def _say(message: str) -> None:
    print(f"==> {message}", file=sys.stderr)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--trace", type=Path, default=TRACE)
    parser.add_argument("--requests", type=int, default=200)
    parser.add_argument("--calibration-requests", type=int, default=120, help="in all")
    parser.add_argument("--rounds", type=int, default=2, help="in which they are compared")
    parser.add_argument("--lengths", type=float, default=0.125, help="times the recorded ones")
    parser.add_argument("--rate", type=float, default=0.04, help="times as fast as recorded")
    parser.add_argument("--model", help="as an executor takes it; its default model unless given")
    parser.add_argument("--max-num-seqs", type=int)
    parser.add_argument("--num-blocks", type=int)
    parser.add_argument("--profile", default="fifo", help="that the scheduler plans by")
    parser.add_argument("--hardware", type=Path, help="write the calibrated profile there")
    parser.add_argument("--seed", type=int, default=0, help="of how long simulated passes take")
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
