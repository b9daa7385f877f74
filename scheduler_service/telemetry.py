"""Logs: key-value events on stderr, for people (console) or machines (JSON lines)."""

from __future__ import annotations

import logging
import sys
from enum import Enum

import structlog

LOG_LEVELS = ("debug", "info", "warning", "error")


class LogFormat(Enum):
    CONSOLE = "console"
    JSON = "json"


def configure_logging(log_format: LogFormat, level: str) -> None:
    """Set up logging for the process. Call once, before the first event."""
    processors: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    if log_format is LogFormat.JSON:
        processors += [structlog.processors.dict_tracebacks, structlog.processors.JSONRenderer()]
    else:
        plain = structlog.dev.plain_traceback
        processors.append(structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), exception_formatter=plain))
    structlog.configure(
        processors=processors,
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[level.upper()]),
        logger_factory=structlog.PrintLoggerFactory(file=sys.stderr),
        cache_logger_on_first_use=True,
    )
