"""docs/cases.md names tests and scenarios that are there, and each of them that names a case."""

from __future__ import annotations

import re
from pathlib import Path

import yaml

TESTS = Path(__file__).parents[1]
TABLE = TESTS.parent / "docs" / "cases.md"
KIT = TESTS.parent / "clients" / "conformance" / "metronome_conformance" / "scenarios"
HELD = range(1, 51)
# Those that a peer of any language must keep to.
OF_THE_CONTRACT = {4, 5, 7, *range(32, 35), *range(42, 49)}

_ROW = re.compile(r"^\| (\d+) \| [^|]+ \| (.+) \|$", re.MULTILINE)
_HOLDER = re.compile(r"`((?!tests/)[^`]+\.(?:py|txt|yaml))`(?: `(\w+)`)?")


def rows() -> dict[int, list[tuple[str, str]]]:
    """Path and name of each test, by case; no name for a scenario."""
    return {int(number): _HOLDER.findall(tests) for number, tests in _ROW.findall(TABLE.read_text(encoding="utf-8"))}


def test_every_case_is_held_by_something() -> None:
    table = rows()
    assert set(HELD) <= table.keys()
    assert all(table.values())
    in_the_kit = {case for case, tests in table.items() if any(path.startswith("kit/") for path, _ in tests)}
    assert in_the_kit >= OF_THE_CONTRACT


def test_the_tests_that_are_named_are_there() -> None:
    holders = _HOLDER.findall(TABLE.read_text(encoding="utf-8"))
    assert len(holders) > len(HELD)
    for path, name in holders:
        if path.startswith("kit/"):
            assert (KIT / path.removeprefix("kit/")).exists(), path
            continue
        text = (TESTS / path).read_text(encoding="utf-8")
        assert not name or re.search(rf"^ *(async )?def {name}\(", text, re.MULTILINE), f"no {name} in {path}"
        assert name or path.endswith(".txt"), f"which test of {path}?"


def test_a_test_that_names_a_case_is_in_its_row() -> None:
    table = rows()
    for path in TESTS.rglob("test_*.py"):
        for name, case in re.findall(r"def (test_case_(\d+)_\w+)", path.read_text(encoding="utf-8")):
            assert (path.relative_to(TESTS).as_posix(), name) in table[int(case)], f"{name} is not in docs/cases.md"
    for path in (TESTS / "golden" / "scheduler").glob("case_*.txt"):
        case = int(path.name.split("_")[1])
        assert (path.relative_to(TESTS).as_posix(), "") in table[case], f"{path.name} is not in docs/cases.md"
    for path in KIT.rglob("*.yaml"):
        source = yaml.safe_load(path.read_text(encoding="utf-8"))["source"]
        for cases in re.findall(r"\bcases? ([\d, and]+)", source):
            for case in re.findall(r"\d+", cases):
                name = f"kit/{path.relative_to(KIT).as_posix()}"
                assert (name, "") in table[int(case)], f"{name} is not in row {case} of docs/cases.md"
