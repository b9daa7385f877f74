"""The processes of the other ranks: how they fail, how that is told, and that none outlives rank 0."""

from __future__ import annotations

import pickle
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from executor_service.engine.device import DeviceLostError
from executor_service.kernels.choice import KernelChoice
from executor_service.model.quantization import Quantization
from executor_service.parallel.messages import Loaded, WorkerSettings
from executor_service.parallel.workers import Workers, WorkerStartError
from service_shell.logs import LogFormat
from support.services import is_alive, wait_until


def settings_of(rank: int, model: str = "/no/such/model") -> WorkerSettings:
    return WorkerSettings(
        rank=rank,
        size=3,
        model=model,
        dtype="float32",
        kernels=KernelChoice.TORCH,
        quantization=Quantization.NONE,
        device="cpu",
        block_size=16,
        threads=1,
        log_format=LogFormat.JSON,
        log_level="error",
    )


@pytest.fixture
def workers() -> Iterator[Workers]:
    workers = Workers()
    yield workers
    workers.close()
    assert not any(map(psutil.pid_exists, workers.pids))


def test_a_rank_that_cannot_load_the_model_says_which_it_is_and_why(
    workers: Workers, capfd: pytest.CaptureFixture[str]
) -> None:
    workers.start([settings_of(1)])
    with pytest.raises(WorkerStartError, match="rank 1 did not start: no model '/no/such/model'"):
        workers.wait_for(Loaded)
    assert "rank_failed" in capfd.readouterr().err


def test_a_rank_that_is_killed_while_it_starts_is_told_with_the_signal(workers: Workers) -> None:
    workers.start([settings_of(1), settings_of(2)])
    psutil.Process(workers.pids[0]).kill()
    with pytest.raises(WorkerStartError, match="rank 1 did not start: its process was ended by SIGKILL"):
        workers.wait_for(Loaded)


def test_a_rank_that_dies_is_heard_of_and_takes_no_messages(workers: Workers) -> None:
    heard = threading.Event()
    workers.start([settings_of(1), settings_of(2)])
    psutil.Process(workers.pids[1]).send_signal(signal.SIGSTOP)  # it stays; the other one ends by itself
    workers.watch(heard.set)
    assert heard.wait(60)
    psutil.Process(workers.pids[1]).kill()

    def is_refused() -> bool:
        try:
            workers.send(Loaded())
        except DeviceLostError:
            return True
        return False

    wait_until(is_refused)


def test_an_end_that_was_asked_for_is_no_loss(workers: Workers) -> None:
    heard = threading.Event()
    workers.start([settings_of(1)])
    workers.watch(heard.set)
    workers.close()
    workers.close()
    assert not heard.wait(0.2)


def test_signals_that_reach_all_processes_are_rank_0s_to_obey(tiny_model_directory: Path) -> None:
    """And when that one is killed the others go, whatever they do."""
    settings = pickle.dumps(settings_of(1, str(tiny_model_directory)))
    program = (
        "import pickle, time\n"
        "from executor_service.parallel.workers import Workers\n"
        "workers = Workers()\n"
        f"workers.start([pickle.loads({settings!r})])\n"
        "print(*workers.pids, flush=True)\n"
        "time.sleep(600)"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as lead:
        try:
            assert lead.stdout is not None
            worker = psutil.Process(int(lead.stdout.readline()))
            wait_until(lambda: ignores_sigterm(worker))
            worker.terminate()
            worker.send_signal(signal.SIGINT)
            assert is_alive(worker)
        finally:
            lead.kill()
    wait_until(lambda: not is_alive(worker))


def ignores_sigterm(process: psutil.Process) -> bool:
    status = dict(
        line.split(":\t", 1) for line in Path(f"/proc/{process.pid}/status").read_text().splitlines() if ":\t" in line
    )
    return bool(int(status["SigIgn"], 16) >> (signal.SIGTERM - 1) & 1)
