"""What is in TypeScript, on Node, against real services: the client's own tests, and the conformance kit's scenarios.

For those the calls are made from TypeScript, and the executor is one in TypeScript.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from metronome_conformance import Result, Verdict, load_scenarios
from metronome_conformance.client_kit import run_client_scenarios
from metronome_conformance.driver import ProcessDriver
from metronome_conformance.executor_kit import ExecutorUnderTest, run_executor_scenarios
from metronome_conformance.planner import ServedPlanner
from metronome_conformance.scheduler_kit import run_scheduler_scenarios
from support.certificates import Authority, tls_flags
from support.services import SCHEDULER, Service, started

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "clients" / "typescript"
BUILD = PACKAGE / "build"
COMPILER = PACKAGE / "node_modules" / ".bin" / "tsc"
# CI sets it, where a test that is left out unseen would be no test.
REQUIRED = "METRONOME_REQUIRE_NODE"


@pytest.fixture(scope="module")
def node() -> str:
    """Node with the package's dependencies, and the package compiled, its tests and examples with it."""
    node = shutil.which("node")
    if node is None or not COMPILER.exists():
        assert REQUIRED not in os.environ, "Node, or what `npm ci` installs, is missing"
        pytest.skip("needs Node and the client's packages: `make test` installs them where Node is")
    for project in ("tsconfig.build.json", "tsconfig.json"):
        compiled = subprocess.run([COMPILER, "--project", project], cwd=PACKAGE, capture_output=True, text=True)
        assert compiled.returncode == 0, compiled.stdout
    return node


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """What the tests' `services.ts` says of it."""
    authority = Authority(tmp_path_factory.mktemp("certificates"))
    authority.sign("elsewhere", "elsewhere.test")
    authority.sign("client")
    return authority


@pytest.fixture(scope="module")
def tls_scheduler(services_directory: Path, authority: Authority) -> Iterator[Service]:
    """Shows a certificate and asks for one, and lets in who shows the tests' own, or brings their token."""
    access_file = services_directory / "access-typescript.toml"
    token = hashlib.sha256(b"right").hexdigest()
    access_file.write_text(f'[tokens]\n"{token}" = "acme"\n[certificates]\n"localhost" = "*"\n')
    flags = [*tls_flags(authority.sign("localhost"), authority.ca), "--access-file", str(access_file)]
    with started(services_directory, [*SCHEDULER, "--port", "0", *flags]) as service:
        yield service


def test_the_client_keeps_what_it_promises(
    node: str,
    scheduler: Service,
    executor: Service,
    tls_scheduler: Service,
    authority: Authority,
    tiny_model_directory: Path,
) -> None:
    environment = {
        **os.environ,
        "METRONOME_TEST_SCHEDULER": scheduler.address,
        "METRONOME_TEST_EXECUTOR": executor.address,
        "METRONOME_TEST_TLS_SCHEDULER": tls_scheduler.address,
        "METRONOME_TEST_CERTIFICATES": str(authority.ca.parent),
        "METRONOME_TEST_MODEL": str(tiny_model_directory),
        "METRONOME_TEST_PYTHON": sys.executable,
    }
    files = sorted((BUILD / "typescript" / "test").glob("*.test.js"))
    assert files
    command = [node, "--enable-source-maps", "--test", "--test-concurrency=1", "--test-force-exit", *map(str, files)]
    ended = subprocess.run(command, cwd=PACKAGE, env=environment, capture_output=True, text=True, timeout=240)
    assert ended.returncode == 0, ended.stdout + ended.stderr


@pytest.fixture
def driver(node: str) -> Iterator[Callable[[str], ProcessDriver]]:
    """Starts a program in TypeScript that calls an address for the kit."""
    with ExitStack() as drivers:

        def start(address: str) -> ProcessDriver:
            driver = ProcessDriver([node, str(BUILD / "typescript" / "conformance" / "driver.js")], address)
            drivers.callback(driver.close)
            return driver

        yield start


def broken(results: Iterator[Result]) -> dict[str, tuple[str, ...]]:
    """Findings by scenario."""
    return {result.scenario.name: result.findings for result in results if result.verdict is not Verdict.HOLDS}


def test_what_a_scheduler_promises_is_seen_from_typescript(
    scheduler: Service, driver: Callable[[str], ProcessDriver]
) -> None:
    assert broken(run_scheduler_scenarios(driver(scheduler.address), load_scenarios("scheduler"))) == {}


def test_the_client_meets_every_fault(node: str) -> None:
    driver = ProcessDriver([node, str(BUILD / "typescript" / "conformance" / "client-driver.js")])
    try:
        assert broken(run_client_scenarios(driver, load_scenarios("client"))) == {}
    finally:
        driver.close()


def test_an_executor_in_typescript_keeps_every_promise(node: str, driver: Callable[[str], ProcessDriver]) -> None:
    served = ServedPlanner("127.0.0.1:0")
    program = BUILD / "examples" / "typescript" / "executor.mjs"
    command = [node, str(program), "--scheduler", served.address, "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        try:
            assert process.stdout is not None
            address = process.stdout.readline().split()[-1]
            executor = ExecutorUnderTest(address)
            executor.wait_until_ready(served.planner)
            scenarios = load_scenarios("executor")
            assert broken(run_executor_scenarios(driver(address), executor, served.planner, scenarios)) == {}
            executor.close()
        finally:
            process.kill()
            served.close()
