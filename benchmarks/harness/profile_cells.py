"""The rows of default_profile.py: kept as CSV, and read as cells, in which policies are side by side."""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from metronome_lab.report.charts import Chart, Panel, Series

PROFILE = "metronome"
ENGINES = (
    *("vllm", "sglang", "tensorrt-llm-no-evict", "tensorrt-llm-max-utilization"),
    *("sarathi", "orca", "static-batching"),
)
NEAR_THE_BEST = 0.9
# Times the best engine's goodput, from load 1.0 on (docs/lab/targets.md).
ASKED = 1.2
KEY = ("half", "trace", "hardware", "executors", "requests", "estimates", "load", "policy")
FIGURES = (
    *("goodput_per_s", "most_goodput_per_s", "share_good", "share_good_longest", "share_in_time", "share_even"),
    *("requests_per_s", "most_requests_per_s"),
    *("ttft_mean_ms", "ttft_p99_ms", "itl_p99_ms", "e2e_mean_ms", "least_e2e_mean_ms"),
    *("jain", "contended_s", "longest_wait_s", "evictions", "recomputed_tokens", "bound_kept", "cpu_s"),
)
Key = tuple[str, ...]
Row = dict[str, str]
Cell = Mapping[str, Row]
# By what the rows of a cell have in common: `KEY` without the policy.
Cells = Mapping[Key, Cell]


def key_of(row: Row) -> Key:
    return tuple(row[name] for name in KEY)


def read_rows(path: Path) -> dict[Key, Row]:
    """None where there is no file yet."""
    if not path.exists():
        return {}
    with path.open(encoding="utf-8", newline="") as file:
        return {key_of(row): row for row in csv.DictReader(file)}


def write_rows(path: Path, rows: Mapping[Key, Row]) -> None:
    """All or none: who is stopped while it writes leaves the file that was there."""
    unfinished = path.with_suffix(".unfinished")
    with unfinished.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, (*KEY, *FIGURES), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows[key] for key in sorted(rows))
    unfinished.replace(path)


def cells_of(rows: Mapping[Key, Row], **wanted: str) -> Cells:
    """The cells under load whose columns are as `wanted`, in which an engine's profile was played."""
    cells: dict[Key, dict[str, Row]] = {}
    for key, row in sorted(rows.items()):
        if row["load"] != "inf" and all(row[name] == value for name, value in wanted.items()):
            cells.setdefault(key[:-1], {})[row["policy"]] = row
    return {key: cell for key, cell in cells.items() if any(name in cell for name in ENGINES)}


def near_the_best(cells: Cells) -> set[str]:
    """The engines' profiles that were the best in some cell, or within a tenth of it."""
    return {
        name
        for cell in cells.values()
        for name in ENGINES
        if name in cell and goodput(cell[name]) >= NEAR_THE_BEST * goodput(cell[best_engine(cell)])
    }


def goodput(row: Row) -> float:
    return float(row["goodput_per_s"])


def ratio_at_most(cell: Cell) -> float:
    """How many times the best engine's goodput any schedule could have at most: infinite where that is none."""
    row = cell[best_engine(cell)]
    return float(row["most_goodput_per_s"]) / goodput(row) if goodput(row) else math.inf


def best_engine(cell: Cell) -> str:
    return max((name for name in ENGINES if name in cell), key=lambda name: goodput(cell[name]))


def print_tables(title: str, cells: Cells) -> None:
    """As Markdown: goodput and what was promised, and the ways to the bounds, of the cells that have the profile."""
    for columns in (_GOODPUT, _WHO_PAYS, _BOUNDS):
        print(f"\n{title}\n\n| trace | load | " + " | ".join(columns) + " |")
        print("| --- | ---: |" + " ---: |" * len(columns))
        for key, cell in cells.items():
            if PROFILE in cell:
                of = dict(zip(KEY, key, strict=False))
                print(
                    f"| {of['trace']} | {of['load']} | "
                    + " | ".join(column(cell) for column in columns.values())
                    + " |"
                )


