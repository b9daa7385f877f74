"""The directory of the local stack, and the file in it by which `metronome down` knows what `metronome up` started.

$METRONOME_HOME (default: .metronome in the working directory)
├── stack.json        who runs: process, address, log
├── lock              held while `up` or `down` is at work
├── *.log, *.address  the files of the services
└── run-*             those of a `metronome run`; of one that failed they stay until the next run
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from metronome_cli.command_error import CommandError
from metronome_cli.stack.identity import ProcessIdentity
from metronome_cli.stack.start import Service


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedService:
    """A service as the file has it. `address` is empty until it was healthy once."""

    name: str
    process: ProcessIdentity
    address: str
    log: Path


@dataclass(frozen=True, slots=True)
class StackHome:
    """The directory. It need not exist for reading."""

    directory: Path

    @property
    def _file(self) -> Path:
        return self.directory / "stack.json"

    def recorded(self) -> tuple[RecordedService, ...]:
        """Give the services of the last `up`, in the order of their start; they may have died since."""
        try:
            return tuple(_recorded_service(entry) for entry in json.loads(self._file.read_text()))
        except (FileNotFoundError, NotADirectoryError):
            return ()
        except OSError as error:
            raise CommandError(f"cannot read {self._file}: {error.strerror}") from None
        except (ValueError, KeyError, TypeError):
            raise CommandError(f"{self._file} is damaged", "stop the processes by hand and remove it") from None

    def running(self) -> tuple[RecordedService, ...]:
        """Give the recorded services that still run, in the order of their start."""
        return tuple(service for service in self.recorded() if service.process.is_alive())

    def log_of(self, address: str) -> Path | None:
        """Give the log of the recorded service at an address, dead or alive; None where there is none."""
        try:
            return next((service.log for service in self.recorded() if service.address == address), None)
        except CommandError:  # asked for on the way to another error, which is the one to tell
            return None

    def record(self, services: Sequence[Service], addresses: Sequence[str]) -> None:
        """Write who runs, whole or not at all. `addresses` may be shorter: the rest is not known yet."""
        known = [*addresses, *[""] * (len(services) - len(addresses))]
        entries = [
            {"name": service.name, "process": asdict(service.process), "address": address, "log": str(service.log)}
            for service, address in zip(services, known, strict=True)
        ]
        scratch = self._file.with_suffix(".tmp")
        scratch.write_text(json.dumps(entries, indent=2) + "\n")
        scratch.replace(self._file)

    def forget(self) -> None:
        """Remove the record and the addresses in it. The logs stay, to be read."""
        self._file.unlink(missing_ok=True)
        for address_file in self.directory.glob("*.address"):
            address_file.unlink(missing_ok=True)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other commands from starting or stopping at the same time. Raises `CommandError` where one is."""
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            lock = (self.directory / "lock").open("w")
        except OSError as error:
            remedy = "set METRONOME_HOME to a directory that can be written"
            raise CommandError(f"cannot write {self.directory}: {error.strerror}", remedy) from None
        with lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise CommandError(f"another command works on {self.directory}", "wait for it to end") from None
            yield


def _recorded_service(entry: dict[str, Any]) -> RecordedService:
    return RecordedService(
        name=entry["name"],
        process=ProcessIdentity(**entry["process"]),
        address=entry["address"],
        log=Path(entry["log"]),
    )


def stack_home() -> StackHome:
    """Give the directory that the environment names, or the default."""
    return StackHome(Path(os.environ.get("METRONOME_HOME") or ".metronome").absolute())
