"""What is told of a pass when it is over: plan, books and batch in figures, and where the time went."""

from __future__ import annotations

from dataclasses import dataclass

from executor_service.engine.apply import CheckedPlan
from executor_service.engine.batch_builder import PassInputs
from executor_service.engine.books import Books, Status
from executor_service.engine.latency import num_attended_tokens
from executor_service.engine.plan import PlanSource
from executor_service.engine.planning import ObtainedPlan
from executor_service.engine.record import PassRecord
from executor_service.engine.stop_watch import StopWatch


@dataclass(frozen=True, slots=True, kw_only=True)
class BooksFigures:
    """The books when a plan has been applied and its pass is about to run."""

    iteration: int
    num_running: int
    num_waiting: int
    num_swapped: int
    num_free_blocks: int
    num_free_swap_blocks: int

    @classmethod
    def of(cls, books: Books) -> BooksFigures:
        return cls(
            iteration=books.iteration,
            num_running=len(books.rows_with(Status.RUNNING)),
            num_waiting=len(books.rows_with(Status.WAITING)),
            num_swapped=len(books.rows_with(Status.SWAPPED)),
            num_free_blocks=books.block_pool.num_free,
            num_free_swap_blocks=books.swap_space.num_free,
        )


def record_pass(
    figures: BooksFigures,
    checked: CheckedPlan,
    inputs: PassInputs,
    obtained: ObtainedPlan,
    *,
    source: PlanSource,
    watch: StopWatch,
    start_time_us: int,
    num_refused_drafts: int,
    num_finished: int,
) -> PassRecord:
    """``watch``: with laps build, copy, forward and emit."""
    num_drafts = int(inputs.num_drafts.sum())
    num_decode_tokens = int(inputs.num_tokens[: inputs.num_decodes].sum())
    return PassRecord(
        iteration=figures.iteration,
        start_time_us=start_time_us,
        num_prefill_tokens=int(inputs.num_tokens.sum()) - num_decode_tokens,
        num_decode_tokens=num_decode_tokens,
        num_prefill_requests=len(inputs.rows) - inputs.num_decodes,
        num_decode_requests=inputs.num_decodes,
        num_running=figures.num_running,
        num_waiting=figures.num_waiting,
        num_swapped=figures.num_swapped,
        num_free_blocks=figures.num_free_blocks,
        num_free_swap_blocks=figures.num_free_swap_blocks,
        num_admitted=len(checked.admit),
        num_resumed=len(checked.resume),
        num_evicted_swap=len(checked.evict_by_swap),
        num_evicted_recompute=len(checked.evict_by_recompute),
        num_rejected=len(checked.reject),
        num_finished=num_finished,
        plan_source=source,
        plan_wait_us=obtained.wait_us,
        plan_round_trip_us=obtained.round_trip_us,
        build_us=watch["build"],
        forward_us=watch["copy"] + watch["forward"],
        emit_us=watch["emit"],
        total_us=watch.total_us,
        predicted_us=checked.predicted_us,
        num_draft_tokens=num_drafts,
        num_accepted_draft_tokens=num_drafts - num_refused_drafts,
        num_kv_tokens=int(inputs.context_lens[: inputs.num_decodes].sum()),
        num_chunk_kv_tokens=num_attended_tokens(
            inputs.num_tokens[inputs.num_decodes :], inputs.context_lens[inputs.num_decodes :]
        ),
        num_logits_rows=len(inputs.batch.logits_rows),
    )
