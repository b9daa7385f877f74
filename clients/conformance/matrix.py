"""Prints the matrix of `make conformance`: every scenario of schedulers, executors and clients, by language.

Starts a scheduler and the example executor on loopback, and runs the kit against both: with its own calls, in
TypeScript where Node is and `npm ci` has been run in clients/typescript, and through each driver that is named
(`--driver NAME=COMMAND`). Then it lets the clients of both languages, and those that are named
(`--client NAME=COMMAND`), meet servers that go wrong. Exit status 1 where anything does not hold.
"""

from __future__ import annotations

import argparse
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from rich.console import Console
from rich.table import Table

from metronome_conformance import Result, Verdict, load_scenarios
from metronome_conformance.client_kit import run_client_scenarios
from metronome_conformance.driver import ProcessDriver
from metronome_conformance.executor_kit import ExecutorUnderTest, run_executor_scenarios
from metronome_conformance.planner import ServedPlanner
from metronome_conformance.scheduler_kit import run_scheduler_scenarios
from metronome_conformance.wire import Driver, PythonDriver

ROOT = Path(__file__).parents[2]
EXECUTOR = ROOT / "clients/examples/python/executor.py"
TYPESCRIPT = ROOT / "clients/typescript"
PYTHON_CLIENT = ROOT / "clients/python/conformance"
START_S = 30.0

MakeDriver = Callable[[str], Driver]


def main() -> int:
    """Run all, print the matrix, and give the exit status."""
    options, build = _options(), _build()
    drivers: dict[str, MakeDriver] = {"python": PythonDriver}
    if build is not None:
        command = ["node", str(build / "driver.js")]
        drivers["typescript"] = lambda address: ProcessDriver(command, address)
    for name, command in options.driver:
        drivers[name] = lambda address, command=command: ProcessDriver(command, address)
    found = {
        kind: {name: _results(kind, make, slow=options.slow) for name, make in drivers.items()}
        for kind in ("scheduler", "executor")
    }
    clients = {"python": [sys.executable, str(PYTHON_CLIENT / "sync_driver.py")]}
    clients["python asyncio"] = [sys.executable, str(PYTHON_CLIENT / "async_driver.py")]
    if build is not None:
        clients["typescript"] = ["node", str(build / "client-driver.js")]
    clients |= dict(options.client)
    of_clients = {name: _results_of_client(command, slow=options.slow) for name, command in clients.items()}
    _print("who makes the calls", found)
    _print("whose client meets faults", {"client": of_clients})
    broken = [
        f"{result.scenario.name} ({name}): {'; '.join(result.findings)}"
        for columns in (*found.values(), of_clients)
        for name, results in columns.items()
        for result in results
        if result.verdict is not Verdict.HOLDS
    ]
    for line in broken:
        print(line, file=sys.stderr)
    return bool(broken)


def _print(title: str, found: Mapping[str, Mapping[str, Sequence[Result]]]) -> None:
    table = Table(title=f"conformance: scenarios by language, {title}", title_justify="left")
    for heading in ("", "scenario", *next(iter(found.values()))):
        table.add_column(heading)
    for kind, columns in found.items():
        for row in zip(*columns.values(), strict=True):
            table.add_row(kind, row[0].scenario.name, *(result.verdict.value for result in row))
    Console().print(table)


def _build() -> Path | None:
    """TypeScript's drivers, compiled anew, where what it takes is there."""
    node, compiler = shutil.which("node"), TYPESCRIPT / "node_modules/.bin/tsc"
    if node is None or not compiler.exists():
        print("TypeScript is left out: it needs Node, and `npm ci` in clients/typescript", file=sys.stderr)
        return None
    for project in ("tsconfig.build.json", "tsconfig.json"):
        subprocess.run([compiler, "--project", project], cwd=TYPESCRIPT, check=True)
    return TYPESCRIPT / "build/typescript/conformance"


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, text in (("driver", "another language's calls"), ("client", "another language's client")):
        parser.add_argument(f"--{name}", action="append", default=[], metavar="NAME=COMMAND", type=_named, help=text)
    parser.add_argument("--slow", action="store_true", help="what takes half a minute and more, too")
    return parser.parse_args()


def _named(given: str) -> tuple[str, list[str]]:
    name, _, command = given.partition("=")
    return name, shlex.split(command)


def _results_of_client(command: Sequence[str], *, slow: bool) -> Sequence[Result]:
    driver = ProcessDriver(command)
    try:
        return list(run_client_scenarios(driver, load_scenarios("client", slow=slow)))
    finally:
        driver.close()


def _results(kind: str, make: MakeDriver, *, slow: bool) -> Sequence[Result]:
    """Against services that were started for this alone, since the last scenario of an executor drains it."""
    with ExitStack() as stack:
        if kind == "scheduler":
            driver = make(stack.enter_context(_scheduler()))
            stack.callback(driver.close)
            return list(run_scheduler_scenarios(driver, load_scenarios(kind, slow=slow)))
        served = ServedPlanner("127.0.0.1:0")
        stack.callback(served.close)
        address = stack.enter_context(_executor(served.address))
        under_test, driver = ExecutorUnderTest(address), make(address)
        stack.callback(under_test.close)
        stack.callback(driver.close)
        under_test.wait_until_ready(served.planner, START_S)
        return list(run_executor_scenarios(driver, under_test, served.planner, load_scenarios(kind, slow=slow)))


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
