"""Bars and figures, as every view draws them."""

from __future__ import annotations

_EIGHTHS = " ▏▎▍▌▋▊▉█"


def bar(used: int, total: int, width: int) -> str:
    """Draw `used` of `total` over `width` columns, in eighths of a column; anything used shows at least one eighth."""
    if total <= 0:
        return " " * width
    eighths = min(width * 8, round(width * 8 * used / total))
    if used > 0:
        eighths = max(1, eighths)
    full, part = divmod(eighths, 8)
    return ("█" * full + (_EIGHTHS[part] if part else "")).ljust(width)


def counted(number: int, noun: str) -> str:
    """Write "1 token", "2,302 tokens"."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def tail(text: str, width: int) -> str:
    """Give the end of a text on one line of at most `width` characters, white space run together."""
    line = " ".join(text.split())
    return line if len(line) <= width else "…" + line[len(line) - width + 1 :]


def seconds(value_us: float) -> str:
    """Write a span with two figures or more: "0.9 ms", "87 ms", "1.24 s"."""
    if value_us < 10_000:
        return f"{value_us / 1000:.1f} ms"
    return f"{value_us / 1000:.0f} ms" if value_us < 999_500 else f"{value_us / 1_000_000:,.2f} s"
