"""Writes the tables of docs/configuration.md from the services' own tables of settings.

python docs/tools/configuration.py
"""

from __future__ import annotations

import re
from itertools import groupby
from pathlib import Path

from executor_service.settings import EXECUTOR
from scheduler_service.settings import SCHEDULER
from service_shell.setting_sources import Program as ExecutorProgram
from service_shell.setting_sources import Program as SchedulerProgram

PAGE = Path(__file__).parents[1] / "configuration.md"


def table(program: SchedulerProgram | ExecutorProgram) -> str:
    """A row a setting, as Markdown."""
    rows = ["| setting | default | |", "| --- | --- | --- |"]
    for group, settings in groupby(program.settings, key=lambda setting: setting.group):
        rows.append(f"| **{group}** | | |")
        for setting in settings:
            default = "" if setting.default is None else f"`{setting.default}`"
            rows.append(f"| `{setting.name}` | {default} | {setting.help.replace('|', chr(92) + '|')} |")
    return "\n".join(rows)


def page(written: str) -> str:
    """The page with both tables as they are now."""
    for program in (SCHEDULER, EXECUTOR):
        marks = (f"<!-- settings of {program.name} -->\n", f"\n<!-- end of {program.name} -->")
        between = re.compile(re.escape(marks[0]) + ".*?" + re.escape(marks[1]), re.DOTALL)
        contents = marks[0] + table(program) + marks[1]
        written, count = between.subn(lambda _, contents=contents: contents, written)
        assert count == 1, f"{PAGE} has no place for {program.name}"
    return written


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
