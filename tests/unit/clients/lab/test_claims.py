"""Pages of claims: what they say was played is what their scripts play, and docs/policies.md leads to them."""

from __future__ import annotations

import importlib
import re
import shlex
from pathlib import Path
from types import ModuleType

import pytest

from metronome_cli.commands.compare import compare
from metronome_cli.lab_options import fleet_from, policies_from, scenario_from

ROOT = Path(__file__).parents[4]
LAB = ROOT / "docs" / "lab"
POLICIES = ROOT / "docs" / "policies.md"
LINK = re.compile(r"\]\(lab/([A-Za-z-]+\.md)(?:#([a-z0-9-]+))?\)")


@pytest.fixture(params=["order", "room", "passes", "arrivals"])
def script(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(LAB / "lessons")
    return importlib.import_module(request.param)


def headings(page: Path) -> list[str]:
    return re.findall(r"^## (.+)$", page.read_text(), flags=re.MULTILINE)


def anchor(heading: str) -> str:
    """As GitHub makes it."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def test_a_page_has_the_claims_and_the_commands_of_its_script(script: ModuleType) -> None:
    page = LAB / f"{script.NAME}.md"

    assert headings(page) == [claim.title for claim in script.CLAIMS]
    commands = re.findall(r"^    metronome compare (.+)$", page.read_text(), flags=re.MULTILINE)
    assert commands == [options for claim in script.CLAIMS for options in claim.plays.values()]
    for claim in script.CLAIMS:
        assert claim.words.strip() in page.read_text()


def test_the_command_line_takes_the_commands_of_a_page(script: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    for claim in script.CLAIMS:
        for options in claim.plays.values():
            given = compare.make_context("compare", shlex.split(options)).params

            assert policies_from(given)
            assert fleet_from(given)
            assert scenario_from(given).path.exists()


def test_each_claim_of_a_page_is_one_that_the_page_of_policies_links_to(script: ModuleType) -> None:
    linked = {target for page, target in LINK.findall(POLICIES.read_text()) if page == f"{script.NAME}.md"}

    assert linked == {anchor(claim.title) for claim in script.CLAIMS}


def test_links_from_the_page_of_policies_lead_to_headings() -> None:
    for page, target in LINK.findall(POLICIES.read_text()):
        assert not target or target in {anchor(heading) for heading in headings(LAB / page)}, (page, target)


def test_each_section_of_the_page_of_policies_that_says_what_a_setting_does_leads_to_the_lab() -> None:
    sections = re.split(r"^## ", POLICIES.read_text(), flags=re.MULTILINE)[1:]

    without = {section.splitlines()[0] for section in sections if not LINK.search(section)}
    assert without == set()
