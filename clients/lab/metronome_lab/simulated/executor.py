"""One executor in virtual time: `advance` is its loop, and one iteration reads as in `executor_service.engine.loop`.

Its books, the checking and applying of plans, prefix cache and swap space are those of the executor itself. What is not
there is the device: a pass takes what the hardware profile says, and a request's answer ends where its trace says.
Where the profile tells what passes cost apart from the latency model, the executor learns the model from its passes,
by its own fit: plans bound prefills by that model, so what a run is like depends on it.

Plans are asked for at the start of a pass, of the state as it is then. An executor that asks ahead gets the same plans
but where an answer ends before its bound: what that frees, the plan of one pass later finds.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import repeat
from typing import TYPE_CHECKING, cast

import numpy as np

from executor_service.engine.apply import CheckedPlan, PlanRefusedError, apply, check
from executor_service.engine.books import Books, Rows, Status
from executor_service.engine.latency import MeasuredPass, num_attended_tokens
from executor_service.engine.limits import RequestTooLongError
from executor_service.engine.snapshot import Latency, Snapshot, take_to_plan
from metronome_lab.errors import LabError
from metronome_lab.hardware.cost import PAUSE_US, PassCost
from metronome_lab.hardware.profile import Hardware
from metronome_lab.hardware.spread import drawn_ratios
from metronome_lab.records import NEVER, Outcome, Records
from metronome_lab.simulated.ahead import Player
from metronome_lab.simulated.clock import EPOCH_US
from metronome_lab.simulated.planners import Planner, core_state
from metronome_lab.simulated.sequence import SimulatedRequest, SimulatedSequence, Stopping
from scheduler_service.core.policy import Policy
from scheduler_service.core.state import ExecutorState

if TYPE_CHECKING:  # it needs torch to know what is done to logits
    from executor_service.engine.sequence import Sequence

# How long an executor rests whose plan runs nobody.
RETRY_US = 50_000
_MOST_RETRIES = 10_000
_NO_DEADLINE_US = 2**62
# Of the streams of random numbers that a run draws, those of passes.
_PASSES = 1
# What the lab remembers of a request beside the columns of the books; `stops_after`: the token that ends its answer;
# `num_named_blocks`: how many of its first ones others may have too.
_COLUMNS: dict[str, type[np.generic]] = {
    "stops_after": np.int32,
    "last_token_us": np.int64,
    "num_named_blocks": np.int32,
}


def _ratios(cost: PassCost, seed: int, number: int) -> Iterator[float]:
    """Of what each pass of an executor takes to what it costs: a stream of its own for each executor."""
    if not cost.ratio_quantiles:
        return repeat(1.0)
    return drawn_ratios(cost.ratio_quantiles, seed=(seed % 2**64, _PASSES, number))


class SimulatedExecutor:
    """Plays what is submitted. `now_us`: when its next pass may begin, since the start of the run."""

    def __init__(
        self,
        number: int,
        hardware: Hardware,
        planner: Planner,
        records: Records,
        *,
        policy: Policy | None,
        play_ahead: bool = True,
        seed: int = 0,
    ) -> None:
        """`policy`: by which plans are made, None where that is not known. `play_ahead` False: ask for each plan.
        `seed`: of how far its passes lie from what they cost.
        """
        self.number = number
        self.hardware = hardware
        self.now_us = 0
        # Made-up tokens, which would be most of the memory of a thousand executors, say no more than their digests.
        self.books = Books(hardware.limits, prefix_scope=hardware.prefix_scope, compares_tokens=False)
        self.books.columns |= {name: np.zeros(len(self.books["id"]), dtype) for name, dtype in _COLUMNS.items()}
        self._name = f"executor-{number}"
        self._cost = hardware.cost or PassCost.of(hardware.latency)
        self._fitter = None if hardware.cost is None else hardware.cost.fitter(hardware.limits)
        self._ratios = _ratios(self._cost, seed, number)
        self._is_after_pause = True  # what it runs next: it had nothing to run before
        self._planner = planner
        self._records = records
        self._player = None
        # What an executor learns of a pass may change its next plan.
        if play_ahead and self._fitter is None and policy is not None and policy.kv_residency_charge == 0:
            self._player = Player(number, self.books, records, hardware, policy, may_decide=planner.is_core)
        # Of the books as they are; None: nobody has looked since they changed.
        self._state: Snapshot | None = None
        self._core_state: ExecutorState | None = None
        self._has_news = False  # requests came that no plan knows of yet
        self._num_retries = 0
        self._has_deadlines = bool(records.requests.workload.deadline_us.any())

    @property
    def is_idle(self) -> bool:
        return len(self.books) == 0

    @property
    def _latency(self) -> Latency | None:
        """What it tells of its passes: what it has learnt from those that it ran, where it has to learn it."""
        return self.hardware.latency if self._fitter is None else self._fitter.latency

    def state(self) -> Snapshot:
        """What it tells who plans, and who places requests."""
        self.settle()
        if self._state is None:  # nobody has several samples, whom a state to place by has and one to plan has not
            self._state = take_to_plan(self.books, now_us=EPOCH_US + self.now_us, latency=self._latency)
        return self._state

    def core_state(self) -> ExecutorState:
        """The same as the planning core reads it: what an executor has played says it without the books."""
        if self._player is not None and self._player.is_playing:
            return self._player.state()
        if self._core_state is None:
            self._core_state = core_state(self.state(), f"{self.number:08}")
        return self._core_state

    def settle(self) -> None:
        """Bring the books up to date."""
        if self._player is not None:
            self._player.settle()

    def submit(self, index: int) -> None:
        """A request of the workload arrives. It must have been advanced to that time."""
        requests, workload = self._records.requests, self._records.requests.workload
        arrival_us, num_prompt_tokens = int(workload.arrival_us[index]), int(workload.num_prompt_tokens[index])
        requests.executor[index] = self.number
        if not self._accepts(num_prompt_tokens, int(workload.max_output_tokens[index])):
            requests.outcome[index], requests.end_us[index] = Outcome.REFUSED, arrival_us
            return
        self.settle()
        if self.is_idle:
            self._is_after_pause |= arrival_us - self.now_us >= PAUSE_US
            self.now_us = max(self.now_us, arrival_us)
        sequence = self.sequence(index)
        # Books ask a sequence for its tokens and its request, and for no more.
        self.books.add(cast("Sequence", sequence))
        row = self.books.rows_of([index + 1])
        self.books["stops_after"][row] = workload.num_output_tokens[index]
        self.books["num_named_blocks"][row] = sequence.num_named_tokens // self.books.limits.block_size
        self._note_change()
        self._has_news = True

    def sequence(self, index: int) -> SimulatedSequence:
        """A request of the workload, as books take it."""
        workload = self._records.requests.workload
        arrival_us, deadline_us = int(workload.arrival_us[index]), int(workload.deadline_us[index])
        request = SimulatedRequest(
            id=index + 1,
            prompt_token_ids=range(workload.num_prompt_tokens[index]),
            stopping=Stopping(int(workload.max_output_tokens[index])),
            priority=int(workload.priority[index]),
            tenant=workload.tenants[workload.tenant[index]],
            expected_output_tokens=int(workload.expected_output_tokens[index]),
            arrival_time_us=EPOCH_US + arrival_us,
            deadline_us=EPOCH_US + arrival_us + deadline_us if deadline_us else 0,
        )
        return SimulatedSequence(request, workload.prefixes[index])

    def advance(self, until_us: int) -> None:
        """Run every pass that begins before `until_us`. Raises LabError where plans go on to run nobody."""
        is_quiet = not self._may_let_in()  # as far as is known
        while self.now_us < until_us and not self.is_idle:
            deadline_us = self._first_deadline_us() if self._has_deadlines else until_us
            if deadline_us <= self.now_us:
                self._expire()
            elif is_quiet:
                is_quiet = self._play_ahead(min(until_us, deadline_us))
            else:
                self._step()
                is_quiet = True

    def _first_deadline_us(self) -> int:
        """Of those that are here."""
        deadlines = self.books["deadline_us"]
        return int(deadlines.min(where=deadlines > 0, initial=_NO_DEADLINE_US)) - EPOCH_US

    def _expire(self) -> None:
        """End those whose deadline has passed, as an executor does between two passes."""
        self.settle()
        deadlines = self.books["deadline_us"]
        late = self.books["id"][(deadlines > 0) & (deadlines <= EPOCH_US + self.now_us)]
        for request_id in late.tolist():
            self._end(request_id, Outcome.EXPIRED)
        self._state, self._core_state = None, None

    def _may_let_in(self) -> bool:
        """Whether the next plan will most likely admit somebody: who has just come to where there is a place."""
        return (
            self._has_news and int((self.books["status"] == Status.RUNNING).sum()) < self.hardware.limits.max_num_seqs
        )

    def _play_ahead(self, until_us: int) -> bool:
        """Run the passes in which nobody enters or leaves, all at once. Returns whether the next one may be so too."""
        player = self._player
        if player is None:
            return False
        if not player.is_playing and not player.begin(self.state(), self.core_state(), has_news=self._has_news):
            return False
        ahead = player.play(until_us)
        if ahead.num_passes > 0:
            self.now_us = ahead.now_us
            self._note_change()
            self._num_retries = 0
        if len(ahead.finished):
            self.settle()
            self._finish(ahead.finished)
        return not ahead.is_over

    def _note_change(self) -> None:
        """The books are not as they were, or time has passed."""
        self._state, self._core_state, self._has_news = None, None, False

    # One pass by a plan

    def _step(self) -> None:
        books = self.books
        plan = self._planner.plan(self.state(), self._name)
        self._records.num_plans += 1
        try:
            checked = check(plan, books, ended=frozenset())
        except PlanRefusedError as refusal:
            raise LabError(
                f"iteration {books.iteration}: the plan {refusal}", "this is a fault of the planner"
            ) from None
        num_copied = self._apply(checked)
        for rejection in checked.reject:
            self._end(rejection.id, Outcome.REJECTED)
        if len(checked.rows):
            self._num_retries = 0
            self._run(checked, num_copied)
        elif not checked.reject:
            self._rest()
        self._note_change()

    def _apply(self, checked: CheckedPlan) -> int:
        """Change the books as the plan says. Returns how many blocks are copied."""
        copies = apply(checked, self.books)
        self.books.note_copied_in(copy.row for copy in copies.into)
        requests = self._records.requests
        for row, prefix in zip(checked.admit.tolist(), checked.admit_prefixes, strict=True):
            index = int(self.books["id"][row]) - 1
            if requests.first_run_us[index] == NEVER:
                requests.first_run_us[index] = self.now_us
                requests.num_cached_tokens[index] = prefix.num_tokens(self.books.limits.block_size)
        return sum(len(copy.source) for copy in copies.out + copies.into)

    def _run(self, checked: CheckedPlan, num_copied: int) -> None:
        """One pass over all chunks and decodes of a plan that has been applied."""
        books, rows, num_tokens = self.books, checked.rows, checked.num_tokens
        decodes = books.in_decode(rows)
        samples = num_tokens >= books.num_lacking_tokens(rows)
        num_decodes, num_prefill_tokens = int(decodes.sum()), int(num_tokens[~decodes].sum())
        context_lens = books["num_computed_tokens"][rows] + num_tokens
        num_kv_tokens = int(context_lens[decodes].sum())
        duration_us = self._cost.time_us(
            num_prefill_tokens=num_prefill_tokens,
            num_decodes=num_decodes,
            num_logits_rows=int(samples.sum()),
            num_kv_tokens=num_kv_tokens,
            num_chunk_kv_tokens=num_attended_tokens(num_tokens[~decodes], context_lens[~decodes]),
            num_copied_blocks=num_copied,
            is_after_pause=self._is_after_pause,
            ratio=next(self._ratios),
        )
        self._is_after_pause = False
        self._learn(num_prefill_tokens, num_decodes, num_kv_tokens, duration_us)
        duration_us += round(self._cost.between_us)
        if self._has_news:
            duration_us += self.hardware.plan_wait_us
        figures = (
            self.number,
            self.now_us,
            duration_us,
            num_prefill_tokens,
            int(num_tokens.sum()) - num_prefill_tokens,
            len(rows) - num_decodes,
            *self._statuses(),
            books.block_pool.num_free,
            len(checked.admit),
            len(checked.resume),
            len(checked.evict_by_swap),
            len(checked.evict_by_recompute),
            len(checked.reject),
        )
        self.now_us += duration_us
        records, indexes = self._records, books["id"][rows] - 1
        records.requests.num_run_tokens[indexes] += num_tokens
        served = np.bincount(
            records.requests.workload.tenant[indexes], num_tokens, len(records.requests.workload.tenants)
        )
        records.service.add(np.array([self.now_us]), served.astype(np.int64)[:, None])
        books.advance(rows, num_tokens)
        books.iteration += 1
        num_finished = self._give_tokens(rows[samples])
        records.iterations.add(1, (*figures, num_finished))

    def _learn(self, num_prefill_tokens: int, num_decodes: int, num_kv_tokens: int, duration_us: int) -> None:
        """A pass was measured."""
        if self._fitter is not None:
            self._fitter.add_pass(
                MeasuredPass(
                    num_prefill_tokens=num_prefill_tokens,
                    num_decodes=num_decodes,
                    num_kv_tokens=num_kv_tokens,
                    time_us=duration_us,
                )
            )

    def _give_tokens(self, rows: Rows) -> int:
        """Each of `rows` has one more token now. Returns how many answers are complete with that."""
        books, requests = self.books, self._records.requests
        indexes, gaps_us = books["id"][rows] - 1, self.now_us - books["last_token_us"][rows]
        is_later = books["num_output_tokens"][rows] > 0
        requests.first_token_us[indexes[~is_later]] = self.now_us
        later, gaps_us = indexes[is_later], gaps_us[is_later]
        self._records.gaps.add(gaps_us)
        requests.max_gap_us[later] = np.maximum(requests.max_gap_us[later], gaps_us)
        books["num_output_tokens"][rows] += 1
        books["last_token_us"][rows] = self.now_us
        finished = rows[books["num_output_tokens"][rows] >= books["stops_after"][rows]]
        self._finish(finished)
        return len(finished)

    def _finish(self, rows: Rows) -> None:
        for request_id in self.books["id"][rows].tolist():
            self._end(request_id, Outcome.FINISHED)

    def _end(self, request_id: int, outcome: Outcome) -> None:
        books, requests, index = self.books, self._records.requests, request_id - 1
        row = int(books.rows_of([request_id])[0])
        requests.outcome[index] = outcome
        requests.end_us[index] = self.now_us
        requests.num_output_tokens[index] = books["num_output_tokens"][row]
        requests.num_preemptions[index] = books["num_preemptions"][row]
        books.end(request_id)
        self._records.end_us = max(self._records.end_us, self.now_us)

    def _accepts(self, num_prompt_tokens: int, max_output_tokens: int) -> bool:
        """Whether it lets a request into its queue, by the rules of the executor."""
        limits = self.books.limits
        try:
            limits.max_output_tokens(num_prompt_tokens=num_prompt_tokens, requested=max_output_tokens)
        except RequestTooLongError:
            return False
        if limits.max_num_waiting is None:
            return True
        waiting = self.books.rows_with(Status.WAITING)
        return int((self.books["num_preemptions"][waiting] == 0).sum()) < limits.max_num_waiting

    def _rest(self) -> None:
        """The plan ran nobody: ask again in a while."""
        self._num_retries += 1
        if self._num_retries > _MOST_RETRIES:
            raise LabError(f"executor {self.number} stands still: {len(self.books)} requests, and no plan runs any")
        self.now_us += RETRY_US

    def _statuses(self) -> tuple[int, int, int]:
        counts = np.bincount(self.books["status"], minlength=4)
        return int(counts[Status.RUNNING]), int(counts[Status.WAITING]), int(counts[Status.SWAPPED])
