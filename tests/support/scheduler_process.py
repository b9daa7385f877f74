"""The scheduler service as a process of its own, on a free port of loopback."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from metronome.scheduler.v1 import scheduler_pb2, state_pb2

COMMAND = (sys.executable, "-m", "scheduler_service")
# The first start after a change of the planning core compiles it.
START_SECONDS = 120


@contextmanager
def scheduler_process(*arguments: str) -> Iterator[str]:
    """Start the service; yields its address once it listens, and ends it afterwards."""
    with tempfile.TemporaryDirectory() as directory:
        address_file = Path(directory) / "address"
        command = [*COMMAND, "--port", "0", "--address-file", str(address_file), *arguments]
        with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
            try:
                yield wait_for_address(process, address_file)
            finally:
                process.terminate()
                process.wait(timeout=START_SECONDS)


def wait_for_address(process: subprocess.Popen[bytes], address_file: Path) -> str:
    """The address that the service wrote. Fails if it ends first, or takes too long."""
    deadline = time.monotonic() + START_SECONDS
    while not address_file.exists():
        assert process.poll() is None, f"the scheduler ended with status {process.returncode}"
        assert time.monotonic() < deadline, "the scheduler does not start"
        time.sleep(0.01)
    return address_file.read_text(encoding="utf-8").strip()


def plan_request() -> scheduler_pb2.PlanRequest:
    """A small valid request: two waiting requests of 16 prompt tokens, on an executor with eight blocks."""
    executor = state_pb2.ExecutorState(
        executor_id="executor-0",
        iteration=1,
        limits=state_pb2.ExecutorLimits(
            max_num_batched_tokens=64, max_num_seqs=4, block_size=16, num_blocks=8, max_model_len=128
        ),
        num_free_blocks=8,
    )
    executor.requests.id.extend([1, 2])
    executor.requests.status.extend([state_pb2.REQUEST_STATUS_WAITING] * 2)
    executor.requests.arrival_time_us.extend([10, 20])
    executor.requests.num_prompt_tokens.extend([16, 16])
    return scheduler_pb2.PlanRequest(state=state_pb2.ClusterState(now_us=1, executors=[executor]))
