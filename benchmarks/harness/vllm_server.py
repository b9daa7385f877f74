"""The HTTP server of an installed vLLM, as a peer: started with the Python of its environment, and nothing of ours."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from harness.server_process import free_port
from harness.timings import Answer
from harness.workload import Job

CLIENT = Path(__file__).with_name("vllm_client.py")
START_SECONDS = 900.0  # it compiles the model when it first meets it
STOP_SECONDS = 60.0
KV_CACHE_GIB = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmServer:
    """A server that answers. `start_s`: what it took to get there; None: it ran before."""

    python: Path
    url: str
    pids: tuple[int, ...]
    start_s: float | None

    name = "vLLM"

    def run(self, jobs: Sequence[Job], arrivals_s: Sequence[float]) -> list[Answer]:
        """Stream the jobs from a process of its own. Raises CalledProcessError where an answer is not whole."""
        rows = [
            {"prompt_token_ids": job.prompt_token_ids, "num_output_tokens": job.num_output_tokens, "at_s": at_s}
            for job, at_s in zip(jobs, arrivals_s, strict=True)
        ]
        # Isolated: neither this directory nor PYTHONPATH is on the way to its packages.
        command = [str(self.python), "-I", str(CLIENT)]
        task = json.dumps({"url": self.url, "jobs": rows})
        output = subprocess.run(command, input=task, stdout=subprocess.PIPE, check=True, text=True).stdout
        return [Answer(sent_s=sent_s, token_times_s=times_s) for sent_s, *times_s in json.loads(output)]


@contextmanager
def vllm_server(python: Path, model: Path, log: Path, *, max_num_seqs: int, dtype: str) -> Iterator[VllmServer]:
    """Start a server with what serves such a model best on a CPU. `model`: a directory. `log`: a file that it fills.

    Raises RuntimeError where it does not come to answer.
    """
    port = free_port()
    command = [str(python), "-m", "vllm.entrypoints.openai.api_server", *_arguments(model, port, max_num_seqs, dtype)]
    started = time.monotonic()
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, env=_environment(python), stdout=output, stderr=output, cwd=log.parent, start_new_session=True
        )
    try:
        url = f"http://127.0.0.1:{port}"
        _wait_until_healthy(process, url, log)
        yield VllmServer(python=python, url=url, pids=(process.pid,), start_s=time.monotonic() - started)
    finally:
        _stop(process)


def running_vllm_server(python: Path, url: str) -> VllmServer:
    """A server that runs already on this machine. Raises RuntimeError where none listens there."""
    port = int(url.rpartition(":")[2])
    listeners = (
        connection.pid
        for connection in psutil.net_connections("tcp")
        if connection.status == psutil.CONN_LISTEN and connection.laddr.port == port
    )
    pid = next(listeners, None)
    if pid is None:
        raise RuntimeError(f"no process of this machine listens at {url}")
    return VllmServer(python=python, url=url, pids=(pid,), start_s=None)


def _arguments(model: Path, port: int, max_num_seqs: int, dtype: str) -> list[str]:
    settings = {
        "model": model,
        "served-model-name": "model",
        "host": "127.0.0.1",
        "port": port,
        "dtype": dtype,
        "max-model-len": 2048,
        "max-num-seqs": max_num_seqs,
        "max-num-batched-tokens": 2048,
    }
    pairs = [word for name, value in settings.items() for word in (f"--{name}", str(value))]
    # Without the prefix cache, which would know the prompts of the first repetition.
    return [*pairs, "--no-enable-prefix-caching", "--disable-uvicorn-access-log"]


def _environment(python: Path) -> dict[str, str]:
    """What its guide for CPUs advises: both memory and threads by libraries other than those of the system."""
    cores = sorted(os.sched_getaffinity(0))
    preload = [_tcmalloc(), python.parent.parent / "lib" / "libiomp5.so"]
    ours = ("PYTHONPATH", "LD_PRELOAD")
    return {
        **{name: value for name, value in os.environ.items() if name not in ours},
        "HF_HUB_OFFLINE": "1",
        "LD_PRELOAD": ":".join(str(library) for library in preload if library is not None and library.exists()),
        "VLLM_CPU_KVCACHE_SPACE": str(KV_CACHE_GIB),
        "VLLM_CPU_NUM_OF_RESERVED_CPU": "0",
        "VLLM_CPU_OMP_THREADS_BIND": ",".join(map(str, cores)),
        "VLLM_NO_USAGE_STATS": "1",
    }


def _tcmalloc() -> Path | None:
    known = subprocess.run(["ldconfig", "-p"], stdout=subprocess.PIPE, check=True, text=True).stdout
    found = re.search(r"=> (.*/libtcmalloc_minimal\.so\.\d+)$", known, re.MULTILINE)
    return Path(found[1]) if found else None


def _wait_until_healthy(process: subprocess.Popen[bytes], url: str, log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise RuntimeError(
                f"vLLM ended with status {process.returncode}:\n{log.read_text(errors='replace')[-2000:]}"
            )
        with suppress(urllib.error.URLError, OSError), urllib.request.urlopen(f"{url}/health", timeout=5) as answer:
            if answer.status == 200:
                return
        time.sleep(0.1)
    raise RuntimeError(f"vLLM does not answer after {START_SECONDS:.0f} s; its log is {log}")


def _stop(process: subprocess.Popen[bytes]) -> None:
    """End the server and its workers, which are in a session of their own."""
    process.terminate()
    try:
        process.wait(timeout=STOP_SECONDS)
    except subprocess.TimeoutExpired:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
