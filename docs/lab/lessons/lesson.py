"""How a lesson is written: a page with its words, its command, the figures of a run and its picture.

The scripts beside this one play their runs and write `docs/lab/<name>.md` and `docs/images/lab/<name>.svg`; `make lab`
runs all. The same code gives the same bytes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from metronome_lab.report.charts import Chart
from metronome_lab.report.drawn import write_picture

DOCS = Path(__file__).parents[2]
WORKLOADS = DOCS / "lab" / "workloads"


def write_lesson(chart: Chart, *, words: str, headings: Sequence[str], rows: Mapping[str, Sequence[str]]) -> None:
    """`rows`: cells by the name of the run, one for each of `headings`. The chart's name is that of the files."""
    head = "| | " + " | ".join(headings) + " |\n| --- |" + " ---: |" * len(headings)
    body = "\n".join(f"| {name} | " + " | ".join(cells) + " |" for name, cells in rows.items())
    script = f"docs/lab/lessons/{chart.name}.py"
    text = (
        f"# {chart.title}\n\n{words.strip()}\n\n"
        f"![{chart.title}](../images/lab/{chart.name}.svg)\n\n{head}\n{body}\n\n"
        f"Written by `python {script}`, as is the picture.\n"
    )
    picture = DOCS / "images" / "lab" / f"{chart.name}.svg"
    picture.parent.mkdir(exist_ok=True)
    write_picture(chart, picture, num_columns=2)
    # A hundredth of a point is finer than any screen; more figures only make the file larger.
    drawn = re.sub(r"(\d\.\d\d)\d+", r"\1", picture.read_text())
    picture.write_text("\n".join(map(str.rstrip, drawn.splitlines())) + "\n")
    (DOCS / "lab" / f"{chart.name}.md").write_text(text)
    print(f"wrote docs/lab/{chart.name}.md")
