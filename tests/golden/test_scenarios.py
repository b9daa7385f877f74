"""Each file in `scheduler/` is a state, commands, and the plans that they print; see `support/scenarios.py`."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.scenario_commands import render
from support.scenarios import parse

SCENARIOS = sorted((Path(__file__).parent / "scheduler").glob("*.txt"))


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_scenario(path: Path, update_golden: bool) -> None:
    text = path.read_text(encoding="utf-8")
    rendered = render(parse(text))
    if update_golden:
        path.write_text(rendered, encoding="utf-8")
    else:
        assert rendered == text


def test_there_are_scenarios() -> None:
    assert len(SCENARIOS) >= 15
