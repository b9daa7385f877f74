"""Which process is meant: its number and when it started.

A number alone is not enough, because the system gives it to another process after the first one has died.
"""

from __future__ import annotations

import os
import signal
import subprocess
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessIdentity:
    """One process. `started` is when, in a form that only equality has a meaning for."""

    pid: int
    started: str

    def is_alive(self) -> bool:
        """Whether this very process still runs; one that has ended and is not reaped yet does not."""
        return _started(self.pid) == self.started

    def send_signal(self, number: signal.Signals) -> None:
        """Signal the process; nothing happens where it has ended."""
        if self.is_alive():
            with suppress(ProcessLookupError):  # it ended since
                os.kill(self.pid, number)

    def reap(self) -> None:
        """Let the system forget a child of this process that has ended; nothing happens for any other process."""
        with suppress(ChildProcessError):
            os.waitpid(self.pid, os.WNOHANG)


def identify(pid: int) -> ProcessIdentity | None:
    """Identify a process by its present number; None where there is none."""
    started = _started(pid)
    return None if started is None else ProcessIdentity(pid=pid, started=started)


def _started(pid: int) -> str | None:
    if Path("/proc/self/stat").exists():
        return _started_by_proc(pid)
    listing = subprocess.run(["ps", "-p", str(pid), "-o", "stat=,lstart="], capture_output=True, text=True, check=False)
    state, _, started = listing.stdout.strip().partition(" ")
    return None if not state or state.startswith("Z") else started.strip()


def _started_by_proc(pid: int) -> str | None:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    # The second field is the program's name in parentheses and may hold anything, parentheses and spaces included.
    fields = stat.rpartition(")")[2].split()
    state, start_ticks = fields[0], fields[19]  # fields 3 and 22 of proc(5)
    return None if state in "ZX" else start_ticks
