"""The files of one run: a directory in the stack's home, which lives no longer than it is of use.

A run that went well removes its own. One that failed leaves it, since the logs in it say more, and one that was killed
cannot remove anything: the next run does. It knows that the other one is over by its lock, which the system lets go of
whatever way a process ends.
"""

from __future__ import annotations

import fcntl
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import mkdtemp

from metronome_cli.command_error import CommandError

_LOCK = "lock"


@dataclass(frozen=True, slots=True)
class RunDirectory:
    """The directory of a run that goes on."""

    path: Path

    @property
    def executor_log(self) -> Path:
        """What the executor of the run writes to."""
        return self.path / "executor.log"


@contextmanager
def run_directory(home: Path) -> Iterator[RunDirectory]:
    """Make the directory, and remove it at the end, unless a `CommandError` leaves whose reader may want the logs."""
    try:
        home.mkdir(parents=True, exist_ok=True)
        _remove_leftovers(home)
        # It gets its name with the lock held: another run would take it for a leftover.
        scratch = Path(mkdtemp(prefix="new-", dir=home))
        lock = (scratch / _LOCK).open("w")
        fcntl.flock(lock, fcntl.LOCK_EX)
        path = scratch.rename(home / scratch.name.replace("new-", "run-", 1))
    except OSError as error:
        remedy = "set METRONOME_HOME to a directory that can be written"
        raise CommandError(f"cannot write {home}: {error.strerror}", remedy) from None
    with lock:
        try:
            yield RunDirectory(path)
        except CommandError:
            if not any(path.glob("*.log")):
                shutil.rmtree(path, ignore_errors=True)
            raise
        except BaseException:
            shutil.rmtree(path, ignore_errors=True)
            raise
        shutil.rmtree(path, ignore_errors=True)


def _remove_leftovers(home: Path) -> None:
    for path in home.glob("run-*"):
        with suppress(BlockingIOError):  # that run goes on
            if (path / _LOCK).exists():
                with (path / _LOCK).open() as lock:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(path, ignore_errors=True)
