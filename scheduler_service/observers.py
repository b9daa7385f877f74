"""What happens to a planned call after it was answered, off the critical path.

- A call is offered to each observer once its answer exists. Offering takes microseconds, never waits and never raises.
- Each observer has a thread and a bounded queue. What the queue has no room for is dropped and counted.
- An observer that fails harms nothing but itself: the failure is counted, and logged once until one succeeds again.
- At an interval, and at the end, an observer reports what it has seen and missed.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import structlog

from metronome.scheduler.v1 import scheduler_pb2
from scheduler_service.core.executor_plan import ExecutorPlan
from scheduler_service.core.policy import Policy
from scheduler_service.core.state import ClusterState

QUEUE_CAPACITY = 128  # calls; at 10,000 requests a state about 100 MB

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedCall:
    """A call and its answer, on the wire and in the core's terms. Nobody changes any of it."""

    request: scheduler_pb2.PlanRequest
    response: scheduler_pb2.PlanResponse
    policy: Policy
    cluster: ClusterState
    plans: Sequence[ExecutorPlan]


@dataclass(frozen=True, slots=True, kw_only=True)
class Missed:
    """Calls since the last report that an observer did not see, or failed at."""

    num_dropped: int
    num_failed: int


class Observer(Protocol):
    """Looks at calls, one at a time, always on the same thread. May raise."""

    name: str

    def observe(self, call: PlannedCall) -> None: ...

    def report(self, missed: Missed) -> None:
        """Log what was seen since the last report. Called at an interval, and once before `close`."""

    def close(self) -> None: ...


class ObserverThread:
    """Runs one observer. `offer` and `close` are for one thread, that of the server."""

    def __init__(self, observer: Observer, *, report_interval_s: float, capacity: int = QUEUE_CAPACITY) -> None:
        self.observer = observer
        self._interval_s = report_interval_s
        self._calls: queue.Queue[PlannedCall | None] = queue.Queue(capacity)
        self._num_dropped = 0  # written by the server's thread alone, and never reset
        self._num_dropped_reported = 0
        self._num_failed = 0  # written by this observer's own, and never reset
        self._num_failed_reported = 0
        self._is_failing = False
        self._thread = threading.Thread(target=self._run, name=observer.name, daemon=True)

    @property
    def name(self) -> str:
        return self.observer.name

    @property
    def num_dropped(self) -> int:
        """Calls since the start that it had no room for."""
        return self._num_dropped

    @property
    def num_failed(self) -> int:
        """Calls since the start that it failed at."""
        return self._num_failed

    def start(self) -> None:
        self._thread.start()

    def offer(self, call: PlannedCall) -> None:
        try:
            self._calls.put_nowait(call)
        except queue.Full:
            self._num_dropped += 1

    def close(self) -> None:
        """Let the observer see what is queued, report and end."""
        self._calls.put(None)
        self._thread.join()

    def _run(self) -> None:
        report_at = time.monotonic() + self._interval_s
        while True:
            try:
                call = self._calls.get(timeout=max(0.0, report_at - time.monotonic()))
            except queue.Empty:
                pass
            else:
                if call is None:
                    break
                self._observe(call)
            if time.monotonic() >= report_at:
                report_at += self._interval_s
                self._report()
        self._report()
        self.observer.close()

    def _observe(self, call: PlannedCall) -> None:
        try:
            self.observer.observe(call)
        except Exception:
            self._num_failed += 1
            if not self._is_failing:
                log.exception("observer_failed", observer=self.observer.name)
            self._is_failing = True
        else:
            self._is_failing = False

    def _report(self) -> None:
        num_dropped = self._num_dropped
        missed = Missed(
            num_dropped=num_dropped - self._num_dropped_reported,
            num_failed=self._num_failed - self._num_failed_reported,
        )
        self._num_dropped_reported, self._num_failed_reported = num_dropped, self._num_failed
        self.observer.report(missed)
