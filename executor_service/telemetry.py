"""What the engine does, as events of the log. Nothing of a prompt or an answer is ever among them.

Requests go by the names that clients gave them or were told.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import structlog

from executor_service.engine.planner import FailureCause, PlanUnavailableError
from executor_service.engine.record import Ending, Measures, PassRecord

if TYPE_CHECKING:  # settings need this module before torch is imported
    from executor_service.engine.apply import PlanRefusedError

log = structlog.get_logger()

_EVENTS = {
    FailureCause.NO_ANSWER: "no_scheduler_answers",
    FailureCause.REFUSAL: "scheduler_refuses",
}


class EngineLog:
    """Observes the engine. Says once that planning fails, and why, and once that it works again, not at every pass."""

    def __init__(self, executor_id: str, publish: Callable[[PassRecord], None]) -> None:
        self._log = log.bind(executor_id=executor_id)
        self._publish = publish
        self._failing: FailureCause | None = None

    def pass_done(self, record: PassRecord, measures: Measures) -> None:
        if self._failing is not None and record.plan_source.name != "SAFE":
            self._failing = None
            self._log.info("scheduler_answers_again", iteration=record.iteration)
        self._log.debug(
            "pass_done",
            iteration=record.iteration,
            num_prefill_tokens=record.num_prefill_tokens,
            num_decode_tokens=record.num_decode_tokens,
            num_draft_tokens=record.num_draft_tokens,
            num_accepted_draft_tokens=record.num_accepted_draft_tokens,
            num_kv_tokens=record.num_kv_tokens,
            num_chunk_kv_tokens=record.num_chunk_kv_tokens,
            num_logits_rows=record.num_logits_rows,
            num_running=record.num_running,
            num_waiting=record.num_waiting,
            plan_source=record.plan_source.name,
            total_us=record.total_us,
        )
        self._publish(record)

    def request_ended(self, ending: Ending) -> None:
        usage = ending.usage
        self._log.info(
            "request_ended",
            request_id=ending.request_id,
            iteration=ending.iteration,
            tenant=ending.tenant,
            reason=ending.reason,
            num_prompt_tokens=usage.num_prompt_tokens,
            num_cached_tokens=usage.num_cached_tokens,
            num_output_tokens=usage.num_output_tokens,
            num_preemptions=usage.num_preemptions,
            queue_time_us=usage.queue_time_us,
            time_to_first_token_us=usage.time_to_first_token_us,
            total_time_us=usage.total_time_us,
        )

    def plan_refused(self, iteration: int, refusal: PlanRefusedError) -> None:
        self._log.warning("plan_refused", iteration=iteration, reason=refusal.reason.value, detail=str(refusal))

    def plan_unavailable(self, iteration: int, failure: PlanUnavailableError) -> None:
        if failure.cause is not self._failing:
            self._failing = failure.cause
            self._log.warning(
                _EVENTS[failure.cause],
                iteration=iteration,
                detail=str(failure),
                effect="who has begun goes on, who never ran waits",
            )

    def copies_failed(self, iteration: int, request_ids: list[str], error: Exception) -> None:
        effect = "their KV is computed again"
        self._log.error(
            "swap_copies_failed", iteration=iteration, request_ids=request_ids, effect=effect, exc_info=error
        )

    def requests_failed(self, iteration: int, request_ids: list[str], error: Exception) -> None:
        self._log.error("requests_failed", iteration=iteration, request_ids=request_ids, exc_info=error)

    def books_wrong(self, iteration: int, error: Exception) -> None:
        self._log.critical("books_wrong", iteration=iteration, exc_info=error)
