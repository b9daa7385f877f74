"""The simulator held against reality: one trace on a real executor and in the policy lab, with the calibrated profile.

A scheduler and an executor with default settings are started. A part of the trace calibrates a hardware profile: the
requests before those that are compared, so that nothing is fitted to what it is judged by. Then --requests of the trace
are played on the executor as a user's traffic, and in virtual time. Latencies of the executor are those that a client
sees, the network included.

Exit status 1 if throughput, mean TTFT or mean ITL is off by more than 10 percent, or a p99 by more than 25.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from harness.report import Figure, print_json, print_table
from harness.stack import local_stack
from metronome_cli.stack.services import ExecutorSettings
from metronome_client import AsyncInferenceClient
from metronome_lab.figures import Figures, Targets, figures_of
from metronome_lab.hardware.profile import Hardware, write_hardware
from metronome_lab.live.calibrate import calibrate
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
    trace = read_workload(args.trace)
    calibration = trace.part(0, args.calibration_requests).at_rate(args.rate)
    compared = trace.part(args.calibration_requests, args.calibration_requests + args.requests).at_rate(args.rate)
    settings = ExecutorSettings(
        model=args.model, profile=args.profile, max_num_seqs=args.max_num_seqs, num_blocks=args.num_blocks
    )
    with local_stack(settings) as address:
        hardware, real = asyncio.run(_on_the_executor(address, calibration, compared))
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


async def _on_the_executor(address: str, calibration: Workload, compared: Workload) -> tuple[Hardware, Records]:
    async with AsyncInferenceClient(address) as client:
        _say(f"calibrating with {len(calibration)} requests")
        hardware = await calibrate(client, calibration, name="calibrated", seed=1)
        _say(f"{hardware.description} {hardware.latency}")
        _say(f"playing {len(compared)} requests")
        records, _ = await replay(client, compared, seed=2)
    return hardware, records


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
    parser.add_argument("--calibration-requests", type=int, default=100)
    parser.add_argument("--rate", type=float, default=0.05, help="times as fast as recorded")
    parser.add_argument("--model", help="as an executor takes it; its default model unless given")
    parser.add_argument("--max-num-seqs", type=int)
    parser.add_argument("--num-blocks", type=int)
    parser.add_argument("--profile", default="fifo", help="that the scheduler plans by")
    parser.add_argument("--hardware", type=Path, help="write the calibrated profile there")
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
