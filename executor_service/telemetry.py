"""Logs: what the engine does, as structured events. Nothing of a prompt or an answer is ever among them."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from enum import Enum

import structlog

from executor_service.engine.record import PassRecord

log = structlog.get_logger()


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


class EngineLog:
    """Observes the engine. Says once that planning fails and once that it works again, not at every pass between."""

    def __init__(self, executor_id: str, publish: Callable[[PassRecord], None]) -> None:
        self._log = log.bind(executor_id=executor_id)
        self._publish = publish
        self._without_scheduler = False

    def pass_done(self, record: PassRecord) -> None:
        if self._without_scheduler and record.plan_source.name != "SAFE":
            self._without_scheduler = False
            self._log.info("scheduler_answers_again", iteration=record.iteration)
        self._log.debug(
            "pass_done",
            iteration=record.iteration,
            num_prefill_tokens=record.num_prefill_tokens,
            num_decode_tokens=record.num_decode_tokens,
            num_running=record.num_running,
            num_waiting=record.num_waiting,
            plan_source=record.plan_source.name,
            total_us=record.total_us,
        )
        self._publish(record)

    def plan_refused(self, iteration: int, detail: str) -> None:
        self._log.warning("plan_refused", iteration=iteration, detail=detail)

    def plan_unavailable(self, iteration: int, detail: str) -> None:
        if not self._without_scheduler:
            self._without_scheduler = True
            self._log.warning("no_scheduler_answers", iteration=iteration, detail=detail, action="safe plans")

    def requests_failed(self, request_ids: list[int], error: Exception) -> None:
        self._log.error("requests_failed", request_ids=request_ids, exc_info=error)

    def books_wrong(self, error: Exception) -> None:
        self._log.critical("books_wrong", exc_info=error)
