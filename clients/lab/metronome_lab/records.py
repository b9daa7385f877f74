"""What a run leaves behind: a row a request, a row an iteration, all gaps between tokens, and the service of tenants.

Times are in whole microseconds of virtual time since the start of the run; -1 where it never came to that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metronome_lab.workload.requests import Workload

Column = NDArray[Any]
NEVER = -1


class Outcome(IntEnum):
    """How a request ended."""

    UNFINISHED = 0  # the run was stopped before
    FINISHED = 1
    REFUSED = 2  # the executor did not accept it: it can never fit, or the queue was full
    REJECTED = 3  # the scheduler turned it away
    EXPIRED = 4  # its deadline passed before it was complete


class RequestRecords:
    """[num_requests] each, in the order of the workload."""

    def __init__(self, workload: Workload) -> None:
        count = len(workload)
        self.workload = workload
        self.outcome: NDArray[np.int8] = np.zeros(count, dtype=np.int8)
        self.executor: NDArray[np.int32] = np.full(count, NEVER, dtype=np.int32)
        self.first_run_us: NDArray[np.int64] = np.full(count, NEVER, dtype=np.int64)
        self.first_token_us: NDArray[np.int64] = np.full(count, NEVER, dtype=np.int64)
        self.end_us: NDArray[np.int64] = np.full(count, NEVER, dtype=np.int64)
        self.max_gap_us: NDArray[np.int64] = np.zeros(count, dtype=np.int64)  # between two of its tokens
        self.num_output_tokens: NDArray[np.int32] = np.zeros(count, dtype=np.int32)  # that it was given
        self.num_run_tokens: NDArray[np.int64] = np.zeros(count, dtype=np.int64)  # that were computed for it
        self.num_cached_tokens: NDArray[np.int32] = np.zeros(count, dtype=np.int32)  # found when it first ran
        self.num_preemptions: NDArray[np.int32] = np.zeros(count, dtype=np.int32)

    @property
    def num_recomputed_tokens(self) -> NDArray[np.int64]:
        """Of those that finished: what was computed more often than once."""
        stored = self.workload.num_prompt_tokens.astype(np.int64) + self.num_output_tokens - 1
        return np.where(self.outcome == Outcome.FINISHED, self.num_run_tokens - stored + self.num_cached_tokens, 0)

    def columns(self) -> dict[str, Column | Sequence[str]]:
        """By name, in the order of the result file."""
        workload = self.workload
        names = [outcome.name.lower() for outcome in Outcome]
        return {
            "request_id": workload.ids,
            "tenant": [workload.tenants[tenant] for tenant in workload.tenant.tolist()],
            "priority": workload.priority,
            "arrival_us": workload.arrival_us,
            "num_prompt_tokens": workload.num_prompt_tokens,
            "num_output_tokens": self.num_output_tokens,
            "outcome": [names[outcome] for outcome in self.outcome.tolist()],
            "executor": self.executor,
            "first_run_us": self.first_run_us,
            "first_token_us": self.first_token_us,
            "end_us": self.end_us,
            "max_gap_us": self.max_gap_us,
            "num_run_tokens": self.num_run_tokens,
            "num_cached_tokens": self.num_cached_tokens,
            "num_recomputed_tokens": self.num_recomputed_tokens,
            "num_preemptions": self.num_preemptions,
        }


ITERATION_COLUMNS: Mapping[str, type[np.generic]] = {
    "executor": np.int32,
    "start_us": np.int64,
    "duration_us": np.int32,
    "num_prefill_tokens": np.int32,
    "num_decode_tokens": np.int32,
    "num_prefill_requests": np.int32,
    "num_running": np.int32,
    "num_waiting": np.int32,
    "num_swapped": np.int32,
    "num_free_blocks": np.int32,
    "num_admitted": np.int32,
    "num_resumed": np.int32,
    "num_evicted_swap": np.int32,
    "num_evicted_recompute": np.int32,
    "num_rejected": np.int32,
    "num_finished": np.int32,
}
_CHUNK_ROWS = 65_536


class IterationRecords:
    """A row a pass, in the order in which they were played: of one executor in time, of several one after another."""

    def __init__(self, *, keep: bool = True) -> None:
        """`keep` False: they are counted, and no row is kept."""
        self.keep = keep
        self._chunks: list[dict[str, Column]] = []
        self._open: NDArray[np.int64] = np.empty((len(ITERATION_COLUMNS), _CHUNK_ROWS), dtype=np.int64)
        self._num_open = 0
        self.num_iterations = 0

    def add(self, count: int, values: Sequence[int | Column]) -> None:
        """Append `count` rows: of each column one value for all of them, or [count]."""
        self.num_iterations += count
        if not self.keep:
            return
        done = 0
        while done < count:
            part = min(count - done, _CHUNK_ROWS - self._num_open)
            place = slice(self._num_open, self._num_open + part)
            for row, value in zip(self._open, values, strict=True):
                row[place] = value if isinstance(value, int) else value[done : done + part]
            self._num_open += part
            done += part
            if self._num_open == _CHUNK_ROWS:
                self._close()

    def columns(self) -> dict[str, Column]:
        """By name, in the order of the result file."""
        self._close()
        if not self._chunks:
            return {name: np.empty(0, dtype=dtype) for name, dtype in ITERATION_COLUMNS.items()}
        if len(self._chunks) > 1:
            whole = {name: np.concatenate([chunk[name] for chunk in self._chunks]) for name in ITERATION_COLUMNS}
            self._chunks = [whole]
        return self._chunks[0]

    def _close(self) -> None:
        if self._num_open:
            rows = zip(ITERATION_COLUMNS.items(), self._open[:, : self._num_open], strict=True)
            self._chunks.append({name: row.astype(dtype) for (name, dtype), row in rows})
            self._num_open = 0


class GapRecords:
    """How many gaps between two tokens of an answer were how long: bins half a percent wide, so that percentiles of
    hundreds of millions of gaps are known within a quarter of a percent.
    """

    _RATIO = np.log(1.005)
    _NUM_BINS = 8192  # up to 6e17 us

    def __init__(self) -> None:
        self._counts: NDArray[np.int64] = np.zeros(self._NUM_BINS, dtype=np.int64)
        self.count = 0
        self.total_us = 0

    def add(self, gaps_us: Column, times: Column | int = 1) -> None:
        """Each of these gaps, [n], all at least 1, so many times, [n]."""
        if not len(gaps_us):
            return
        np.add.at(self._counts, (np.log(gaps_us) / self._RATIO).astype(np.int64), times)
        self.count += len(gaps_us) * times if isinstance(times, int) else int(times.sum())
        self.total_us += int((gaps_us * times).sum())

    def add_all(self, other: GapRecords) -> None:
        """Those of another run, too."""
        self._counts += other._counts
        self.count += other.count
        self.total_us += other.total_us

    @property
    def mean_us(self) -> float:
        return self.total_us / self.count if self.count else 0.0

    def percentile_us(self, percent: float) -> float:
        """0 where there are no gaps."""
        if not self.count:
            return 0.0
        place = int(np.searchsorted(np.cumsum(self._counts), percent / 100 * self.count))
        return float(np.exp((place + 0.5) * self._RATIO))

    def distribution(self) -> tuple[Column, Column]:
        """[n] gaps in microseconds, ascending, and [n] the share of all that are no longer."""
        used = np.flatnonzero(self._counts)
        shares = np.cumsum(self._counts)[used] / max(self.count, 1)
        return np.exp((used + 0.5) * self._RATIO), shares


class ServiceRecords:
    """Tokens computed for each tenant in each span of time."""

    def __init__(self, num_tenants: int, span_us: int) -> None:
        self.span_us = span_us
        self._tokens: NDArray[np.int64] = np.zeros((num_tenants, 64), dtype=np.int64)
        self._num_spans = 0

    def add(self, end_us: Column, tokens_of: Column) -> None:
        """Passes that end at these times, [n], with so many tokens of each tenant, [num_tenants, n]."""
        first, last = int(end_us[0]) // self.span_us, int(end_us[-1]) // self.span_us
        while last >= self._tokens.shape[1]:
            self._tokens = np.concatenate([self._tokens, np.zeros_like(self._tokens)], axis=1)
        self._num_spans = max(self._num_spans, last + 1)
        if first == last:
            self._tokens[:, first] += tokens_of.sum(axis=1)
        else:
            np.add.at(self._tokens.T, end_us // self.span_us, tokens_of.T)

    @property
    def tokens(self) -> NDArray[np.int64]:
        """[num_tenants, num_spans]"""
        return self._tokens[:, : self._num_spans]


class Records:
    """All of these, of one run."""

    def __init__(self, workload: Workload, *, span_us: int = 1_000_000, keep_iterations: bool = True) -> None:
        self.requests = RequestRecords(workload)
        self.iterations = IterationRecords(keep=keep_iterations)
        self.gaps = GapRecords()
        self.service = ServiceRecords(len(workload.tenants), span_us)
        self.num_plans = 0
        self.end_us = 0