def picture_of(cells: Cells) -> Chart:
    """The share of requests that meet both targets against the load, a panel for each trace."""
    panels = []
    for trace in dict.fromkeys(key[KEY.index("trace")] for key in cells):
        of_trace = [cell for key, cell in cells.items() if key[KEY.index("trace")] == trace and PROFILE in cell]
        lines = {
            PROFILE: [cell[PROFILE] for cell in of_trace],
            "the best of the engines' profiles": [cell[best_engine(cell)] for cell in of_trace],
            "fifo": [cell["fifo"] for cell in of_trace if "fifo" in cell],
        }
        series = tuple(
            Series(name=name, x=_column(rows, "load"), y=_column(rows, "share_good")) for name, rows in lines.items()
        )
        panels.append(Panel(title=trace, x_label="load", y_label="share within targets", series=series))
    return Chart(name="default-profile", title="Requests within both targets", panels=tuple(panels))


def _column(rows: list[Row], name: str) -> np.ndarray:
    return np.array([float(row[name]) for row in rows])


def _of_bound(row: Row, figure: str, bound: str) -> str:
    return f"{float(row[figure]) / float(row[bound]):.2f}"


def _ratio(cell: Cell) -> str:
    best = goodput(cell[best_engine(cell)])
    return f"{goodput(cell[PROFILE]) / best:.2f}" if best else "none is good"


def _ratio_at_most(cell: Cell) -> str:
    """Marked where no schedule could have as much as is asked of the default profile, which below load 1.0 is less."""
    most, is_asked = ratio_at_most(cell), float(cell[PROFILE]["load"]) >= 1.0
    return f"{most:.2f}" + (" (1.2 cannot be)" if is_asked and most < ASKED else "")


Columns = dict[str, Callable[[Cell], str]]
_GOODPUT: Columns = {
    "best engine's": best_engine,
    "requests/s": lambda cell: f"{goodput(cell[best_engine(cell)]):.3f}",
    f"`{PROFILE}`": lambda cell: f"{goodput(cell[PROFILE]):.3f}",
    "ratio": _ratio,
    "ratio at most": _ratio_at_most,
    "shares": lambda cell: (
        f"{float(cell[best_engine(cell)]['share_good']):.3f}, {float(cell[PROFILE]['share_good']):.3f}"
    ),
    "Jain": lambda cell: f"{float(cell[PROFILE]['jain']):.3f} ({float(cell[PROFILE]['contended_s']):.0f} s)",
    "bound on waiting": lambda cell: {"yes": "kept", "no": "broken", "": "none"}[cell[PROFILE]["bound_kept"]],
    "longest wait, s": lambda cell: f"{float(cell[PROFILE]['longest_wait_s']):.0f}",
}
_WHO_PAYS: Columns = {
    "of all, the best engine's": lambda cell: cell[best_engine(cell)]["share_good"],
    f"`{PROFILE}`": lambda cell: cell[PROFILE]["share_good"],
    "of the longest tenth of prompts, the best engine's": lambda cell: cell[best_engine(cell)]["share_good_longest"],
    f"`{PROFILE}` ": lambda cell: cell[PROFILE]["share_good_longest"],
}
_BOUNDS: Columns = {
    "mean latency to the least": lambda cell: _of_bound(cell[PROFILE], "e2e_mean_ms", "least_e2e_mean_ms"),
    "the best engine's": lambda cell: _of_bound(cell[best_engine(cell)], "e2e_mean_ms", "least_e2e_mean_ms"),
    "throughput to the most": lambda cell: _of_bound(cell[PROFILE], "requests_per_s", "most_requests_per_s"),
    "that of the best engine": lambda cell: _of_bound(cell[best_engine(cell)], "requests_per_s", "most_requests_per_s"),
}
