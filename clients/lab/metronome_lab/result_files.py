"""The files of a run: `requests` and `iterations`, Parquet or CSV, a row each. The same run has the same bytes."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import Any

from metronome_lab.errors import LabError
from metronome_lab.records import Records

Table = Mapping[str, Any]


class Format(Enum):
    PARQUET = "parquet"
    CSV = "csv"


def write_results(records: Records, directory: Path, format: Format) -> tuple[Path, ...]:
    """Write both tables into `directory`, which is made. Returns their paths. Raises LabError."""
    tables: dict[str, Table] = {"requests": records.requests.columns()}
    if records.iterations.keep:
        tables["iterations"] = records.iterations.columns()
    write = _write_parquet if format is Format.PARQUET else _write_csv
    paths = tuple(directory / f"{name}.{format.value}" for name in tables)
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for path, table in zip(paths, tables.values(), strict=True):
            write(table, path)
    except OSError as error:
        raise LabError(f"cannot write to {directory}: {error.strerror or error}") from None
    return paths


def _write_parquet(table: Table, path: Path) -> None:
    import pyarrow as arrow  # a second to import, and needed here alone
    from pyarrow import parquet

    columns = {name: arrow.array(list(column) if _is_text(column) else column) for name, column in table.items()}
    parquet.write_table(arrow.table(columns), path)


def _write_csv(table: Table, path: Path) -> None:
    columns: list[Sequence[Any]] = [column if _is_text(column) else column.tolist() for column in table.values()]
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(table)
        writer.writerows(zip(*columns, strict=True))


def _is_text(column: Any) -> bool:
    """Whether it is a sequence of texts, and no array of numbers."""
    return not hasattr(column, "dtype")
