"""Plays one executor ahead: its quiet passes (see `quiet.py`), of which books and records are told at the end."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from executor_service.engine.books import Books, Rows
from executor_service.engine.snapshot import Snapshot
from metronome_lab.hardware.profile import Hardware
from metronome_lab.records import Records
from metronome_lab.simulated.clock import EPOCH_US
from metronome_lab.simulated.planners import CorePlanner
from metronome_lab.simulated.quiet import (
    DURATION_US,
    NUM_FINISHED,
    NUM_PASSES,
    START_US,
    Outlook,
    Passes,
    play,
    room_for,
)
from metronome_lab.simulated.reuse import most_new_blocks
from scheduler_service.core.case import LAST_RUN_ITERATION, NUM_OUTPUT_TOKENS, Case, case_of
from scheduler_service.core.policy import Policy
from scheduler_service.core.state import IntArray, RequestStatus


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Ahead:
    """How far it was played: when its next pass may begin, and the rows whose answers are complete, in order."""

    now_us: int
    finished: Rows


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
        self._states = CorePlanner(policy)
        self._may_decide = may_decide

    def play(self, snapshot: Snapshot, until_us: int, *, has_news: bool) -> Ahead | None:
        """Play the quiet passes from a state on that begin before `until_us`; None: the first is not quiet.

        `has_news`: somebody came whom no plan knows of yet.
        """
        books, requests = self._books, self._records.requests
        rows, indexes = books.rows_of(snapshot.columns["id"].tolist()), snapshot.columns["id"] - 1
        num_blocks = most_new_blocks(books, rows, snapshot.columns)
        if num_blocks == 0:
            return None
        outlook = Outlook(
            stops_after=books["stops_after"][rows].astype(np.int64),
            client=requests.workload.tenant[indexes].astype(np.int64),
            until_us=EPOCH_US + until_us,
            wait_us=self._hardware.plan_wait_us if has_news else 0,
            iteration=books.iteration,
            most_new_blocks=num_blocks,
            has_news=has_news,
            may_decide=self._may_decide,
        )
        case = case_of(self._states.state(snapshot, ""), self._policy)
        last_token_us = EPOCH_US + books["last_token_us"][rows]
        passes = room_for(len(requests.workload.tenants), last_token_us, requests.max_gap_us[indexes])
        play(case, outlook, passes)
        num_passes, num_finished = passes.counts[[NUM_PASSES, NUM_FINISHED]].tolist()
        if num_passes == 0:
            return None
        self._tell_books(rows, passes, case)
        self._record(snapshot, passes)
        start_us, duration_us = passes.figures[[START_US, DURATION_US], num_passes - 1].tolist()
        return Ahead(now_us=start_us + duration_us - EPOCH_US, finished=rows[passes.finished[:num_finished]])

    def _tell_books(self, rows: Rows, passes: Passes, case: Case) -> None:
        """What the passes have done to `rows`, those of the case."""
        books, ran = self._books, passes.num_run > 0
        num_tokens = passes.num_run[ran].astype(np.int32)
        books.grow(rows[ran], num_tokens)
        books.advance(rows[ran], num_tokens)
        books.iteration += int(passes.counts[NUM_PASSES])
        books["last_run_iteration"][rows] = case.requests[LAST_RUN_ITERATION]
        books["num_output_tokens"][rows] = case.requests[NUM_OUTPUT_TOKENS]
        books["last_token_us"][rows] = passes.last_token_us - EPOCH_US

    def _record(self, snapshot: Snapshot, passes: Passes) -> None:
        """Add the passes, over the requests of a snapshot, to the records."""
        records, requests = self._records, self._records.requests
        num_passes, num_gaps, num_finished, num_plans = passes.counts.tolist()
        indexes, is_first = snapshot.columns["id"] - 1, passes.first_token_us > 0
        requests.num_run_tokens[indexes] += passes.num_run
        requests.max_gap_us[indexes] = passes.max_gap_us
        requests.first_token_us[indexes[is_first]] = passes.first_token_us[is_first] - EPOCH_US
        records.num_plans += num_plans
        records.gaps.add(passes.gaps[0, :num_gaps], passes.gaps[1, :num_gaps])
        starts_us, durations_us, *batch, num_free_blocks = passes.figures[:, :num_passes]
        starts_us = starts_us - EPOCH_US
        records.service.add(starts_us + durations_us, passes.served[:, :num_passes])
        statuses = np.bincount(snapshot.columns["status"], minlength=4)
        num_with = [int(statuses[s]) for s in (RequestStatus.RUNNING, RequestStatus.WAITING, RequestStatus.SWAPPED)]
        finished: IntArray = np.zeros(num_passes, dtype=np.int64)
        finished[-1] = num_finished
        before = (self._number, starts_us, durations_us, *batch, *num_with, num_free_blocks)
        records.iterations.add(num_passes, (*before, 0, 0, 0, 0, 0, finished))
