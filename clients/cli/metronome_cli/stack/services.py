"""The command line of each service, and the address that it is told to listen on."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from pathlib import Path

_HOST = "127.0.0.1"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutorSettings:
    """What a local executor is started with; None leaves a setting to the executor's own default."""

    model: str | None = None
    dtype: str | None = None
    kernels: str | None = None
    quantization: str | None = None
    prefix_cache: str | None = None
    num_blocks: int | None = None
    num_swap_blocks: int | None = None
    max_num_batched_tokens: int | None = None
    max_num_seqs: int | None = None
    speculative_drafts: int | None = None
    profile: str | None = None
    scheduler_ca: Path | None = None
    scheduler_certificate: Path | None = None
    scheduler_key: Path | None = None
    scheduler_token_file: Path | None = None

    def arguments(self) -> list[str]:
        """Write them as flags."""
        settings = {name: getattr(self, name) for name in self.__dataclass_fields__}
        given = {name: value for name, value in settings.items() if value is not None}
        return [word for name, value in given.items() for word in (f"--{name.replace('_', '-')}", str(value))]


def scheduler_command(port: int) -> list[str]:
    """The scheduler: module and arguments."""
    return ["scheduler_service", "--host", _HOST, "--port", str(port), "--log-format", "json"]


def executor_command(port: int, scheduler_address: str, settings: ExecutorSettings) -> list[str]:
    """The executor: module and arguments."""
    place = ["--host", _HOST, "--port", str(port), "--log-format", "json"]
    return ["executor_service", *place, "--scheduler", scheduler_address, *settings.arguments()]


def local_address(port: int) -> str:
    """Where a service listens that was started with this port."""
    return f"{_HOST}:{port}"


def free_port() -> int:
    """A port that nobody listens on now, for a service whose address others have to know before it is there."""
    with socket.socket() as listener:
        listener.bind((_HOST, 0))
        return int(listener.getsockname()[1])
