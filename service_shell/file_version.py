"""Whether a file is still the one that it was, from what the file system says of it: some microseconds."""

from __future__ import annotations

from pathlib import Path
from typing import TypeAlias

# None: nobody is told, or there is no such file.
FileVersion: TypeAlias = tuple[int, int, int, int] | None


def file_version(path: Path) -> FileVersion:
    """Another one when it was written, replaced, or given other rights; None too is a version that may last."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns
