"""Reading the contract's tables, whose columns may be left out as a whole."""

from __future__ import annotations

from collections.abc import Sequence


def at(column: Sequence[int], row: int) -> int:
    """Read one row of a column; 0 where the column was left out."""
    return column[row] if column else 0
