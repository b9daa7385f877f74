"""Profiles while the service runs: read again on SIGHUP, and when a file of the directory changed.

The files are looked at every `POLL_SECONDS` (names, sizes, times; a few microseconds), never on the way of a plan.
Where the directory cannot be read as a whole, or has no default profile any more, that is logged and the profiles stay
as they are. Calls that are being answered keep the policy that they began with.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import TypeAlias

import structlog

from scheduler_service.profiles import ProfileError, Profiles, load_profiles
from scheduler_service.servicer import SchedulerServicer

POLL_SECONDS = 1.0

Fingerprint: TypeAlias = tuple[tuple[str, int, int], ...]

log = structlog.get_logger(__name__)


class ProfileReloader:
    """Keeps the profiles of a servicer those of a directory."""

    def __init__(self, servicer: SchedulerServicer, default: str, directory: Path) -> None:
        self._servicer = servicer
        self._default = default
        self._directory = directory
        self._seen = fingerprint(directory)
        self.asked = asyncio.Event()

    async def run(self) -> None:
        """Reload whenever it is asked for, or a file changed; until cancelled."""
        while True:
            try:
                await asyncio.wait_for(self.asked.wait(), POLL_SECONDS)
            except TimeoutError:
                if fingerprint(self._directory) == self._seen:
                    continue
            self.asked.clear()
            self.reload()

    def reload(self) -> None:
        """Read the directory; what was there stays if it cannot be read."""
        self._seen = fingerprint(self._directory)
        try:
            profiles: Profiles = load_profiles(self._default, self._directory)
        except ProfileError as error:
            log.error("profiles_not_reloaded", error=str(error))
            return
        self._servicer.use(profiles)
        log.info("profiles_reloaded", profiles=list(profiles.by_name))


def fingerprint(directory: Path) -> Fingerprint:
    """What changes when a profile does: names, times and sizes of the files."""
    try:
        with os.scandir(directory) as entries:
            files = [(entry.name, entry.stat()) for entry in entries if entry.name.endswith(".toml")]
    except OSError:
        return ()
    return tuple(sorted((name, stat.st_mtime_ns, stat.st_size) for name, stat in files))
