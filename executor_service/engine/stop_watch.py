"""Measures where the time of an iteration goes."""

from __future__ import annotations

import time


class StopWatch:
    """Runs from its creation; ``lap`` names the time since the lap before. Microseconds; 0 if it was not."""

    def __init__(self) -> None:
        self._started = self._last = time.perf_counter_ns()
        self._laps: dict[str, int] = {}

    def lap(self, name: str) -> None:
        now = time.perf_counter_ns()
        self._laps[name] = self._laps.get(name, 0) + (now - self._last) // 1000
        self._last = now

    def __getitem__(self, name: str) -> int:
        return self._laps.get(name, 0)

    @property
    def total_us(self) -> int:
        return (self._last - self._started) // 1000
