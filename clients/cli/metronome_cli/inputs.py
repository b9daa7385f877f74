"""Text that a command reads, from a file or from stdin."""

from __future__ import annotations

import sys
from pathlib import Path

from metronome_cli.errors import CommandError

STDIN = "-"


def read_text(source: str) -> str:
    """Read a file, or stdin where `source` is `-`. Raises `CommandError` where it cannot be read or is not UTF-8."""
    try:
        content = sys.stdin.buffer.read() if source == STDIN else Path(source).read_bytes()
    except OSError as error:
        raise CommandError(f"cannot read {source}: {error.strerror}", "name a text file, or `-` for stdin") from None
    return utf8(content, source)


def utf8(content: bytes, source: str) -> str:
    """Decode text. Raises `CommandError` where it is not UTF-8."""
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        place = f"byte {error.start} of {'stdin' if source == STDIN else source}"
        raise CommandError(f"{place} is not UTF-8 text", "convert it first, for example with iconv") from None
