"""From the start of an executor's process to SERVING, and the memory that it takes.

Memory beyond the weights is what the process had at its most, file pages of the weights included, less the weights in
the type that they are computed in. The KV cache takes its memory as blocks are first used, so it is not in there.
"""

from __future__ import annotations

import argparse
import json
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

from harness.report import Figure, print_json, print_table

NO_SCHEDULER = "127.0.0.1:1"
MEBI = 2**20


def main() -> int:
    args = _arguments()
    runs = [_start(args.model, args.executor_args) for _ in range(args.reps)]
    sizes = {"model": args.model, "reps": args.reps}
    figures = [
        Figure(name="start to SERVING", unit="s", samples=[seconds for seconds, _ in runs], sizes=sizes),
        Figure(name="memory when SERVING", unit="MiB", samples=[m["VmRSS"] / MEBI for _, m in runs], sizes=sizes),
        Figure(name="most memory until then", unit="MiB", samples=[m["VmHWM"] / MEBI for _, m in runs], sizes=sizes),
    ]
    if args.json:
        print_json(figures)
    else:
        print_table(f"{args.model}, {args.reps} starts", figures)
    return 0


def _start(model: str, arguments: list[str]) -> tuple[float, dict[str, int]]:
    """Seconds, and what the system says of the process's memory, in bytes."""
    command = [sys.executable, "-m", "executor_service", "--model", model, "--port", "0", "--log-format", "json"]
    command += ["--scheduler", NO_SCHEDULER, *arguments]
    started = time.perf_counter()
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if line.startswith("{") and json.loads(line).get("event") == "executor_serving":
                break
        else:
            raise SystemExit(f"the executor ended with {process.wait()}")
        seconds = time.perf_counter() - started
        status = Path(f"/proc/{process.pid}/status").read_text()
        process.send_signal(signal.SIGTERM)
        process.stderr.read()
    return seconds, {name: int(kib) * 1024 for name, kib in re.findall(r"(Vm\w+):\s+(\d+) kB", status)}


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="gemma3-270m")
    parser.add_argument("--reps", type=int, default=3)
    parser.add_argument("--json", action="store_true", help="one JSON line a figure")
    parser.add_argument("executor_args", nargs="*", help="after --: further options of the executor")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
