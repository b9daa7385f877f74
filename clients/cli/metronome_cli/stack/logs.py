"""What a service's log has to say: the progress of loading, and why it stopped.

A log holds one JSON object a line from the service, and beside it plain lines from whatever else wrote to stderr.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

PROGRESS_EVENT = "model_progress"
_ERROR_PREFIX = "error: "


class ProgressReader:
    """Reads the progress messages that a growing log has gained since the last call."""

    def __init__(self, log: BinaryIO) -> None:
        self._log = log
        self._rest = b""

    def new_messages(self) -> Iterator[str]:
        """Give the messages of the complete lines that are new."""
        *lines, self._rest = (self._rest + self._log.read()).split(b"\n")
        for line in lines:
            entry = _entry(line.decode(errors="replace"))
            if entry.get("event") == PROGRESS_EVENT and entry.get("message"):
                yield str(entry["message"])


def reason_of_death(log_path: Path) -> str:
    """Find the line that says best why a service stopped: its `error:` line, else the last thing that it logged."""
    lines = [line.strip() for line in log_path.read_text(errors="replace").splitlines() if line.strip()]
    for line in reversed(lines):
        if line.startswith(_ERROR_PREFIX):
            return line.removeprefix(_ERROR_PREFIX)
    if not lines:
        return "it said nothing"
    entry = _entry(lines[-1])
    return " ".join(str(entry[key]) for key in ("event", "message", "error") if key in entry) or lines[-1]


def _entry(line: str) -> dict[str, object]:
    """Parse a structured line; an empty entry for a plain one."""
    try:
        entry = json.loads(line)
    except ValueError:
        return {}
    return entry if isinstance(entry, dict) else {}
