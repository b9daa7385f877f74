"""Logs: events on standard error, one line each, for people (console) or machines (JSON).

What libraries say goes the same way: records of `logging`, warnings, and the last words of an error that nobody caught.
"""

from __future__ import annotations

import logging
import sys
from enum import Enum
from types import TracebackType

import structlog

LOG_LEVELS = ("debug", "info", "warning", "error")


class LogFormat(Enum):
    CONSOLE = "console"
    JSON = "json"


def configure_logging(log_format: LogFormat, level: str) -> None:
    """Set up the process. Call once, before the first event."""
    rendering: list[structlog.typing.Processor]
    if log_format is LogFormat.JSON:
        # As a text: as data it would have the values of local variables too, which may be a request.
        rendering = [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
    else:
        plain = structlog.dev.plain_traceback
        rendering = [structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), exception_formatter=plain)]
    number = logging.getLevelNamesMapping()[level.upper()]
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            *rendering,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=structlog.PrintLoggerFactory(file=sys.stderr),
    )
    logging.basicConfig(handlers=[_Forwarder()], level=max(number, logging.WARNING), force=True)
    logging.captureWarnings(True)
    sys.excepthook = _tell_last_words


class _Forwarder(logging.Handler):
    """Makes events of the records of libraries."""

    def emit(self, record: logging.LogRecord) -> None:
        message = " ".join(record.getMessage().split())
        exc_info = record.exc_info if record.exc_info and record.exc_info[0] else None
        structlog.get_logger().log(record.levelno, "library", library=record.name, message=message, exc_info=exc_info)


def _tell_last_words(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
    structlog.get_logger().critical("crashed", exc_info=(kind, error, traceback))
