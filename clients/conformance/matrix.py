"""Prints the matrix of `make conformance`: every scenario of schedulers and executors, by who makes the calls.

Starts a scheduler and the example executor on loopback, and runs the kit against both: with its own calls, in
TypeScript where Node is and `npm ci` has been run in clients/typescript, and through each driver that is named
(`--driver NAME=COMMAND`). Exit status 1 where anything does not hold.
"""

from __future__ import annotations

import argparse
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from rich.console import Console
from rich.table import Table

from metronome_conformance import Result, Verdict, load_scenarios
from metronome_conformance.driver import ProcessDriver
from metronome_conformance.executor_kit import ExecutorUnderTest, run_executor_scenarios
from metronome_conformance.planner import ServedPlanner
from metronome_conformance.scheduler_kit import run_scheduler_scenarios
from metronome_conformance.wire import Driver, PythonDriver

ROOT = Path(__file__).parents[2]
EXECUTOR = ROOT / "clients/examples/python/executor.py"
TYPESCRIPT = ROOT / "clients/typescript"
START_S = 30.0

MakeDriver = Callable[[str], Driver]


def main() -> int:
    """Run all, print the matrix, and give the exit status."""
    drivers: dict[str, MakeDriver] = {"python": PythonDriver, **_typescript(), **_named()}
    found = {kind: {name: _results(kind, make) for name, make in drivers.items()} for kind in ("scheduler", "executor")}
    table = Table(title="conformance: scenarios by language", title_justify="left")
    for heading in ("", "scenario", *drivers):
        table.add_column(heading)
    for kind, columns in found.items():
        for row in zip(*columns.values(), strict=True):
            table.add_row(kind, row[0].scenario.name, *(result.verdict.value for result in row))
    Console().print(table)
    broken = [
        f"{result.scenario.name} ({name}): {'; '.join(result.findings)}"
        for columns in found.values()
        for name, results in columns.items()
        for result in results
        if result.verdict is not Verdict.HOLDS
    ]
    for line in broken:
        print(line, file=sys.stderr)
    return bool(broken)


def _typescript() -> dict[str, MakeDriver]:
    """Compiled anew, where what it takes is there."""
    node, compiler = shutil.which("node"), TYPESCRIPT / "node_modules/.bin/tsc"
    if node is None or not compiler.exists():
        print("TypeScript is left out: it needs Node, and `npm ci` in clients/typescript", file=sys.stderr)
        return {}
    for project in ("tsconfig.build.json", "tsconfig.json"):
        subprocess.run([compiler, "--project", project], cwd=TYPESCRIPT, check=True)
    command = [node, str(TYPESCRIPT / "build/typescript/conformance/driver.js")]
    return {"typescript": lambda address: ProcessDriver(command, address)}


def _named() -> dict[str, MakeDriver]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--driver", action="append", default=[], metavar="NAME=COMMAND", help="another language")
    pairs = [given.partition("=") for given in parser.parse_args().driver]
    return {name: lambda address, c=command: ProcessDriver(shlex.split(c), address) for name, _, command in pairs}


def _results(kind: str, make: MakeDriver) -> Sequence[Result]:
    """Against services that were started for this alone, since the last scenario of an executor drains it."""
    with ExitStack() as stack:
        if kind == "scheduler":
            driver = make(stack.enter_context(_scheduler()))
            stack.callback(driver.close)
            return list(run_scheduler_scenarios(driver, load_scenarios(kind)))
        served = ServedPlanner("127.0.0.1:0")
        stack.callback(served.close)
        address = stack.enter_context(_executor(served.address))
        under_test, driver = ExecutorUnderTest(address), make(address)
        stack.callback(under_test.close)
        stack.callback(driver.close)
        under_test.wait_until_ready(served.planner, START_S)
        return list(run_executor_scenarios(driver, under_test, served.planner, load_scenarios(kind)))


@contextmanager
def _scheduler() -> Iterator[str]:
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / "address"
        command = [sys.executable, "-m", "scheduler_service", "--port", "0", "--address-file", str(file)]
        with _process([*command, "--log-level", "warning"]) as process:
            deadline = time.monotonic() + START_S
            while not file.exists():
                if process.poll() is not None or time.monotonic() > deadline:
                    raise SystemExit("the scheduler does not start")
                time.sleep(0.01)
            yield file.read_text(encoding="utf-8").strip()


@contextmanager
def _executor(scheduler: str) -> Iterator[str]:
    with _process([sys.executable, str(EXECUTOR), "--port", "0", "--scheduler", scheduler]) as process:
        assert process.stdout is not None
        yield process.stdout.readline().split()[-1]


@contextmanager
def _process(command: Sequence[str]) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


if __name__ == "__main__":
    sys.exit(main())
