"""Files of a recording: length-delimited messages, compressed, one numbered file after another.

- A file ends with the message that takes it to `max_file_bytes`, and is never appended to. The directory belongs to one
  process; of the files in it the `max_files` newest stay.
- Every message is flushed, so a crash costs the one being written.
- gzip, because every language and every shell reads it without a library more.
"""

from __future__ import annotations

import gzip
import os
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from google.protobuf.message import Message
from google.protobuf.proto import serialize_length_prefixed

PREFIX, SUFFIX = "recording-", ".pb.gz"
NUM_DIGITS = 6
COMPRESSION_LEVEL = 1  # tables of requests come out within a tenth of what level 9 makes of them, many times as fast


class RecordingError(Exception):
    """Nothing can be recorded there. The text says why, and what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordingSettings:
    """Where to record, and how much of it to keep."""

    directory: Path
    max_file_bytes: int
    max_files: int


class RotatingFile:
    """Opens a file with the first message. Methods raise OSError where the disk fails."""

    def __init__(self, settings: RecordingSettings) -> None:
        """Make the directory. Raises RecordingError where nothing can be written."""
        self._settings = settings
        self._raw: BinaryIO | None = None
        self._compressed: gzip.GzipFile | None = None
        directory = settings.directory
        try:
            directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            text = f"cannot record in {directory}: {error.strerror}; choose another directory with --record-dir"
            raise RecordingError(text) from error
        if not os.access(directory, os.W_OK | os.X_OK):
            raise RecordingError(f"cannot write in {directory}; choose another directory with --record-dir")

    def write(self, message: Message) -> None:
        if self._compressed is None or self._raw is None:
            self._raw = self._next_file()
            # Neither name nor time in its header: the same messages make the same bytes.
            self._compressed = gzip.GzipFile("", "wb", COMPRESSION_LEVEL, self._raw, mtime=0)
        serialize_length_prefixed(message, self._compressed)  # type: ignore[arg-type]
        self._compressed.flush()
        self._raw.flush()
        if self._raw.tell() >= self._settings.max_file_bytes:
            self.close()

    def close(self) -> None:
        """End the file; the next message opens another."""
        compressed, raw, self._compressed, self._raw = self._compressed, self._raw, None, None
        if compressed is not None and raw is not None:
            with raw:
                compressed.close()

    def _next_file(self) -> BinaryIO:
        directory = self._settings.directory
        recordings = sorted(directory.glob(PREFIX + "[0-9]" * NUM_DIGITS + SUFFIX))
        for oldest in recordings[: max(0, len(recordings) - self._settings.max_files + 1)]:
            oldest.unlink(missing_ok=True)
        last = int(recordings[-1].name.removeprefix(PREFIX).removesuffix(SUFFIX)) if recordings else 0
        return (directory / f"{PREFIX}{last + 1:0{NUM_DIGITS}}{SUFFIX}").open("xb")
