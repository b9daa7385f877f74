"""What is told of a pass when it is over: plan and batch in figures, the books after it, and where the time went."""

from __future__ import annotations

from executor_service.engine.apply import CheckedPlan
from executor_service.engine.batch_builder import PassInputs
from executor_service.engine.books import Books, Status
from executor_service.engine.plan import PlanSource
from executor_service.engine.planning import ObtainedPlan
from executor_service.engine.record import PassRecord
from executor_service.engine.stop_watch import StopWatch


def record_pass(
    books: Books,
    checked: CheckedPlan,
    inputs: PassInputs,
    obtained: ObtainedPlan,
    *,
    source: PlanSource,
    watch: StopWatch,
    start_time_us: int,
    num_finished: int,
) -> PassRecord:
    """``books``: after the pass, its number not yet counted up. ``watch``: with laps build, copy, forward and emit."""
    num_decode_tokens = int(inputs.num_tokens[: inputs.num_decodes].sum())
    return PassRecord(
        iteration=books.iteration,
        start_time_us=start_time_us,
        num_prefill_tokens=int(inputs.num_tokens.sum()) - num_decode_tokens,
        num_decode_tokens=num_decode_tokens,
        num_prefill_requests=len(inputs.rows) - inputs.num_decodes,
        num_decode_requests=inputs.num_decodes,
        num_running=len(books.rows_with(Status.RUNNING)),
        num_waiting=len(books.rows_with(Status.WAITING)),
        num_swapped=len(books.rows_with(Status.SWAPPED)),
        num_free_blocks=books.block_pool.num_free,
        num_free_swap_blocks=books.swap_space.num_free,
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
    )
