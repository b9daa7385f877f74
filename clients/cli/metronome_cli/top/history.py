"""What was seen of an executor: its books as they stand, and its latest passes."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from metronome.executor.v1 import executor_pb2
from metronome.scheduler.v1 import state_pb2
from metronome_cli.run.summary import percentile

MAX_PASSES = 4096  # a minute at 15 ms a pass
WINDOW_US = 10_000_000  # what rates and percentiles are of


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Of the passes of the last ten seconds, or of those that there are. Rates are a second, times microseconds."""

    prefill_rate: float
    decode_rate: float
    pass_p50_us: float
    pass_p99_us: float
    forward_share: float  # of the time of the passes
    plan_wait_share: float
    num_evicted: int
    num_by_source: Counter[int]


@dataclass(slots=True)
class History:
    """`books` None: nothing was seen yet."""

    books: executor_pb2.GetStateResponse | None = None
    passes: deque[executor_pb2.Pass] = field(default_factory=lambda: deque(maxlen=MAX_PASSES))

    def add(self, message: executor_pb2.WatchStateResponse) -> None:
        """Take in what the executor says."""
        self.books = message.state
        self.passes.extend(message.passes)

    @property
    def executor(self) -> state_pb2.ExecutorState:
        """Its state; an empty one before anything was seen."""
        if self.books is None or not self.books.state.executors:
            return state_pb2.ExecutorState()
        return self.books.state.executors[0]

    def latest(self) -> list[executor_pb2.Pass]:
        """The passes of the last ten seconds before the books were looked at."""
        if self.books is None:
            return []
        since_us = self.books.state.now_us - WINDOW_US
        return [one for one in self.passes if one.start_time_us >= since_us]

    def figures(self) -> Figures:
        """Sum the latest passes up."""
        latest = self.latest()
        total_us = max(1, sum(one.total_us for one in latest))
        elapsed_s = self._elapsed_s(latest)
        times = [one.total_us for one in latest]
        return Figures(
            prefill_rate=sum(one.num_prefill_tokens for one in latest) / elapsed_s,
            decode_rate=sum(one.num_decode_tokens for one in latest) / elapsed_s,
            pass_p50_us=percentile(times, 0.5) or 0.0,
            pass_p99_us=percentile(times, 0.99) or 0.0,
            forward_share=sum(one.forward_us for one in latest) / total_us,
            plan_wait_share=sum(one.plan_wait_us for one in latest) / total_us,
            num_evicted=sum(one.num_evicted_swap + one.num_evicted_recompute for one in latest),
            num_by_source=Counter(one.plan_source for one in latest),
        )

    def _elapsed_s(self, latest: Sequence[executor_pb2.Pass]) -> float:
        """From the first of these passes to now, so that a rate falls when nothing more comes."""
        if not latest or self.books is None:
            return 1.0
        return max(1, self.books.state.now_us - latest[0].start_time_us) / 1e6
