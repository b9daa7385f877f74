"""Where tables go: stdout, as a terminal or as a file.

In a file or a pipe a line is as long as it has to be, and ends with its last word: rich fills lines up with blanks.
"""

from __future__ import annotations

import sys
from typing import IO, cast

from rich.console import Console

FILE_WIDTH = 1000  # columns, where stdout is no terminal that has a width of its own: nothing is cut or wrapped


def table_console(file_width: int = FILE_WIDTH) -> Console:
    """Give stdout."""
    if sys.stdout.isatty():
        return _Console(highlight=False)
    return _Console(highlight=False, width=file_width, file=cast("IO[str]", _WithoutTrailingBlanks()))


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """Let the error go on: rich would end the process, from within a task too."""
        raise  # rich calls this while it handles the error


class _WithoutTrailingBlanks:
    """Writes to stdout; every piece that comes is whole lines."""

    encoding = "utf-8"

    def write(self, text: str) -> int:
        """Write lines, each without the blanks at its end."""
        return sys.stdout.write("\n".join(line.rstrip(" ") for line in text.split("\n")))

    def flush(self) -> None:
        """Let the lines go."""
        sys.stdout.flush()

    def isatty(self) -> bool:
        """Say that this is none."""
        return False
