"""What docs/policies.md says of settings, shown by runs: pages of claims, each a heading, a table and its commands.

A claim names its runs as options of `metronome compare`, and its table has cells of the table which that prints. So the
commands on a page are what was played, and give the same figures to whoever types them. What the words say of the
figures is checked (`holds`) before a page is written.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from contextlib import chdir
from dataclasses import dataclass, replace
from typing import Any

import click

from lesson import DOCS, draw, table
from metronome_cli.lab_options import (
    fleet_from,
    fleet_options,
    policies_from,
    policies_options,
    scenario_from,
    scenario_options,
    target_options,
    targets_from,
)
from metronome_lab.comparison import Comparison, compare_runs
from metronome_lab.figures import Figures, TenantFigures
from metronome_lab.records import Records
from metronome_lab.report.charts import Chart
from metronome_lab.runs import Run

# As whoever types a command in the repository's root names them.
AZURE = "tests/data/traces/azure_2023_conv_code.csv"
WORKLOADS = "docs/lab/workloads"
Rows = Mapping[str, Figures]


def compare(scenario: str, *policies: str) -> str:
    """The options of `metronome compare` that play these policies."""
    return " ".join((scenario, *(f"--policy {policy}" for policy in policies)))


def tenant(figures: Figures, name: str) -> TenantFigures:
    return next(of_tenant for of_tenant in figures.tenants if of_tenant.name == name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """`plays`: options of `metronome compare`, by what tells them apart in the table; one alone may have no name.
    `shown`: labels of the table that it prints. `holds`: whether the figures, by row, are as the words say.
    """

    title: str
    words: str
    plays: Mapping[str, str]
    shown: Sequence[str]
    holds: Callable[[Rows], bool]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Played:
    """A claim and its runs by row; `cells`: what is shown of each, by what the row is called on the page."""

    claim: Claim
    records: Mapping[str, Records]
    figures: Rows
    cells: Mapping[str, Sequence[str]]


def play(claim: Claim) -> Played:
    """Run all that a claim names."""
    records: dict[str, Records] = {}
    figures: dict[str, Figures] = {}
    cells: dict[str, list[str]] = {}
    for name, options in claim.plays.items():
        comparison: Comparison = _compare.main(shlex.split(options), standalone_mode=False)
        shown = [comparison.rows()[label] for label in claim.shown]
        runs = zip(comparison.runs, comparison.records, comparison.figures(), *shown, strict=True)
        for run, of_run, figures_of_run, *of_row in runs:
            policy = run.name if len(comparison.runs) > 1 else ""
            row = ": ".join(filter(None, (name, policy)))
            records[row], figures[row] = of_run, figures_of_run
            cells[": ".join(filter(None, (name, policy and f"`{policy}`")))] = of_row
    return Played(claim=claim, records=records, figures=figures, cells=cells)


def write_claims(
    name: str, *, title: str, words: str, claims: Sequence[Claim], chart: Callable[[dict[str, Played]], Chart]
) -> None:
    """Play all claims, and write `docs/lab/<name>.md` and the picture that `chart` makes of them, by title."""
    with chdir(DOCS.parent):  # as whoever types the commands
        played = {claim.title: play(claim) for claim in claims}
    sections = "\n".join(_section(of_claim) for of_claim in played.values())
    wrong = [title for title, of_claim in played.items() if not of_claim.claim.holds(of_claim.figures)]
    if wrong:
        raise SystemExit(f"{sections}\nThe figures are not as the words say: {', '.join(wrong)}")
    picture = draw(replace(chart(played), name=name))
    written_by = f"Written by `python docs/lab/lessons/{name}.py`, as is the picture."
    text = f"# {title}\n\n{words.strip()}\n\n{picture}\n\n{sections}\n{written_by}\n"
    (DOCS / "lab" / f"{name}.md").write_text(text)
    print(f"wrote docs/lab/{name}.md")


def _section(played: Played) -> str:
    claim = played.claim
    commands = "\n".join(f"    metronome compare {options}" for options in claim.plays.values())
    return f"## {claim.title}\n\n{claim.words.strip()}\n\n{table(claim.shown, played.cells)}\n\n{commands}\n"


@click.command()
@scenario_options
@fleet_options
@policies_options
@target_options
def _compare(**options: Any) -> Comparison:
    policies, targets = policies_from(options), targets_from(options)
    scenario, fleet = scenario_from(options), fleet_from(options)
    runs = [Run(name=name, scenario=scenario, fleet=fleet, policy=policy) for name, policy in policies.items()]
    return compare_runs(runs, targets)
