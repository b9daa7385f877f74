"""Plays one executor ahead: its quiet passes (see `quiet.py`), of which books and records are told.

    begin ──▶ play until somebody looks ──▶ play on ... ──▶ settle
                records: of the passes                        books: of all of them at once; records: of the requests

As long as passes are quiet, the table that a stretch of them began with says all that a state tells. So the books are
neither asked nor told where somebody looks at the executor in between, to place a request elsewhere.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from executor_service.engine.books import Books, Rows
from executor_service.engine.snapshot import Snapshot
from metronome_lab.hardware.profile import Hardware
from metronome_lab.records import Records
from metronome_lab.simulated.clock import EPOCH_US
from metronome_lab.simulated.quiet import (
    DURATION_US,
    NUM_FINISHED,
    NUM_FREE_BLOCKS,
    NUM_PASSES,
    START_US,
    Outlook,
    Passes,
    Progress,
    play,
    progress_from,
    room_for,
)
from metronome_lab.simulated.reuse import most_new_blocks
from scheduler_service.core.case import LAST_RUN_ITERATION, NUM_OUTPUT_TOKENS, Case, case_of
from scheduler_service.core.policy import Policy
from scheduler_service.core.state import ExecutorState, IntArray, RequestStatus


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Ahead:
    """How far it was played. `now_us`: when its next pass may begin. `finished`: rows whose answers are complete, in
    order. `is_over`: the next pass, which is due, is not quiet.
    """

    num_passes: int
    now_us: int
    finished: Rows
    is_over: bool


@dataclass(slots=True, kw_only=True, eq=False)
class _Stretch:
    """Quiet passes of which the books were not told yet. `began_with`: the state before them, but that its tables are
    those of `case`, which is of now.

    `rows`, `indexes`: [num_requests] its requests in the books and in the workload. `num_with`: that run, wait and are
    swapped out.
    """

    began_with: ExecutorState
    case: Case
    outlook: Outlook
    progress: Progress
    rows: Rows
    indexes: IntArray
    num_with: tuple[int, ...]


class Player:
    """Plays one executor whose plans are those of `policy`; `may_decide`: also where they take the planning core."""

    def __init__(
        self, number: int, books: Books, records: Records, hardware: Hardware, policy: Policy, *, may_decide: bool
    ) -> None:
        self._number = number
        self._books = books
        self._records = records
        self._hardware = hardware
        self._policy = policy
        self._may_decide = may_decide
        self._stretch: _Stretch | None = None

    @property
    def is_playing(self) -> bool:
        """Whether the books may be behind."""
        return self._stretch is not None

    def state(self) -> ExecutorState:
        """As it is after the passes that were played."""
        stretch = self._stretch
        assert stretch is not None, "begin comes first"
        now_us, num_free_blocks = stretch.case.now_us, stretch.case.num_free_blocks
        iteration = stretch.outlook.iteration
        return replace(stretch.began_with, now_us=now_us, iteration=iteration, num_free_blocks=num_free_blocks)

    def begin(self, snapshot: Snapshot, state: ExecutorState, *, has_news: bool) -> bool:
        """Get ready to play from a state of the books on, whose table is then changed by what is played.

        `has_news`: somebody came whom no plan knows of yet. Returns whether quiet passes are certain to be so.
        """
        books, requests = self._books, self._records.requests
        rows, indexes = books.rows(), snapshot.columns["id"] - 1
        num_blocks = most_new_blocks(books, rows, snapshot.columns)
        if num_blocks == 0:
            return False
        statuses = np.bincount(snapshot.columns["status"], minlength=4).tolist()
        self._stretch = _Stretch(
            began_with=state,
            case=case_of(state, self._policy),
            outlook=Outlook(
                stops_after=books["stops_after"][rows].astype(np.int64),
                client=requests.workload.tenant[indexes].astype(np.int64),
                until_us=0,
                wait_us=self._hardware.plan_wait_us if has_news else 0,
                iteration=books.iteration,
                most_new_blocks=num_blocks,
                has_news=has_news,
                may_decide=self._may_decide,
            ),
            progress=progress_from(EPOCH_US + books["last_token_us"][rows], requests.max_gap_us[indexes]),
            rows=rows,
            indexes=indexes,
            num_with=(
                statuses[RequestStatus.RUNNING],
                statuses[RequestStatus.WAITING],
                statuses[RequestStatus.SWAPPED],
            ),
        )
        return True

    def play(self, until_us: int) -> Ahead:
        """Play the quiet passes that begin before `until_us`."""
        stretch = self._stretch
        assert stretch is not None, "begin comes first"
        outlook = stretch.outlook._replace(until_us=EPOCH_US + until_us)
        passes = room_for(len(self._records.requests.workload.tenants), len(stretch.rows))
        is_over = play(stretch.case, outlook, stretch.progress, passes)
        num_passes, num_finished = passes.counts[[NUM_PASSES, NUM_FINISHED]].tolist()
        if num_passes > 0:
            self._record(stretch, passes)
            self._go_on(stretch, passes, num_passes)
        return Ahead(
            num_passes=num_passes,
            now_us=stretch.case.now_us - EPOCH_US,
            finished=stretch.rows[passes.finished[:num_finished]],
            is_over=is_over,
        )

    def settle(self) -> None:
        """Tell the books, and the records of the requests, what was played; it is over."""
        stretch, self._stretch = self._stretch, None
        if stretch is None:
            return
        books, requests = self._books, self._records.requests
        rows, indexes, progress = stretch.rows, stretch.indexes, stretch.progress
        ran = progress.num_run > 0
        if not ran.any():
            return
        num_tokens = progress.num_run[ran].astype(np.int32)
        books.grow(rows[ran], num_tokens)
        books.advance(rows[ran], num_tokens)
        books.iteration = stretch.outlook.iteration
        books["last_run_iteration"][rows] = stretch.case.requests[LAST_RUN_ITERATION]
        books["num_output_tokens"][rows] = stretch.case.requests[NUM_OUTPUT_TOKENS]
        books["last_token_us"][rows] = progress.last_token_us - EPOCH_US
        requests.num_run_tokens[indexes] += progress.num_run
        requests.max_gap_us[indexes] = progress.max_gap_us
        is_first = progress.first_token_us > 0
        requests.first_token_us[indexes[is_first]] = progress.first_token_us[is_first] - EPOCH_US

    def _go_on(self, stretch: _Stretch, passes: Passes, num_passes: int) -> None:
        """From the end of these passes."""
        start_us, duration_us, num_free_blocks = passes.figures[
            [START_US, DURATION_US, NUM_FREE_BLOCKS], num_passes - 1
        ].tolist()
        num_taken, now_us = stretch.case.num_free_blocks - num_free_blocks, start_us + duration_us
        outlook, iteration = stretch.outlook, stretch.outlook.iteration + num_passes
        stretch.case = stretch.case._replace(now_us=now_us, num_free_blocks=num_free_blocks)
        stretch.outlook = outlook._replace(
            wait_us=0, has_news=False, iteration=iteration, most_new_blocks=outlook.most_new_blocks - num_taken
        )

    def _record(self, stretch: _Stretch, passes: Passes) -> None:
        """Add the passes to the records."""
        records = self._records
        num_passes, num_gaps, num_finished, num_plans = passes.counts.tolist()
        records.num_plans += num_plans
        records.gaps.add(passes.gaps[0, :num_gaps], passes.gaps[1, :num_gaps])
        starts_us, durations_us, *batch, num_free_blocks = passes.figures[:, :num_passes]
        starts_us = starts_us - EPOCH_US
        records.service.add(starts_us + durations_us, passes.served[:, :num_passes])
        finished: IntArray = np.zeros(num_passes, dtype=np.int64)
        finished[-1] = num_finished
        before = (self._number, starts_us, durations_us, *batch, *stretch.num_with, num_free_blocks)
        records.iterations.add(num_passes, (*before, 0, 0, 0, 0, 0, finished))
