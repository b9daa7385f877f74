"""The figures of runs as a table, a run a column."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.box import SIMPLE
from rich.table import Table


def figures_view(rows: Mapping[str, Sequence[str]], names: Sequence[str]) -> Table:
    """`rows`: cells by label, one for each of `names`."""
    table = Table(box=SIMPLE)
    table.add_column("")
    for name in names:
        table.add_column(name, justify="right")
    for label, cells in rows.items():
        table.add_row(label, *cells)
    return table
