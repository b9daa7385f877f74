"""Draws the dashboards of deploy/grafana from an eventful day of a real stack, without Grafana: `make pictures-live`.

Prometheus scrapes the stack as in docker-compose.yml. Afterwards each panel's own queries are asked, and drawn where
the dashboard's file has the panel, with its legends and its unit. Exit status 1 where a panel has nothing to show.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import re
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch
from matplotlib.ticker import FuncFormatter, MaxNLocator, MultipleLocator

from drawing import GREY, SERIES_COLOURS, use_style, write
from eventful_day import live_through, write_profiles
from watched_stack import WatchedStack, watched_stack

ROOT = Path(__file__).parents[2]
DIRECTORY = ROOT / "docs/images/dashboards"
STEP_S = 5  # the scrape interval of deploy/prometheus
RATE_INTERVAL = f"{4 * STEP_S}s"  # what Grafana makes of $__rate_interval
SCHEDULER_FLAGS = ("--profile", "people-first", "--shadow-profile", "fifo")
EXECUTOR_FLAGS = (
    *("--threads", "1", "--num-blocks", "110", "--num-swap-blocks", "40", "--max-num-seqs", "12"),
    *("--max-num-waiting", "24", "--speculative-drafts", "3", "--profile", "people-first"),
)

# The page, in inches: Grafana's grid has 24 columns, and a panel is 7 rows high and a heading one.
WIDTH, ROW_HEIGHT, GAP = 10.5, 0.33, 0.09
TITLE_HEIGHT, LEGEND_LINE, MARGIN = 0.26, 0.155, 0.12
LEGEND_CHARACTERS = 52  # of a panel's width, markers included


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A series of a panel. `values`: one for each step, NaN where there is none."""

    label: str
    values: np.ndarray[Any, np.dtype[np.float64]]


