"""Who may import what: the rings of docs/architecture.md, read from the code's own import statements."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
WIRE = {"grpc", "google", "metronome", "grpc_health", "grpc_reflection", "grpc_status"}
TENSORS = {"torch", "transformers", "safetensors", "gguf", "llguidance"}


def imports(path: Path) -> Iterator[str]:
    """Full names of the modules that a file imports at run time or for its types."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} imports relatively"
            assert node.module is not None
            yield node.module


def files(*places: str) -> list[Path]:
    found = [
        path
        for place in places
        for path in sorted((ROOT / place).rglob("*.py") if (ROOT / place).is_dir() else [ROOT / place])
    ]
    assert found, places
    return found


def forbidden(paths: list[Path], packages: set[str]) -> list[str]:
    return [
        f"{path.relative_to(ROOT)} imports {name}"
        for path in paths
        for name in imports(path)
        if name.split(".")[0] in packages
    ]


@pytest.mark.parametrize(
    ("places", "packages"),
    [
        (["scheduler_service"], {"executor_service", "metronome_client", "metronome_cli"} | TENSORS),
        (["executor_service"], {"scheduler_service", "metronome_client", "metronome_cli"}),
        (
            ["service_shell"],
            {"scheduler_service", "executor_service", "metronome", "metronome_client", "metronome_cli", "numpy"}
            | TENSORS,
        ),
        (["clients"], TENSORS | {"service_shell"}),
        (["clients/python", "clients/conformance", "clients/examples"], {"scheduler_service", "executor_service"}),
        (
            ["scheduler_service/core"],
            WIRE | TENSORS | {"service_shell", "structlog", "asyncio", "logging", "time", "random", "os"},
        ),
        (["executor_service/engine"], WIRE | TENSORS | {"service_shell"}),
        (["executor_service/kv/block_pool.py", "executor_service/kv/swap_space.py"], WIRE | TENSORS),
        (["executor_service/text"], WIRE | TENSORS),
        (
            [
                "executor_service/model",
                "executor_service/sampling",
                "executor_service/kv/cache.py",
                "executor_service/parallel",
            ],
            WIRE,
        ),
    ],
)
def test_a_ring_imports_nothing_from_outside_of_it(places: list[str], packages: set[str]) -> None:
    assert forbidden(files(*places), packages) == []


def test_the_schedulers_core_imports_numpy_numba_and_the_standard_library_alone() -> None:
    allowed = set(sys.stdlib_module_names) | {"numpy", "numba", "llvmlite", "scheduler_service"}
    others = {name for path in files("scheduler_service/core") for name in imports(path)}
    assert {name for name in others if name.split(".")[0] not in allowed} == set()


def test_the_core_knows_nothing_of_its_shell() -> None:
    inner = {name for path in files("scheduler_service/core") for name in imports(path) if "scheduler_service" in name}
    assert all(name.startswith("scheduler_service.core") for name in inner)


@pytest.mark.parametrize("service", ["scheduler_service", "executor_service"])
def test_only_the_shell_knows_protobuf_messages(service: str) -> None:
    """`convert` translates; servicers, errors and clients of the wire name messages, nothing else does."""
    shell = {
        "servicer.py",
        "control_servicer.py",
        "gate.py",
        "server.py",
        "errors.py",
        "metrics.py",
        "scheduler_client.py",
        "executor.py",
        "profiles.py",
        "observers.py",
        "recorder.py",
    }
    knowing = {
        str(path.relative_to(ROOT / service))
        for path in files(service)
        if any(name.split(".")[0] == "metronome" for name in imports(path))
    }
    assert {name for name in knowing if not name.startswith("convert") and name not in shell} == set()


def test_the_python_client_needs_grpcio_and_protobuf_alone() -> None:
    allowed = set(sys.stdlib_module_names) | {"grpc", "metronome", "metronome_client"}
    tracing = ROOT / "clients/python/metronome_client/tracing.py"  # and OpenTelemetry, where it is installed
    paths = [path for path in files("clients/python/metronome_client") if path != tracing]
    others = {name for path in paths for name in imports(path)}
    assert set(imports(tracing)) - {"metronome_client.errors"} <= {
        "__future__",
        "collections.abc",
        "contextlib",
        "opentelemetry",
    }
    of_protobuf = {name for name in others if name.startswith("google.protobuf")}
    assert {name for name in others - of_protobuf if name.split(".")[0] not in allowed} == set()


def test_the_conformance_kit_knows_the_contract_alone() -> None:
    """It judges services, so it has nothing of them, nor of the client that it may be asked to judge."""
    packages = {"scheduler_service", "executor_service", "metronome_client", "metronome_cli", "numpy"} | TENSORS
    assert forbidden(files("clients/conformance"), packages) == []


def test_of_the_services_the_lab_uses_the_planning_core_and_the_books_and_the_command_line_no_more() -> None:
    """docs/adr/0030. A command of the lab names types of the core where it makes runs."""
    parts = (
        "scheduler_service.core.",
        "scheduler_service.convert",
        "scheduler_service.profiles",
        "executor_service.engine.",
        "executor_service.convert.",
        "executor_service.kv.",
    )
    of_services = {
        name
        for path in files("clients/lab", "clients/cli")
        for name in imports(path)
        if name.split(".")[0] in ("scheduler_service", "executor_service")
    }
    assert {name for name in of_services if not name.startswith(parts)} == set()


def test_the_lab_runs_without_torch() -> None:
    """Its imports bring none by a detour either."""
    script = "import sys, metronome_lab.runs; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", script], check=True)
