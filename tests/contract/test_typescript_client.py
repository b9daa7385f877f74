"""The TypeScript client's own tests, on Node, against the scheduler and the executor of the other tests here."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.certificates import Authority, tls_flags
from support.services import SCHEDULER, Service, started

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "clients" / "typescript"
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
    """Shows a certificate, and asks for one."""
    flags = tls_flags(authority.sign("localhost"), authority.ca)
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
    files = sorted((PACKAGE / "build" / "typescript" / "test").glob("*.test.js"))
    assert files
    command = [node, "--enable-source-maps", "--test", "--test-concurrency=1", "--test-force-exit", *map(str, files)]
    ended = subprocess.run(command, cwd=PACKAGE, env=environment, capture_output=True, text=True, timeout=240)
    assert ended.returncode == 0, ended.stdout + ended.stderr
