"""Writes the dashboards as Grafana reads them: `python describe.py [DIRECTORY]`, or `make dashboards`.

A dashboard as JSON is a thousand lines that nobody reviews. What is reviewed is fleet.py, executor.py and policy.py; a
test holds the files to them.
"""

from __future__ import annotations

import sys
from pathlib import Path

from grafana_foundation_sdk.cog.encoder import JSONEncoder

from executor import executor
from fleet import fleet
from panels import instances_of
from policy import policy

DIRECTORY = Path(__file__).parent / "dashboards"


def main(directory: Path) -> None:
    dashboards = {
        "fleet": fleet(),
        "executor": executor().with_variable(instances_of("executor")),
        "scheduler-policy": policy().with_variable(instances_of("scheduler")),
    }
    for name, made in dashboards.items():
        text = JSONEncoder(sort_keys=True, indent=1).encode(made.build())
        (directory / f"{name}.json").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else DIRECTORY)
