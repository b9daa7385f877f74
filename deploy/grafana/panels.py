"""What the dashboards are made of: panels by title, unit and PromQL."""

from __future__ import annotations

from collections.abc import Mapping

from grafana_foundation_sdk.builders import common, dashboard, prometheus, timeseries
from grafana_foundation_sdk.models.common import LegendDisplayMode, LegendPlacement, StackingMode, TooltipDisplayMode
from grafana_foundation_sdk.models.dashboard import (
    DashboardCursorSync,
    DataSourceRef,
    VariableOption,
    VariableRefresh,
)

SOURCE = DataSourceRef(type_val="prometheus", uid="prometheus")
WIDTH, HEIGHT = 8, 7  # three in a row of Grafana's 24 columns

HERE = 'instance=~"$instance"'
"""The processes chosen on a dashboard with `instances_of`."""

Queries = Mapping[str, str]
"""PromQL by the legend, in which `{{label}}` stands for a label's value."""


def panel(title: str, text: str, unit: str, queries: Queries, *, stacked: bool = False) -> timeseries.Panel:
    """Lines over time. `unit`: one of Grafana's ids. `text`: what a person is to think when it rises."""
    made = (
        timeseries.Panel()
        .title(title)
        .description(text)
        .datasource(SOURCE)
        .unit(unit)
        .min(0)
        .height(HEIGHT)
        .span(WIDTH)
        .fill_opacity(40 if stacked else 8)
        .line_width(1)
        .legend(
            common.VizLegendOptions()
            .display_mode(LegendDisplayMode.LIST)
            .placement(LegendPlacement.BOTTOM)
            .show_legend(True)
        )
        .tooltip(common.VizTooltipOptions().mode(TooltipDisplayMode.MULTI))
    )
    if stacked:
        made.stacking(common.StackingConfig().mode(StackingMode.NORMAL).group("A"))
    for place, (legend, expression) in enumerate(queries.items()):
        target = prometheus.Dataquery().expr(expression).legend_format(legend).ref_id(chr(ord("A") + place))
        made.with_target(target.datasource(SOURCE))
    return made


def rate(counter: str, *, by: str = "", where: str = "") -> str:
    """How fast a counter grows, a second, over all series or by a label."""
    grouping = f" by ({by})" if by else ""
    return f"sum{grouping} (rate({counter}{{{where}}}[$__rate_interval]))"


def reasons(counter: str, labels: str, *, everything: str = "", where: str = "") -> Queries:
    """How fast a counter grows: in all, and by each of its labels that has any.

    ``everything``: what is counted, where a panel counts more than one thing.
    """
    legend = ", ".join(f"{{{{{label}}}}}" for label in labels.split(", "))
    return {
        everything or "all": rate(counter, where=where),
        f"{everything}: {legend}" if everything else legend: f"{rate(counter, by=labels, where=where)} > 0",
    }


def outcomes(where: str = "") -> Queries:
    """How fast requests end, by how: answers always, and of the others those that there are."""
    counter, answers = "metronome_requests_finished_total", 'reason=~"stop|length"'
    others = ", ".join(filter(None, (where, 'reason!~"stop|length"')))
    return {
        "{{reason}}": rate(counter, by="reason", where=", ".join(filter(None, (where, answers)))),
        "{{reason}} ": f"{rate(counter, by='reason', where=others)} > 0",
    }


def percentiles(histogram: str, where: str = "") -> Queries:
    """Median, 90th and 99th percentile of a histogram."""
    buckets = rate(f"{histogram}_bucket", by="le", where=where)
    return {f"p{round(share * 100)}": f"histogram_quantile({share}, {buckets})" for share in (0.5, 0.9, 0.99)}


def mean(histogram: str, *, by: str = "", where: str = "") -> str:
    """Mean of what a histogram was given."""
    return f"{rate(f'{histogram}_sum', by=by, where=where)} / {rate(f'{histogram}_count', by=by, where=where)}"


def board(title: str, uid: str, text: str, rows: Mapping[str, list[timeseries.Panel]]) -> dashboard.Dashboard:
    """A dashboard; panels stand in rows that have a heading."""
    made = (
        dashboard.Dashboard(title)
        .uid(uid)
        .description(text)
        .tags(["metronome"])
        .readonly()
        .tooltip(DashboardCursorSync.CROSSHAIR)
        .refresh("10s")
        .time("now-30m", "now")
        .timezone("browser")
        .link(dashboard.DashboardLink("Metronome").type("dashboards").tags(["metronome"]).as_dropdown(False))
    )
    for heading, panels in rows.items():
        made.with_row(dashboard.Row(heading))
        for one in panels:
            made.with_panel(one)
    return made


def instances_of(job: str) -> dashboard.QueryVariable:
    """A choice of the processes of a job: all, one or some, as `$instance`."""
    return (
        dashboard.QueryVariable("instance")
        .label("instance")
        .datasource(SOURCE)
        .query(f'label_values(up{{job="{job}"}}, instance)')
        .refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)
        .multi(True)
        .include_all(True)
        .all_value(".*")
        .current(VariableOption(selected=True, text="All", value="$__all"))
    )
