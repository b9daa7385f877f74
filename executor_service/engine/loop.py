"""The engine loop: state out, plan in, apply, forward, sample, emit. One iteration is ``Engine.step``, top to bottom.

Everything here runs on one thread, the engine's. Other threads reach it through its inbox; commands run between two
passes.

Overlapped planning: while a pass runs, the plan of the next one is asked for, from the state that the pass will leave.
If requests arrive meanwhile, the plan is asked for anew: a round trip is little, and waiting for one more pass is much.

Speculation: when the tokens of a pass are there, drafts of the next are looked up; the plan says how many of them run.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from executor_service.engine.apply import CheckedPlan, Copies, PlanRefusedError, apply, check
from executor_service.engine.batch_builder import PassInputs, build_pass
from executor_service.engine.books import Books, Status
from executor_service.engine.desk import Desk
from executor_service.engine.device import DeviceLostError, KVCopier, Runner, run_copies
from executor_service.engine.drafts import propose, verify
from executor_service.engine.gauges import Gauges
from executor_service.engine.inbox import Inbox
from executor_service.engine.latency import LatencyFitter, MeasuredPass
from executor_service.engine.limits import Limits
from executor_service.engine.ngram import NO_LOOKUP, NgramLookup
from executor_service.engine.plan import PlanSource
from executor_service.engine.planner import Planner
from executor_service.engine.planning import ObtainedPlan, Overlap, Planning
from executor_service.engine.record import Counters, Measures, Observer, PassRecord
from executor_service.engine.record_pass import BooksFigures, record_pass
from executor_service.engine.request import EndCause, Event
from executor_service.engine.safe_plan import make_safe_plan
from executor_service.engine.sequence import Sequence
from executor_service.engine.snapshot import Snapshot, project, take, take_to_plan
from executor_service.engine.stop_watch import StopWatch
from executor_service.kv.prefix_cache import PrefixScope
from executor_service.model.runner import ExecuteResult

# How long the loop rests when it holds requests that cannot run: no scheduler answers, or the plan was empty.
RETRY_INTERVAL_S = 0.05


def clock_us() -> int:
    return time.time_ns() // 1000


class Engine:
    """Drives one model over one KV cache by the plans of one planner."""

    def __init__(
        self,
        *,
        limits: Limits,
        runner: Runner,
        kv: KVCopier,
        planner: Planner,
        overlap: Overlap,
        sink: Callable[[list[Event]], None],
        observer: Observer,
        prefix_scope: PrefixScope = PrefixScope.TENANT,
        lookup: NgramLookup = NO_LOOKUP,
        swap_block_us: float = 0.0,
        first_passes: tuple[MeasuredPass, ...] = (),
        times_copies: bool = True,
    ) -> None:
        """``times_copies``: copies are complete when the call returns, so that it shows what they take. Else
        ``swap_block_us`` stays as it is.
        """
        self.inbox = Inbox(max_num_waiting=limits.max_num_waiting, max_num_seqs=limits.max_num_seqs)
        self._books = Books(limits, prefix_scope=prefix_scope, max_num_drafts=lookup.max_num_drafts)
        self._lookup = lookup
        self._desk = Desk(self._books, sink=sink, observer=observer, clock_us=clock_us)
        self._planning = Planning(planner, overlap)
        self._planning_failure = ""
        self._shortfall_reason = ""
        self._gauges = self._gauges_now()
        self._latency = LatencyFitter(swap_block_us=swap_block_us, first_passes=first_passes)
        self._runner = runner
        self._kv = kv
        self._times_copies = times_copies
        self._observer = observer
        self._busy_since: float | None = None

    # For other threads

    def submit(self, *sequences: Sequence) -> None:
        """Queue requests, all or none. Raises QueueFullError or EngineClosedError at once."""
        self.inbox.submit(lambda: self._accept(sequences), num_requests=len(sequences))

    def cancel(self, request_id: int, cause: EndCause = EndCause.CANCELLED, detail: str = "it was cancelled") -> None:
        """End a request; one that has ended already is left alone."""
        self.inbox.put(lambda: self._desk.end(request_id, cause, detail))

    @property
    def gauges(self) -> Gauges:
        """The books before the pass that runs, or after the last one. For metrics: nobody waits for it."""
        return self._gauges

    @property
    def busy_since(self) -> float | None:
        """When the iteration that runs began, by the monotonic clock; None: the engine rests."""
        return self._busy_since

    # For commands of the inbox

    @property
    def counters(self) -> Counters:
        return self._desk.counters

    @property
    def books(self) -> Books:
        return self._books

    @property
    def planning_failure(self) -> str:
        """Why no scheduler gave a plan when one was last asked for, one sentence; empty: one did, or none was asked."""
        return self._planning_failure

    def snapshot(self) -> Snapshot:
        """The books as they stand."""
        return take(self._books, now_us=clock_us(), latency=self._latency.latency)

    # The loop

    def run(self) -> None:
        """Iterate until the inbox is closed, resting while there is nothing to do; then end what is left."""
        while not self.inbox.closed:
            self._busy_since = time.monotonic()
            ran = self.step()
            self._busy_since = None
            if not ran:
                self.inbox.wait(RETRY_INTERVAL_S if len(self._books) else None)
        self.inbox.run_commands()
        self._planning.forget()
        for sequence in list(self._books.sequences()):
            self._desk.end(sequence.request.id, EndCause.SHUT_DOWN, "the executor stopped")
        self._desk.flush()

    def step(self) -> bool:
        """Run one iteration. Returns whether it ran a pass: only passes are numbered, each with the next number."""
        watch = StopWatch()
        self.inbox.run_commands()
        self._desk.expire()
        if not len(self._books):
            self._go_idle()
            return False
        watch.lap("commands")
        obtained = self._obtain()
        watch.lap("plan")
        checked, source = self._checked(obtained)
        copies = apply(checked, self._books)
        self._note_transitions(checked)
        runs = self._copy(copies) and len(checked.rows) > 0
        watch.lap("copy")
        if runs:
            self._run_pass(checked, obtained, source, watch)
        self._publish()
        self._desk.flush()
        return runs

    def _obtain(self) -> ObtainedPlan:
        """The plan asked for ahead; or one for the books as they are, where all whom that would run have ended."""
        obtained = self._planning.obtain(self._snapshot_to_plan)
        plan = obtained.plan
        if plan is not None and len(plan.scheduled) and self._desk.ended.issuperset(plan.scheduled.tolist()):
            obtained = self._planning.obtain(self._snapshot_to_plan)
        return obtained

    def _checked(self, obtained: ObtainedPlan) -> tuple[CheckedPlan, PlanSource]:
        """The plan in rows of the books, if there is one and it holds; else the safe plan."""
        iteration = self._books.iteration
        self._planning_failure = str(obtained.failure or "")
        if obtained.failure is not None:
            self.counters.num_plan_failures += 1
            self._observer.plan_unavailable(iteration, obtained.failure)
        elif obtained.plan is not None:
            try:
                checked = check(obtained.plan, self._books, ended=self._desk.ended)
            except PlanRefusedError as refusal:
                self.counters.num_refused_plans += 1
                self._observer.plan_refused(iteration, refusal)
            else:
                self._shortfall_reason = obtained.plan.shortfall_reason
                return checked, obtained.source
        return check(make_safe_plan(self._books), self._books, ended=frozenset()), PlanSource.SAFE

    def _copy(self, copies: Copies) -> bool:
        """Copy between device and swap space. Where that fails the plan runs nobody, and those whose KV was under way
        are computed again from their tokens.
        """
        started = time.perf_counter_ns()
        try:
            num_copied = run_copies(copies, self._kv)
        except DeviceLostError:
            raise
        except Exception as error:  # out of memory, a broken bus
            for row in copies.rows:
                self._books.lose_kv(row)
            for copy in copies.within:
                self._books.prefixes.forget_tail(copy.row)  # or the next to enter would try the same again
            self.counters.num_swap_failures += 1
            self._observer.copies_failed(self._books.iteration, self._names(copies.rows), error)
            return False
        if num_copied and self._times_copies:
            self._latency.add_copy(num_blocks=num_copied, time_us=(time.perf_counter_ns() - started) // 1000)
        self._books.note_copied_in(copy.row for copy in copies.into)
        return True

    def _run_pass(self, checked: CheckedPlan, obtained: ObtainedPlan, source: PlanSource, watch: StopWatch) -> None:
        """One forward pass over all chunks and decodes of a plan that has been applied."""
        start_time_us = clock_us()
        figures = BooksFigures.of(self._books)
        self._gauges = self._gauges_now()
        inputs = build_pass(self._books, checked.rows, checked.num_tokens)
        watch.lap("build")
        self._planning.ask_ahead(lambda: self._projection(inputs))
        result = self._execute(inputs)
        watch.lap("forward")
        measures = self._desk.measures
        measures.num_recomputed_tokens += self._books.num_recomputed_tokens(inputs.rows, inputs.num_tokens)
        num_finished = num_refused = 0
        if result is not None:
            verified = verify(inputs, result.next_token_ids)
            num_refused = int(verified.num_refused.sum())
            measures.sample_us = result.sample_us
            self._books.advance(inputs.rows, inputs.num_tokens, verified.num_refused)
            num_finished = self._desk.deliver(inputs, result, verified.counts)
            propose(self._books, inputs.rows, self._lookup)
        watch.lap("emit")
        record = record_pass(
            figures,
            checked,
            inputs,
            obtained,
            source=source,
            watch=watch,
            start_time_us=start_time_us,
            num_refused_drafts=num_refused,
            num_finished=num_finished,
        )
        self._books.iteration += 1
        self._count(record)
        if result is not None:
            self._learn(record)
        self._desk.measures = Measures()
        self._observer.pass_done(record, measures)

    def _execute(self, inputs: PassInputs) -> ExecuteResult | None:
        """Run the pass. None if that failed: those in it are lost, the loop is not."""
        try:
            return self._runner.execute(inputs.batch, inputs.sampling)
        except DeviceLostError:
            raise
        except Exception as error:  # out of memory, a broken model
            request_ids = self._books["id"][inputs.rows].tolist()
            self._observer.requests_failed(self._books.iteration, self._names(inputs.rows), error)
            for request_id in request_ids:
                self._books.forget_prefix(request_id)
                self._desk.end(request_id, EndCause.FAILED, "the pass that it was in failed")
            return None

    # State out

    def _snapshot_to_plan(self) -> Snapshot:
        self._desk.ended.clear()
        return take_to_plan(self._books, now_us=clock_us(), latency=self._latency.latency)

    def _projection(self, inputs: PassInputs) -> Snapshot:
        self._desk.ended.clear()
        return project(
            self._books,
            inputs.rows,
            inputs.num_tokens,
            now_us=clock_us(),
            latency=self._latency.latency,
        )

    # Books

    def _names(self, rows: Iterable[int]) -> list[str]:
        """What clients call the requests of these rows."""
        return [self._books.sequence(row).request.name for row in rows]

    def _accept(self, sequences: tuple[Sequence, ...]) -> None:
        for sequence in sequences:
            self._desk.accept(sequence)
        self._planning.forget()

    def _note_transitions(self, checked: CheckedPlan) -> None:
        counters, now_us = self.counters, clock_us()
        counters.num_evicted_swap += len(checked.evict_by_swap)
        counters.num_evicted_recompute += len(checked.evict_by_recompute)
        self._desk.measures.evictions.update(checked.evictions)
        for row, prefix in zip(checked.admit, checked.admit_prefixes, strict=True):
            sequence = self._books.sequence(row)
            self._count_reuse(sequence, prefix.num_tokens(self._books.limits.block_size))
            if not sequence.first_run_us:
                sequence.first_run_us = now_us
                self._desk.measures.queue_times_us.append(max(0, now_us - sequence.request.arrival_time_us))
        for rejection in checked.reject:
            self._desk.end(rejection.id, EndCause.REJECTED, rejection.detail, rejection)

    def _count_reuse(self, sequence: Sequence, num_cached_tokens: int) -> None:
        """A request comes to run, with so many tokens of the prefix cache."""
        if not sequence.first_run_us:
            sequence.num_cached_tokens = num_cached_tokens
        if self._books.prefixes.scope is not PrefixScope.OFF and sequence.request.may_reuse_prefix:
            self.counters.num_prefix_query_tokens += sequence.num_tokens
            self.counters.num_prefix_hit_tokens += num_cached_tokens

    def _go_idle(self) -> None:
        self._planning.forget()
        self._publish()
        self._desk.flush()
        try:
            self._books.check_integrity()
        except Exception as error:  # a bug of ours: it must be heard of, and serving goes on
            self._observer.books_wrong(self._books.iteration, error)

    def _publish(self) -> None:
        """Show other threads how the books stand."""
        waiting = self._books.rows_with(Status.WAITING)
        num_never_ran = int((self._books["num_preemptions"][waiting] == 0).sum())
        self.inbox.publish(num_waiting=num_never_ran, num_requests=len(self._books))
        self._gauges = self._gauges_now()

    def _gauges_now(self) -> Gauges:
        return Gauges.of(
            self._books,
            time_us=clock_us(),
            planning_failure=self._planning_failure,
            shortfall_reason=self._shortfall_reason,
        )

    def _count(self, record: PassRecord) -> None:
        self.counters.num_iterations += 1
        self.counters.num_safe_plans += record.plan_source is PlanSource.SAFE
        self.counters.num_prefill_tokens += record.num_prefill_tokens
        self.counters.num_draft_tokens += record.num_draft_tokens
        self.counters.num_accepted_draft_tokens += record.num_accepted_draft_tokens

    def _learn(self, record: PassRecord) -> None:
        self._latency.add_pass(
            MeasuredPass(
                num_prefill_tokens=record.num_prefill_tokens,
                num_decodes=record.num_decode_requests,
                num_kv_tokens=record.num_kv_tokens,
                time_us=record.total_us - record.plan_wait_us,
            )
        )
