"""What goes with the contract: `breaking.sh` keeps its promise, its table of reasons is whole, its document current."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from google.protobuf.descriptor import EnumDescriptor

from metronome.inference.v1 import error_reason_pb2 as inference_reasons
from metronome.scheduler.v1 import error_reason_pb2 as scheduler_reasons

ROOT = Path(__file__).parents[3]
BUF = Path(sys.executable).parent / "buf"
ROW = re.compile(r"\| ([A-Z_]+) \| `([A-Z_]+)` \| .+ \| .+ \|")


def table(domain: str) -> dict[str, str]:
    """Status code by reason, as the table of proto/README.md has them."""
    text = (ROOT / "proto/README.md").read_text(encoding="utf-8")
    section = text.split(f"### `{domain}`")[1].split("\n#")[0]
    return {match[2]: match[1] for match in ROW.finditer(section)}


def commented(package: str) -> dict[str, str]:
    """The same as the comments of error_reason.proto have them: each begins with its code."""
    text = (ROOT / f"proto/metronome/{package}/v1/error_reason.proto").read_text(encoding="utf-8")
    found = re.findall(r"\n  // ([A-Z_]+): (?:.*\n  //)*?.*\n  ERROR_REASON_([A-Z_]+) =", text)
    return {reason: code for code, reason in found}


@pytest.mark.parametrize(
    ("domain", "package", "enum"),
    [
        ("scheduler.metronome", "scheduler", scheduler_reasons.ErrorReason.DESCRIPTOR),
        ("executor.metronome", "inference", inference_reasons.ErrorReason.DESCRIPTOR),
    ],
)
def test_the_table_has_every_reason_with_its_code(domain: str, package: str, enum: EnumDescriptor) -> None:
    reasons = {value.name.removeprefix("ERROR_REASON_") for value in enum.values if value.number}
    assert set(table(domain)) == reasons
    assert table(domain) == commented(package)


def test_the_codes_that_an_executor_gives_are_those_of_the_table() -> None:
    from executor_service.errors import ServiceError

    reasons = inference_reasons.ErrorReason.DESCRIPTOR.values_by_name
    for reason, code in table("executor.metronome").items():
        assert ServiceError(reasons[f"ERROR_REASON_{reason}"].number, "").code.name == code  # type: ignore[arg-type]


def test_the_document_is_current() -> None:
    tool = ROOT / "proto/tools/document.py"
    written = subprocess.run([sys.executable, str(tool)], check=True, capture_output=True, text=True).stdout
    assert written == (ROOT / "docs/contract.md").read_text(encoding="utf-8")


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A repository of its own with the contract of today on main."""
    shutil.copytree(ROOT / "proto", tmp_path / "proto", ignore=shutil.ignore_patterns("python"))
    git(tmp_path, "init", "--quiet", "--initial-branch=main")
    commit(tmp_path, "today")
    return tmp_path


def git(directory: Path, *arguments: str) -> None:
    who = ["-c", "user.name=test", "-c", "user.email=test@localhost"]
    subprocess.run(["git", "-C", str(directory), *who, *arguments], check=True, capture_output=True)


def commit(directory: Path, message: str) -> None:
    git(directory, "add", "--all")
    git(directory, "commit", "--quiet", "--allow-empty", "--message", message)


def breaking(directory: Path) -> subprocess.CompletedProcess[str]:
    command = [str(directory / "proto/tools/breaking.sh"), str(BUF)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def edit(clone: Path, old: str, new: str) -> None:
    file = clone / "proto/metronome/executor/v1/executor.proto"
    text = file.read_text(encoding="utf-8")
    assert old in text
    file.write_text(text.replace(old, new), encoding="utf-8")


def test_a_field_that_is_added_breaks_nobody(clone: Path) -> None:
    git(clone, "switch", "--quiet", "--create", "branch")
    edit(clone, "message DrainRequest {}", "message DrainRequest {\n  // Why.\n  string why = 1;\n}")
    commit(clone, "adds a field")
    result = breaking(clone)
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize("on_main", [True, False], ids=["on main", "on a branch"])
def test_a_field_that_changes_its_number_is_found(clone: Path, on_main: bool) -> None:
    if not on_main:
        git(clone, "switch", "--quiet", "--create", "branch")
    edit(clone, "int64 total_us = 24;", "int64 total_us = 99;")
    commit(clone, "renumbers a field")
    result = breaking(clone)
    assert result.returncode == 1
    assert "total_us" in result.stdout


def test_a_clone_without_a_base_says_so_and_goes_on(clone: Path) -> None:
    result = breaking(clone)  # one commit: main is here, and nothing is before it
    assert result.returncode == 0
    assert "not compared" in result.stderr
