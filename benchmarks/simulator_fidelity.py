"""The simulator held against reality: one trace on a real executor and in the policy lab, with the calibrated profile.

A scheduler and an executor with default settings are started, and --requests of the trace are played on the executor as
a user's traffic, and in virtual time. The hardware profile is fitted to the passes of those requests of the trace that
come before and after them, twice as fast: to nothing that it is judged by, and on both sides, since a machine that is
shared is not always as fast. Latencies of the executor are those that a client sees, the network included. Lengths are
--lengths times the recorded ones, at least a token each: the trace is of GPUs.

How much of the time passes ran is printed too. Where that is near all of it, the time to first token is mostly waiting,
and a machine that is by 3 percent slower than it was when it was calibrated shows as several times that.

Exit status 1 if throughput, mean TTFT or mean ITL is off by more than 10 percent, or a p99 by more than 25.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from harness.report import Figure, print_json, print_table
from harness.stack import local_stack
from metronome.executor.v1 import executor_pb2
from metronome_cli.stack.services import ExecutorSettings
from metronome_client import AsyncInferenceClient
from metronome_lab.figures import Figures, Targets, figures_of
from metronome_lab.hardware.profile import Hardware, write_hardware
from metronome_lab.live.calibrate import fit_hardware
from metronome_lab.live.replay import replay
from metronome_lab.policies import named_policy
from metronome_lab.records import Records
from metronome_lab.simulation import Fleet, simulate
from metronome_lab.workload.requests import Workload
from metronome_lab.workload.traces import read_workload

TRACE = Path(__file__).parents[1] / "tests" / "data" / "traces" / "azure_2023_conv_code.csv"
_NO_TARGETS = Targets(ttft_us=2**60, itl_us=2**60)


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantity:
    """What is compared, and how far it may be off."""

    name: str
    unit: str
    of: Callable[[Figures], float]
    most_off: float


QUANTITIES = (
    Quantity(name="throughput", unit="tokens/s", of=lambda f: f.output_tokens_per_s, most_off=0.10),
    Quantity(name="TTFT, mean", unit="ms", of=lambda f: f.ttft.mean_ms, most_off=0.10),
    Quantity(name="TTFT, p99", unit="ms", of=lambda f: f.ttft.p99_ms, most_off=0.25),
    Quantity(name="ITL, mean", unit="ms", of=lambda f: f.itl.mean_ms, most_off=0.10),
    Quantity(name="ITL, p99", unit="ms", of=lambda f: f.itl.p99_ms, most_off=0.25),
)


def main() -> int:
    args = _arguments()
    trace = _of_lengths(read_workload(args.trace), args.lengths)
    stops = np.cumsum([args.calibration_requests, args.requests, args.calibration_requests]).tolist()
    before, after = (trace.part(*part).at_rate(2 * args.rate) for part in ((0, stops[0]), (stops[1], stops[2])))
    compared = trace.part(stops[0], stops[1]).at_rate(args.rate)
    settings = ExecutorSettings(
        model=args.model, profile=args.profile, max_num_seqs=args.max_num_seqs, num_blocks=args.num_blocks
    )
    with local_stack(settings) as address:
        hardware, real = asyncio.run(_on_the_executor(address, before, compared, after))
    if args.hardware is not None:
        write_hardware(hardware, args.hardware)
    simulated = simulate(compared, Fleet(hardware=hardware), named_policy(args.profile))
    figures = list(_figures(figures_of(simulated, _NO_TARGETS), figures_of(real, _NO_TARGETS)))
    if args.json:
        print_json(figures)
    else:
        print_table(f"{len(compared)} requests, simulated and on the executor", figures)
    wrong = [
        f"{quantity.name}: {figure.ratio:.3f} of the executor's, more than {quantity.most_off:.0%} off"
        for quantity, figure in zip(QUANTITIES, figures, strict=True)
        if abs(figure.ratio - 1) > quantity.most_off
    ]
    for line in wrong:
        print(line, file=sys.stderr)
    return 1 if wrong else 0


async def _on_the_executor(
    address: str, before: Workload, compared: Workload, after: Workload
) -> tuple[Hardware, Records]:
    calibration: list[executor_pb2.Pass] = []
    async with AsyncInferenceClient(address) as client:
        for workload, seed in ((before, 1), (compared, 2), (after, 3)):
            _say(f"playing {len(workload)} requests")
            played, passes = await replay(client, workload, seed=seed)
            busy_s = sum(one.total_us for one in passes) / 1e6
            _say(f"{len(passes):,} passes took {busy_s:.0f} of {played.end_us / 1e6:.0f} seconds")
            if workload is compared:
                records = played
            else:
                calibration += passes
        hardware = await fit_hardware(client, calibration, name="calibrated", source=f"passes of {before.name}")
    _say(f"{hardware.description} {hardware.cost}")
    return hardware, records


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


def _figures(simulated: Figures, real: Figures) -> list[Figure]:
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
    parser.add_argument("--calibration-requests", type=int, default=50, help="before, and after")
    parser.add_argument("--lengths", type=float, default=0.125, help="times the recorded ones")
    parser.add_argument("--rate", type=float, default=0.04, help="times as fast as recorded")
    parser.add_argument("--model", help="as an executor takes it; its default model unless given")
    parser.add_argument("--max-num-seqs", type=int)
    parser.add_argument("--num-blocks", type=int)
    parser.add_argument("--profile", default="fifo", help="that the scheduler plans by")
    parser.add_argument("--hardware", type=Path, help="write the calibrated profile there")
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
