"""Charts as pictures, drawn by matplotlib: PNG for slides, SVG for documents."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from metronome_lab.report.charts import Chart, Mark, Panel, Series

_GREY = "#7d8590"
_PANEL_INCHES = (4.6, 2.7)
_STYLE: Any = {
    "axes.edgecolor": _GREY,
    "axes.labelcolor": _GREY,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlecolor": _GREY,
    "axes.titlesize": 10,
    "font.size": 9,
    "legend.frameon": False,
    "legend.labelcolor": _GREY,
    "svg.fonttype": "none",
    "svg.hashsalt": "metronome",
    "text.color": _GREY,
    "xtick.color": _GREY,
    "ytick.color": _GREY,
}


def write_picture(chart: Chart, path: Path, *, num_columns: int = 3) -> None:
    """Write a chart as the suffix of `path` says, panels `num_columns` in a row. Raises OSError."""
    columns = min(num_columns, len(chart.panels))
    rows = -(-len(chart.panels) // columns)
    colours = chart.colours
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(_PANEL_INCHES[0] * columns, _PANEL_INCHES[1] * rows + 0.5), layout="constrained")
        grid = figure.subplots(rows, columns, squeeze=False)
        for axes, panel in zip(grid.flat, chart.panels, strict=False):
            _draw(axes, panel, colours)
        for axes in grid.flat[len(chart.panels) :]:
            axes.set_visible(False)
        entries = {
            label: handle for axes in grid.flat for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)
        }
        figure.suptitle(chart.title, color=_GREY)
        # So many letters are as wide as a panel; each entry has a mark before it.
        num_beside = 65 * columns // (6 + max(map(len, entries), default=0))
        ncols = max(min(len(entries), num_beside), 1)
        figure.legend(entries.values(), entries.keys(), loc="outside lower center", ncols=ncols)
        figure.savefig(
            path, dpi=150, transparent=path.suffix == ".svg", metadata={"Date": None} if path.suffix == ".svg" else None
        )


def _draw(axes: Axes, panel: Panel, colours: dict[str, str]) -> None:
    axes.set_title(panel.title, loc="left")
    axes.set_xlabel(panel.x_label)
    axes.set_ylabel(panel.y_label)
    areas = [series for series in panel.series if series.mark is Mark.AREA]
    if areas:
        names = [series.name for series in areas]
        axes.stackplot(areas[0].x, [s.y for s in areas], labels=names, colors=[colours[name] for name in names])
    for series in panel.series:
        _draw_series(axes, series, colours[series.name])
    if panel.log_x:
        axes.set_xscale("log")
    if panel.log_y:
        axes.set_yscale("log")


def _draw_series(axes: Axes, series: Series, colour: str) -> None:
    if series.mark is Mark.LINE:
        axes.plot(
            series.x, series.y, color=colour, label=series.name, linewidth=1.3, marker="o" if len(series.x) < 12 else ""
        )
    elif series.mark is Mark.DOTS:
        axes.plot(series.x, series.y, color=colour, label=series.name, linestyle="", marker=".", markersize=4)
    elif series.mark is Mark.SPANS and series.x_end is not None:
        axes.barh(series.y, series.x_end - series.x, left=series.x, height=0.8, color=colour, label=series.name)
