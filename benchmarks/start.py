"""From the start of an executor's process to SERVING, and the memory that it and a scheduler beside it take.

The most memory has the pages of files that were read meanwhile in it. Of pages that processes share, libraries above
all, each has its part in what is called proportional. The KV cache takes its memory as blocks are first used, so it is
not in there.
"""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
import time
from dataclasses import dataclass

from harness.process_tree import peak_resident_mib, proportional_mib, resident_mib
from harness.report import Figure, print_json, print_table
from harness.server_process import SCHEDULER, server_process


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """One start: seconds, and MiB once the executor was SERVING."""

    seconds: float
    resident: float
    peak: float
    scheduler_resident: float
    both_proportional: float
    both_peaks: float


def main() -> int:
    args = _arguments()
    with server_process(*SCHEDULER) as scheduler:
        starts = [_start(args.model, scheduler.address, scheduler.pid, args.executor_args) for _ in range(args.reps)]
    sizes = {"model": args.model, "reps": args.reps}

    def figure(name: str, unit: str, attribute: str) -> Figure:
        return Figure(name=name, unit=unit, samples=[getattr(start, attribute) for start in starts], sizes=sizes)

    figures = [
        figure("start to SERVING", "s", "seconds"),
        figure("memory when SERVING", "MiB", "resident"),
        figure("most memory until then", "MiB", "peak"),
        figure("memory of a scheduler", "MiB", "scheduler_resident"),
        figure("memory of both, proportional", "MiB", "both_proportional"),
        figure("most memory of both, added up", "MiB", "both_peaks"),
    ]
    if args.json:
        print_json(figures)
    else:
        print_table(f"{args.model}, {args.reps} starts", figures)
    return 0


def _start(model: str, scheduler: str, scheduler_pid: int, arguments: list[str]) -> Start:
    command = [sys.executable, "-m", "executor_service", "--model", model, "--port", "0", "--log-format", "json"]
    command += ["--scheduler", scheduler, *arguments]
    started = time.perf_counter()
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if line.startswith("{") and json.loads(line).get("event") == "executor_serving":
                break
        else:
            raise SystemExit(f"the executor ended with {process.wait()}")
        both = [process.pid, scheduler_pid]
        start = Start(
            seconds=time.perf_counter() - started,
            resident=resident_mib([process.pid]),
            peak=peak_resident_mib([process.pid]),
            scheduler_resident=resident_mib([scheduler_pid]),
            both_proportional=proportional_mib(both),
            both_peaks=peak_resident_mib(both),
        )
        process.send_signal(signal.SIGTERM)
        process.stderr.read()
    return start


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="gemma3-270m")
    parser.add_argument("--reps", type=int, default=3)
    parser.add_argument("--json", action="store_true", help="one JSON line a figure")
    parser.add_argument("executor_args", nargs="*", help="after --: further options of the executor")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
