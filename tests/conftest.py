"""What all tests share: how deep properties look, one tiny model on disk, a scheduler and an executor process."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.certificates import Authority
from support.depth import register_profiles
from support.services import Service, running_executor, running_scheduler
from support.wire import Client, connected

LONG_ONES = {"e2e", "property", "contract"}  # directories; their files take up to minutes, others seconds

register_profiles()
# Of the tests that run side by side each has as many threads as there are cores. Those that wait for one another sleep:
# where they spin, on a core that another test needs, most of what a tiny model takes is waiting. OpenMP reads this when
# torch is imported, here and in the executors that tests start.
os.environ.setdefault("GOMP_SPINCOUNT", "0")
# A shell has what it starts in the background ignore SIGINT, and all that this starts would ignore it, too.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Where workers share the files, those that take long go first: for one at the end all others would wait."""
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: LONG_ONES.isdisjoint(item.nodeid.split("/")))


@pytest.fixture(scope="session")
def tiny_model_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A base model in safetensors: no chat template."""
    from support.model_directory import save_tiny_model  # imports torch, which most tests do without

    return save_tiny_model(tmp_path_factory.mktemp("tiny-model"))


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "authority")


@pytest.fixture
def nothing_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    """A command hears nothing from the environment of whom to ask, whom to trust and who it is."""
    for name in ("EXECUTOR", "SCHEDULER", "TLS_CA", "TLS_CERTIFICATE", "TLS_KEY", "TOKEN_FILE"):
        monkeypatch.delenv(f"METRONOME_{name}", raising=False)


@pytest.fixture(scope="session")
def services_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where processes of the tests write their logs and addresses."""
    return tmp_path_factory.mktemp("services")


@pytest.fixture(scope="session")
def scheduler(services_directory: Path) -> Iterator[Service]:
    with running_scheduler(services_directory) as service:
        yield service


@pytest.fixture(scope="session")
def executor(services_directory: Path, tiny_model_directory: Path, scheduler: Service) -> Iterator[Service]:
    """16 blocks of 16 tokens, eight requests at once. Tests leave it idle and neither drain nor stop it."""
    arguments = ("--num-blocks", "16", "--num-swap-blocks", "8", "--max-num-seqs", "8", "--log-level", "debug")
    with running_executor(
        services_directory, tiny_model_directory, *arguments, scheduler=[scheduler.address]
    ) as service:
        yield service


@pytest.fixture(scope="session")
def client(executor: Service) -> Iterator[Client]:
    with connected(executor.address) as client:
        yield client
