"""Where tables go that have words in them."""

from __future__ import annotations

import sys

from rich.console import Console

FILE_WIDTH = 140  # columns, where stdout is no terminal that has a width of its own


def table_console() -> Console:
    """Give stdout, wide enough for a sentence a row in a file too."""
    return Console(highlight=False, width=None if sys.stdout.isatty() else FILE_WIDTH)