def main() -> int:
    """Let the day pass, draw it, and give the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="gemma3-270m")
    parser.add_argument("--minutes", type=float, default=5.0, help="how long the day takes")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        profiles = write_profiles(Path(name) / "profiles")
        scheduler_flags = ["--profiles-directory", str(profiles), *SCHEDULER_FLAGS]
        with watched_stack(Path(name), scheduler_flags, ["--model", args.model, *EXECUTOR_FLAGS]) as stack:
            start_s = time.time()
            asyncio.run(live_through(stack, args.minutes * 60))
            end_s = time.time()
            empty = [
                f"{path.stem}: {title}"
                for path in sorted((ROOT / "deploy/grafana/dashboards").glob("*.json"))
                for title in _draw(json.loads(path.read_text()), path.stem, stack, start_s, end_s)
            ]
            for alert in stack.query_range('ALERTS{alertstate="firing"}', start_s, end_s, STEP_S):
                print(f"alert: {alert['metric']['alertname']}")
    for title in empty:
        print(f"nothing to show: {title}", file=sys.stderr)
    return bool(empty)


def _draw(board: Any, name: str, stack: WatchedStack, start_s: float, end_s: float) -> list[str]:
    """Write the picture of a dashboard, and give the titles of the panels that have nothing to show."""
    use_style()
    steps_s = np.arange(start_s, end_s, STEP_S)
    panels = [panel for panel in board["panels"] if panel["type"] != "row"]
    num_rows = max(panel["gridPos"]["y"] + panel["gridPos"]["h"] for panel in board["panels"])
    figure = plt.figure(figsize=(WIDTH, num_rows * ROW_HEIGHT))
    for row in board["panels"]:
        if row["type"] == "row":
            x, y, _, height = _place(row["gridPos"], figure)
            figure.text(x, y + 0.3 * height, row["title"], fontsize=12, fontweight="bold", va="center")
    empty = []
    for panel in panels:
        lines = [line for target in panel["targets"] for line in _lines(target, stack, steps_s)]
        if not lines:
            empty.append(str(panel["title"]))
        _draw_panel(figure, panel, (steps_s - start_s) / 60, lines)
    write(figure, DIRECTORY / f"{name}.svg")
    return empty


def _lines(target: Any, stack: WatchedStack, steps_s: np.ndarray[Any, Any]) -> list[Line]:
    """The series of one query that have a value at some time, by label."""
    expression = target["expr"].replace("$__rate_interval", RATE_INTERVAL).replace("$instance", ".*")
    found = []
    for series in stack.query_range(expression, steps_s[0], steps_s[-1], STEP_S):
        values = np.full(len(steps_s), math.nan)
        for at_s, value in series["values"]:
            values[round((at_s - steps_s[0]) / STEP_S)] = float(value)
        if not np.isnan(values).all():
            found.append(Line(label=_label(target["legendFormat"], series["metric"]), values=values))
    return sorted(found, key=lambda line: line.label)


def _label(legend: str, labels: Mapping[str, str]) -> str:
    return re.sub(r"\{\{(\w+)\}\}", lambda name: labels.get(name[1], ""), legend)


def _draw_panel(figure: Figure, panel: Any, minutes: np.ndarray[Any, Any], lines: Sequence[Line]) -> None:
    x, y, width, height = _place(panel["gridPos"], figure)
    inch_x, inch_y = 1 / figure.get_figwidth(), 1 / figure.get_figheight()
    card = FancyBboxPatch((x, y), width, height, boxstyle="square,pad=0", facecolor=GREY, alpha=0.07, linewidth=0)
    figure.add_artist(card)
    columns, legend_rows = _legend_shape([line.label for line in lines])
    below = (legend_rows * LEGEND_LINE + 0.3) * inch_y
    left = 0.55 * inch_x
    top = TITLE_HEIGHT * inch_y
    axes = figure.add_axes((x + left, y + below, width - left - MARGIN * inch_x, height - below - top))
    figure.text(x + MARGIN * inch_x, y + height - top / 2, panel["title"], fontsize=8.5, fontweight="bold", va="center")
    custom = panel["fieldConfig"]["defaults"]
    if custom["custom"].get("stacking", {}).get("mode") == "normal":
        _stack(axes, minutes, lines)
    else:
        for line, colour in zip(lines, SERIES_COLOURS, strict=False):
            axes.plot(minutes, line.values, color=colour, linewidth=1.1, label=line.label, clip_on=False)
    axes.set_xlim(0, minutes[-1])
    axes.set_ylim(bottom=0)
    if axes.get_ylim()[1] < 1e-12 or not lines:
        axes.set_ylim(0, 1)
    unit = custom.get("unit", "short")
    axes.yaxis.set_major_locator(MaxNLocator(4))
    if unit == "bytes":  # 381 MiB is a round number to nobody
        axes.yaxis.set_major_locator(MultipleLocator(2.0 ** math.ceil(math.log2(axes.get_ylim()[1] / 5))))
    axes.yaxis.set_major_formatter(_UNITS[unit])
    ticks = [minute for minute in MaxNLocator(6, integer=True).tick_values(0, minutes[-1]) if minute <= minutes[-1]]
    axes.set_xticks(ticks, [f"{minute:.0f} min" if minute else "0" for minute in ticks])
    axes.get_xticklabels()[-1].set_horizontalalignment("right")  # else it lies on the edge of the card
    axes.grid(axis="y", color=GREY, alpha=0.2, linewidth=0.6)
    axes.tick_params(length=0, labelsize=6.5)
    axes.spines["left"].set_visible(False)
    if lines:
        axes.legend(
            loc="upper left",
            bbox_to_anchor=(-left / (width - left), -0.19 / (axes.get_position().height / inch_y)),
            ncols=columns,
            fontsize=6.5,
            borderpad=0,
            handlelength=0.9,
            handletextpad=0.4,
            columnspacing=1.0,
            labelspacing=0.25,
        )
    else:
        axes.text(0.5, 0.5, "no data", transform=axes.transAxes, ha="center", va="center")


def _stack(axes: Axes, minutes: np.ndarray[Any, Any], lines: Sequence[Line]) -> None:
    if lines:
        values = [np.nan_to_num(line.values) for line in lines]
        colours = SERIES_COLOURS[: len(lines)]
        axes.stackplot(minutes, values, labels=[line.label for line in lines], colors=colours, alpha=0.45, linewidth=0)
        for top, colour in zip(np.cumsum(values, axis=0), colours, strict=False):
            axes.plot(minutes, top, color=colour, linewidth=0.9)


def _place(grid: Mapping[str, int], figure: Figure) -> tuple[float, float, float, float]:
    """Left, bottom, width and height of a place of Grafana's grid, as shares of the figure."""
    width, height = figure.get_figwidth(), figure.get_figheight()
    return (
        grid["x"] / 24 + GAP / 2 / width,
        1 - (grid["y"] + grid["h"]) * ROW_HEIGHT / height + GAP / 2 / height,
        grid["w"] / 24 - GAP / width,
        (grid["h"] * ROW_HEIGHT - GAP) / height,
    )


def _legend_shape(labels: Sequence[str]) -> tuple[int, int]:
    """Columns and rows of a legend, as many side by side as fit."""
    widest = max(map(len, labels), default=0) + 6
    columns = max(1, min(len(labels), LEGEND_CHARACTERS // widest))
    return columns, -(-len(labels) // columns)


def _amount(scales: Sequence[tuple[float, str]]) -> Callable[[float, int], str]:
    """Writes a number with the largest of these units, the smallest last, that it reaches."""

    def write_amount(value: float, _: int) -> str:
        if value == 0:
            return "0"
        scale, unit = next((pair for pair in scales if abs(value) >= pair[0]), scales[-1])
        return f"{value / scale:.3g}{unit}"

    return write_amount


_SECONDS = ((1.0, " s"), (1e-3, " ms"), (1e-6, " µs"))
_UNITS = {
    "short": FuncFormatter(_amount(((1e6, " M"), (1e3, " K"), (1.0, "")))),
    "reqps": FuncFormatter(_amount(((1.0, " req/s"),))),
    "percentunit": FuncFormatter(_amount(((0.01, " %"),))),
    "s": FuncFormatter(_amount(_SECONDS)),
    "bytes": FuncFormatter(_amount(((1 << 30, " GiB"), (1 << 20, " MiB"), (1 << 10, " KiB"), (1, " B")))),
}

if __name__ == "__main__":
    sys.exit(main())
