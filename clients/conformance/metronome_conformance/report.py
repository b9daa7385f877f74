"""What the kit found: a verdict for each scenario, as a table and as JUnit XML."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from xml.etree import ElementTree

from metronome_conformance.scenario import Scenario


class Verdict(enum.Enum):
    """Whether a promise is kept. `SKIPPED`: this server has not what the promise is about."""

    HOLDS = "holds"
    BROKEN = "broken"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """A scenario, its verdict, and why: each finding is a sentence."""

    scenario: Scenario
    verdict: Verdict
    findings: tuple[str, ...] = ()
    seconds: float = 0.0


def all_hold(results: Sequence[Result]) -> bool:
    """Whether nothing is broken, and something was seen to hold."""
    verdicts = {result.verdict for result in results}
    return Verdict.HOLDS in verdicts and Verdict.BROKEN not in verdicts


def junit_xml(results: Sequence[Result]) -> str:
    """The report that CI systems read: a test case a scenario."""
    suite = ElementTree.Element(
        "testsuite",
        name="metronome conformance",
        tests=str(len(results)),
        failures=str(sum(result.verdict is Verdict.BROKEN for result in results)),
        skipped=str(sum(result.verdict is Verdict.SKIPPED for result in results)),
    )
    for result in results:
        scenario = result.scenario
        case = ElementTree.SubElement(
            suite, "testcase", classname=scenario.kind, name=scenario.name, time=f"{result.seconds:.3f}"
        )
        ElementTree.SubElement(case, "system-out").text = f"{scenario.promise} ({scenario.source})"
        text = "\n".join(result.findings)
        if result.verdict is Verdict.BROKEN:
            ElementTree.SubElement(case, "failure", message=result.findings[0]).text = text
        if result.verdict is Verdict.SKIPPED:
            ElementTree.SubElement(case, "skipped", message=text)
    ElementTree.indent(suite)
    return ElementTree.tostring(suite, encoding="unicode", xml_declaration=True) + "\n"
