"""What a process and all that it started hold and use, and what the rest of the machine uses meanwhile."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import psutil


def peak_resident_mib(pids: Sequence[int]) -> float:
    """The most that each process ever had in RAM, added up: an upper bound, since pages that they share count twice."""
    return _sum_mib(pids, "status", "VmHWM")


def resident_mib(pids: Sequence[int]) -> float:
    """What each process has in RAM, added up; pages that they share count twice."""
    return _sum_mib(pids, "status", "VmRSS")


def proportional_mib(pids: Sequence[int]) -> float:
    """The same, where a page that n processes share counts an n-th for each."""
    return _sum_mib(pids, "smaps_rollup", "Pss")


def _sum_mib(pids: Sequence[int], file: str, name: str) -> float:
    kibibytes = 0
    for process in _trees(pids):
        with suppress(OSError):  # it ended
            found = re.search(rf"^{name}:\s+(\d+) kB$", Path(f"/proc/{process.pid}/{file}").read_text(), re.MULTILINE)
            kibibytes += int(found[1]) if found else 0
    return kibibytes / 1024


def cpu_seconds(pids: Sequence[int]) -> float:
    """Seconds of processor time since they started, in user and kernel mode."""
    seconds = 0.0
    for process in _trees(pids):
        with suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            seconds += times.user + times.system
    return seconds


class ProcessorMeter:
    """How many cores are used since it was made, and by whom."""

    def __init__(self, trees: Mapping[str, Sequence[int]]) -> None:
        """``trees``: process ids by name; the first of each and all that it started."""
        self._trees = trees
        self._started, self._before = time.monotonic(), self._seconds()

    def cores(self) -> dict[str, float]:
        """Of each tree, of this process and children that have ended (``client``), of all ``others``, and what the
        machine's host gave to others (``stolen``).
        """
        elapsed = time.monotonic() - self._started
        seconds = {name: now - self._before[name] for name, now in self._seconds().items()}
        busy = seconds.pop("busy")
        known = sum(used for name, used in seconds.items() if name != "stolen")
        return {name: used / elapsed for name, used in {**seconds, "others": max(0.0, busy - known)}.items()}

    def _seconds(self) -> dict[str, float]:
        machine, own = psutil.cpu_times(), psutil.Process().cpu_times()
        return {
            "busy": machine.user + machine.nice + machine.system + machine.irq + machine.softirq,
            "stolen": machine.steal,
            "client": own.user + own.system + own.children_user + own.children_system,
            **{name: cpu_seconds(pids) for name, pids in self._trees.items()},
        }


def _trees(pids: Iterable[int]) -> list[psutil.Process]:
    """Each process once, whoever started it."""
    found: dict[int, psutil.Process] = {}
    for pid in pids:
        with suppress(psutil.NoSuchProcess):
            root = psutil.Process(pid)
            found |= {process.pid: process for process in [root, *root.children(recursive=True)]}
    return list(found.values())
