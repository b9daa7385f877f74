"""Columns of two colours, one upon the other, in eighths of a line.

The scale is that of square roots: beside a pass of 512 prompt tokens one of 9 decodes is to be seen too.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from rich.style import Style
from rich.text import Text

_EIGHTHS = " ▁▂▃▄▅▆▇█"


def stacked_columns(
    values: Sequence[tuple[int, int]], *, width: int, height: int, top: int, colours: tuple[str, str]
) -> list[Text]:
    """Draw the last `width` pairs (lower part, upper part) as columns of `height` lines, the newest at the right.

    `top`: what fills a column; a quarter of it fills half. Anything at all shows at least one eighth.
    """
    shown = list(values)[-width:]
    columns = [_eighths(lower, upper, height=height, top=top) for lower, upper in shown]
    lines = []
    for line in range(height - 1, -1, -1):
        text = Text(" " * (width - len(columns)))
        for lower, both in columns:
            character, style = _cell(lower - 8 * line, both - 8 * line, colours)
            text.append(character, style)
        lines.append(text)
    return lines


def _eighths(lower: int, upper: int, *, height: int, top: int) -> tuple[int, int]:
    """The ends of both parts, counted from below."""
    full = 8 * height

    def scaled(value: int) -> int:
        return min(full, max(1, round(full * math.sqrt(value / max(1, top))))) if value > 0 else 0

    end_of_lower = scaled(lower)
    both = max(scaled(lower + upper), end_of_lower + (upper > 0))
    return min(end_of_lower, full), min(both, full)


def _cell(lower: int, both: int, colours: tuple[str, str]) -> tuple[str, Style]:
    """One character: how many of its eighths belong to the lower part, and to both."""
    lower, both = min(8, max(0, lower)), min(8, max(0, both))
    first, second = colours
    if both <= lower:  # nothing of the upper part is here
        return _EIGHTHS[lower], Style(color=first)
    if lower == 0:
        return _EIGHTHS[both], Style(color=second)
    if both == 8:
        return _EIGHTHS[lower], Style(color=first, bgcolor=second)
    # Two ends in one character, which has but one: that of the higher is given up.
    return _EIGHTHS[lower], Style(color=first, bgcolor=second if both - lower >= 4 else None)
