"""How a lesson is written: a page with its words, its command, the figures of a run and its picture.

The scripts beside this one play their runs and write `docs/lab/<name>.md` and `docs/images/lab/<name>.svg`; `make lab`
runs all. The same code gives the same bytes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from metronome_lab.records import Records
from metronome_lab.report.charts import Chart, Mark, Panel, Series, Values
from metronome_lab.report.drawn import write_picture

DOCS = Path(__file__).parents[2]
WORKLOADS = DOCS / "lab" / "workloads"


def write_lesson(chart: Chart, *, words: str, headings: Sequence[str], rows: Mapping[str, Sequence[str]]) -> None:
    """`rows`: cells by the name of the run, one for each of `headings`. The chart's name is that of the files."""
    script = f"docs/lab/lessons/{chart.name}.py"
    text = (
        f"# {chart.title}\n\n{words.strip()}\n\n"
        f"{draw(chart)}\n\n{table(headings, rows)}\n\n"
        f"Written by `python {script}`, as is the picture.\n"
    )
    (DOCS / "lab" / f"{chart.name}.md").write_text(text)
    print(f"wrote docs/lab/{chart.name}.md")


def waits_by_arrival(title: str, runs: Mapping[str, Records]) -> Chart:
    """How long each request waited, by its tenant; a panel a run."""
    return Chart(name="waits", title=title, panels=tuple(_waits(name, records) for name, records in runs.items()))


def waits_s(records: Records, tenant: str) -> Values:
    """[n] of its requests, in order of arrival."""
    requests, workload = records.requests, records.requests.workload
    own = workload.tenant == workload.tenants.index(tenant)
    waits: Values = ((requests.first_run_us - workload.arrival_us) / 1e6)[own]
    return waits


def _waits(name: str, records: Records) -> Panel:
    workload = records.requests.workload
    dots = tuple(
        Series(
            name=tenant,
            x=workload.arrival_us[workload.tenant == number] / 1e6,
            y=waits_s(records, tenant),
            mark=Mark.DOTS,
        )
        for number, tenant in enumerate(workload.tenants)
    )
    return Panel(title=name, x_label="arrival, s", y_label="wait, s", series=dots)


def table(headings: Sequence[str], rows: Mapping[str, Sequence[str]]) -> str:
    """In Markdown; `rows`: cells by name, one for each of `headings`."""
    head = "| | " + " | ".join(headings) + " |\n| --- |" + " ---: |" * len(headings)
    return head + "\n" + "\n".join(f"| {name} | " + " | ".join(cells) + " |" for name, cells in rows.items())


def draw(chart: Chart) -> str:
    """Write the picture of a chart. Returns what shows it on a page of the lab."""
    picture = DOCS / "images" / "lab" / f"{chart.name}.svg"
    picture.parent.mkdir(exist_ok=True)
    write_picture(chart, picture, num_columns=2)
    # A hundredth of a point is finer than any screen; more figures only make the file larger.
    drawn = re.sub(r"(\d\.\d\d)\d+", r"\1", picture.read_text())
    picture.write_text("\n".join(map(str.rstrip, drawn.splitlines())) + "\n")
    return f"![{chart.title}](../images/lab/{chart.name}.svg)"
