"""A file whose contents are in force: read again when it changes, and kept as it was where what is new is wrong.

It is looked at when it is asked for, at most every `LOOK_INTERVAL_S`. What is wrong with it is logged once.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Generic, TypeVar

import structlog

from service_shell.file_version import file_version

Contents = TypeVar("Contents")

LOOK_INTERVAL_S = 1.0

log = structlog.get_logger()


class FileError(Exception):
    """The file cannot be used. The text says why, names the flag, and repeats nothing of what it holds."""


class WatchedFile(Generic[Contents]):
    """`parse` raises ValueError with the end of a sentence that begins with the file's name."""

    def __init__(self, flag: str, path: Path, parse: Callable[[str], Contents]) -> None:
        """Raises FileError."""
        self._name = f"{flag} {path}"
        self._path = path
        self._parse = parse
        self._looked = time.monotonic()
        self._version = file_version(path)
        self._contents = self._read()

    @property
    def contents(self) -> Contents:
        """As they are now, or were when they were last right."""
        now = time.monotonic()
        if now - self._looked >= LOOK_INTERVAL_S:
            self._looked = now
            self._look()
        return self._contents

    def _look(self) -> None:
        version = file_version(self._path)
        if version == self._version:
            return
        self._version = version
        try:
            self._contents = self._read()
        except FileError as error:
            log.warning("file_refused", error=str(error), effect="what it said before stays in force")
        else:
            log.info("file_reloaded", file=self._name)

    def _read(self) -> Contents:
        try:
            return self._parse(self._path.read_text(encoding="utf-8"))
        except OSError as error:
            raise FileError(f"cannot read {self._name}: {error.strerror}") from error
        except ValueError as error:
            raise FileError(f"{self._name} {error}") from None
