"""Logs: what the engine does, as structured events. Nothing of a prompt or an answer is ever among them."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from enum import Enum
from typing import TYPE_CHECKING

import structlog

from executor_service.engine.planner import FailureCause, PlanUnavailableError
from executor_service.engine.record import Ending, Measures, PassRecord

if TYPE_CHECKING:  # settings need this module before torch is imported
    from executor_service.engine.apply import PlanRefusedError

log = structlog.get_logger()


LOG_LEVELS = ("debug", "info", "warning", "error")


class LogFormat(Enum):
    CONSOLE = "console"
    JSON = "json"


def configure_logging(log_format: LogFormat, level: str) -> None:
    """Send events to standard error, one line each."""
    renderer: structlog.typing.Processor = structlog.processors.JSONRenderer()
    if log_format is LogFormat.CONSOLE:
        renderer = structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[level.upper()]),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )


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
            num_running=record.num_running,
            num_waiting=record.num_waiting,
            plan_source=record.plan_source.name,
            total_us=record.total_us,
        )
        self._publish(record)

    def request_ended(self, ending: Ending) -> None:
        """Whoever sent the request is told."""

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

    def copies_failed(self, request_ids: list[int], error: Exception) -> None:
        effect = "their KV is computed again"
        self._log.error("swap_copies_failed", request_ids=request_ids, effect=effect, exc_info=error)

    def requests_failed(self, request_ids: list[int], error: Exception) -> None:
        self._log.error("requests_failed", request_ids=request_ids, exc_info=error)

    def books_wrong(self, error: Exception) -> None:
        self._log.critical("books_wrong", exc_info=error)
