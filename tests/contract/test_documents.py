"""What the READMEs and guides show is run as it stands there, against real services of the tests."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from metronome_cli.main import run_command
from metronome_conformance import load_scenarios
from metronome_conformance.planner import ServedPlanner
from support.services import Service

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "clients/examples/python"
BIN = Path(sys.executable).parent


def blocks(document: str, language: str = "python") -> list[str]:
    text = (ROOT / document).read_text(encoding="utf-8")
    return re.findall(rf"```{language}\n(.*?)```", text, flags=re.DOTALL)


def shown(document: str, program: str) -> list[str]:
    """Lines that start with `$ program`, those that go on in the next line whole."""
    text = (ROOT / document).read_text(encoding="utf-8").replace("\\\n", " ")
    return [line.strip().removeprefix("$ ") for line in text.split("\n") if line.startswith(f"    $ {program} ")]


def at(text: str, scheduler: str, executor: str) -> str:
    """The text with the addresses of the test's services."""
    return text.replace("127.0.0.1:50051", scheduler).replace("127.0.0.1:50052", executor)


SNIPPETS = [
    pytest.param(code, id=f"{document}-{number}")
    for document in ("README.md", "clients/python/README.md")
    for number, code in enumerate(blocks(document), start=1)
]


@pytest.mark.parametrize("code", SNIPPETS)
def test_a_snippet_runs(code: str, scheduler: Service, executor: Service, capsys: pytest.CaptureFixture[str]) -> None:
    code = at(code, scheduler.address, executor.address)
    exec(compile(code, "snippet", "exec"), {"__name__": "__main__"})
    assert capsys.readouterr().out


def test_the_grpcurl_lines_of_the_readme(scheduler: Service, executor: Service) -> None:
    lines = shown("README.md", "grpcurl")
    assert len(lines) >= 5
    for line in lines:
        command = [str(BIN / "grpcurl"), *shlex.split(at(line, scheduler.address, executor.address))[1:]]
        result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert result.returncode == 0, f"{line}: {result.stderr}"
        assert result.stdout, line


def test_the_guide_shows_code_that_is_there() -> None:
    source = (EXAMPLE / "executor.py").read_text(encoding="utf-8")
    excerpts = blocks("docs/bring-your-own.md")
    assert len(excerpts) >= 4
    for excerpt in excerpts:
        assert excerpt in source or textwrap.indent(excerpt, "    ") in source, excerpt.splitlines()[0]


@contextmanager
def example_executor(scheduler: str) -> Iterator[str]:
    """The example as the guide starts it, on a free port."""
    (line,) = {line.partition(" --port")[0] for line in shown("docs/bring-your-own.md", "python")}
    command = [sys.executable, *line.split()[1:], "--port", "0", "--scheduler", scheduler]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield process.stdout.readline().split()[-1]
        finally:
            process.kill()


def test_the_example_answers_under_a_real_scheduler(scheduler: Service, capsys: pytest.CaptureFixture[str]) -> None:
    (line,) = shown("docs/bring-your-own.md", "metronome generate")
    with example_executor(scheduler.address) as address:
        assert run_command(shlex.split(at(line, scheduler.address, address))[1:]) == 0
    assert len(capsys.readouterr().out.strip()) == 12


def test_the_example_keeps_every_promise(capsys: pytest.CaptureFixture[str]) -> None:
    """As the guide runs the kit, which listens before the executor asks."""
    (line,) = shown("docs/bring-your-own.md", "metronome conformance executor")
    probe = ServedPlanner("127.0.0.1:0")
    kit = probe.address
    probe.close()
    with example_executor(kit) as address:
        line = at(line, "", address).replace("127.0.0.1:50061", kit)
        assert run_command(shlex.split(line)[1:]) == 0, capsys.readouterr().out
    assert "broken" not in capsys.readouterr().out


def test_the_readme_quotes_as_many_scenarios_as_there_are() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    for kind in ("scheduler", "executor", "client"):
        num = len(load_scenarios(kind))
        (row,) = (line for line in text.split("\n") if line.startswith(f"| scenarios of {kind}s"))
        told = [cell for cell in row.split("|")[2:] if cell.strip()]
        assert len(told) == (3 if kind == "client" else 2)
        assert all(cell == f" {num} of {num} hold " for cell in told), row
