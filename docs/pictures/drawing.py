"""How the pictures of the documentation are drawn: small SVG files that read well on white and on black.

The background is left out, text and axes are of a grey that stands out on both, and colours are those of Okabe and Ito,
which people with any colour vision tell apart. Text stays text, figures are rounded, and the dots of one colour are one
path, so that a file is small; the same picture gives the same bytes.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

BLUE, ORANGE, GREEN, PINK = "#0a84d0", "#e08a00", "#009e73", "#cc79a7"
GREY = "#7d8590"
SERIES_COLOURS = (BLUE, ORANGE, GREEN, PINK, "#56b4e9", "#c5b400", "#d55e00", "#8c6bb1", "#a0724a", GREY)
PANEL_WIDTH, PANEL_HEIGHT = 3.4, 2.2  # inches
DOT_SIZE = 3  # points

_STYLE = {
    "backend": "svg",
    "axes.edgecolor": GREY,
    "axes.labelcolor": GREY,
    "axes.prop_cycle": mpl.cycler(color=[BLUE, ORANGE, GREEN, PINK]),
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlecolor": GREY,
    "axes.titlesize": 10,
    "axes.titleweight": "bold",
    "axes.labelsize": 9,
    "font.family": "sans-serif",
    "font.sans-serif": ["Helvetica", "Arial", "DejaVu Sans"],
    "legend.fontsize": 8.5,
    "legend.frameon": False,
    "legend.labelcolor": GREY,
    "savefig.transparent": True,
    "svg.fonttype": "none",
    "svg.hashsalt": "metronome",
    "text.color": GREY,
    "xtick.color": GREY,
    "ytick.color": GREY,
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
}


def use_style() -> None:
    """For figures that are made from here on."""
    mpl.rcParams.update(_STYLE)


def panels(titles: Sequence[str], x_label: str, y_label: str, *, num_columns: int | None = None) -> list[Axes]:
    """Axes side by side, `num_columns` in a row (None: all), of one scale, so that they compare at a glance."""
    use_style()
    columns = num_columns or len(titles)
    rows = -(-len(titles) // columns)
    size = (PANEL_WIDTH * columns + 0.3, PANEL_HEIGHT * rows + 0.45)
    _, axes = plt.subplots(rows, columns, figsize=size, sharex=True, sharey=True, squeeze=False, layout="constrained")
    for panel, title in zip(axes.flat, titles, strict=True):
        panel.set_title(title, loc="left")
    for panel in axes[-1]:
        panel.set_xlabel(x_label)
    for panel in axes[:, 0]:
        panel.set_ylabel(y_label)
    return list(axes.flat)


def dots(panel: Axes, x: Sequence[float], y: Sequence[float], colour: str, label: str) -> None:
    panel.plot(x, y, linestyle="none", marker="o", markersize=DOT_SIZE, markeredgewidth=0, color=colour, label=label)


def steps(panel: Axes, values: Sequence[float], colour: str, label: str) -> None:
    """A filled figure a pass; equal ones next to each other are drawn as one."""
    changes = np.flatnonzero(np.diff(values)) + 1
    edges = np.concatenate(([0], changes, [len(values)]))
    panel.stairs(np.asarray(values)[edges[:-1]], edges, fill=True, color=colour, alpha=0.7, linewidth=0, label=label)


def save(panel: Axes, path: Path, *, num_columns: int | None = None) -> None:
    """Write the figure that `panel` is in, with a legend of all its panels under it, by default two columns a panel."""
    figure = panel.figure
    assert isinstance(figure, Figure)
    named = {}
    for axes in figure.axes:
        named |= {label: handle for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)}
    if named:
        columns = min(len(named), num_columns or 2 * figure.axes[0].get_gridspec().ncols)
        figure.legend(named.values(), named.keys(), loc="outside lower center", ncols=columns, markerscale=1.5)
    write(figure, path)


def write(figure: Figure, path: Path) -> None:
    """Write a figure, and be done with it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Date": None, "Creator": None})
    plt.close(figure)
    path.write_text(_small(path.read_text(encoding="utf-8")), encoding="utf-8")


def _small(svg: str) -> str:
    svg = re.sub(r"-?\d+\.\d{2,}(?=[^<>]*>)", lambda number: f"{float(number[0]):.1f}", svg)
    svg = re.sub(r"\n\s*", "\n", svg)
    svg = re.sub(r"<metadata>.*?</metadata>\n", "", svg, flags=re.DOTALL)
    return re.sub(rf"(?:{_DOT.pattern}\n?)+", _as_one_path, svg)


# A marker that is filled and has no edge: a dot of `dots`.
_DOT = re.compile(r'<use xlink:href="#\w+" x="([\d.]+)" y="([\d.]+)" style="fill: (#\w+)"/>')


def _as_one_path(run: re.Match[str]) -> str:
    """Lines of next to no length with round ends: as many dots of one colour in a tenth of the bytes."""
    found = _DOT.findall(run[0])
    (colour,) = {colour for _, _, colour in found}
    path = "".join(f"M{x} {y}h.1" for x, y, _ in found)
    # Not as attributes: matplotlib's style sheet for all elements would go before them.
    return f'<path d="{path}" style="stroke: {colour}; stroke-width: {DOT_SIZE}; stroke-linecap: round"/>\n'
