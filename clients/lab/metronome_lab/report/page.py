"""One HTML file with a table and charts that answer to the mouse. It opens without a network: the library is in it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from metronome_lab.report.charts import FEW_POINTS, Chart, Mark, Panel, Series

_PANEL_HEIGHT = 340  # pixels
_NUM_COLUMNS = 3
_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<title>{title}</title>
<style>
body {{ font: 15px/1.45 system-ui, sans-serif; margin: 2rem auto; max-width: 1500px; padding: 0 1rem; color: #222; }}
table {{ border-collapse: collapse; margin: 1rem 0; }}
th, td {{ padding: .25rem .9rem; text-align: right; border-bottom: 1px solid #ddd; }}
th:first-child, td:first-child {{ text-align: left; }}
</style>
<script>{library}</script>
</head>
<body>
<h1>{title}</h1>
<p>{settings}</p>
{table}
{charts}
</body>
</html>
"""


def page(
    title: str,
    settings: Sequence[str],
    table: Mapping[str, Sequence[str]],
    names: Sequence[str],
    charts: Sequence[Chart],
) -> str:
    """`table`: cells of each row, by its label, one for each of `names`."""
    from plotly.offline import get_plotlyjs  # half a second to import, and needed here alone

    return _PAGE.format(
        title=escape(title),
        library=get_plotlyjs(),
        settings="<br>".join(map(escape, settings)),
        table=_table(table, names),
        charts="\n".join(f"<h2>{escape(chart.title)}</h2>\n{_chart(chart)}" for chart in charts),
    )


def _table(table: Mapping[str, Sequence[str]], names: Sequence[str]) -> str:
    head = "".join(f"<th>{escape(name)}</th>" for name in ("", *names))
    rows = (
        f"<tr><td>{escape(label)}</td>{''.join(f'<td>{escape(cell)}</td>' for cell in cells)}</tr>"
        for label, cells in table.items()
    )
    return f"<table>\n<tr>{head}</tr>\n" + "\n".join(rows) + "\n</table>"


def _chart(chart: Chart) -> str:
    from plotly.graph_objects import Figure
    from plotly.subplots import make_subplots

    columns = min(_NUM_COLUMNS, len(chart.panels))
    rows = -(-len(chart.panels) // columns)
    figure: Figure = make_subplots(rows=rows, cols=columns, subplot_titles=[panel.title for panel in chart.panels])
    colours, shown = chart.colours, set[str]()
    for number, panel in enumerate(chart.panels):
        place = {"row": number // columns + 1, "col": number % columns + 1}
        for series in panel.series:
            figure.add_trace(_trace(series, colours[series.name], f"stack-{number}", series.name not in shown), **place)
            shown.add(series.name)
        _label(figure, panel, place)
    height = _PANEL_HEIGHT * rows + 60
    figure.update_layout(template="plotly_white", height=height, barmode="overlay", margin={"t": 40, "b": 40})
    html: str = figure.to_html(full_html=False, include_plotlyjs=False, div_id=f"chart-{chart.name}")
    return html


def _label(figure: Any, panel: Panel, place: dict[str, int]) -> None:
    figure.update_xaxes(title_text=panel.x_label, type="log" if panel.log_x else "linear", **place)
    figure.update_yaxes(title_text=panel.y_label, type="log" if panel.log_y else "linear", **place)


def _trace(series: Series, colour: str, stack: str, in_legend: bool) -> Any:
    from plotly.graph_objects import Bar, Scatter

    common = {"name": series.name, "legendgroup": series.name, "showlegend": in_legend}
    if series.mark is Mark.SPANS and series.x_end is not None:
        widths = (series.x_end - series.x).tolist()
        bars = {"base": series.x.tolist(), "x": widths, "y": series.y.tolist(), "orientation": "h"}
        return Bar(**bars, marker_color=colour, **common)
    points = {"x": series.x.tolist(), "y": series.y.tolist(), "line_color": colour, "mode": "lines"}
    if series.mark is Mark.AREA:
        return Scatter(**points, stackgroup=stack, **common)
    few = "lines+markers" if len(series.x) < FEW_POINTS else "lines"
    return Scatter(**points | {"mode": "markers" if series.mark is Mark.DOTS else few}, **common)
