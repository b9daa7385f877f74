"""Names of transformers are found out once; a cache that is gone, damaged or of other files costs time alone."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from executor_service.model.kept_names import Names, kept

FOUND: Names = {frozenset(): {"models.a.configuration_a": {"A", "B"}}, frozenset({"torch"}): {"models.a.a": {"C"}}}


class Finding:
    """Says what was found, and counts how often it was asked."""

    def __init__(self) -> None:
        self.num_asked = 0

    def __call__(self, directory: str | Path, prefix: str | None = None) -> Names:
        self.num_asked += 1
        return {needed: {module: set(names) for module, names in modules.items()} for needed, modules in FOUND.items()}


@pytest.fixture
def models(tmp_path: Path) -> Path:
    directory = tmp_path / "models"
    (directory / "a").mkdir(parents=True)
    (directory / "a" / "modeling_a.py").write_text("C = 1")
    return directory


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def num_asked(models: Path, cache: Path) -> int:
    finding = Finding()
    names = kept(finding, cache)(models, prefix="models")
    assert names == FOUND
    names[frozenset()]["more"] = {"D"}  # which is what transformers does with it
    return finding.num_asked


def test_they_are_found_out_once(models: Path, cache: Path) -> None:
    assert [num_asked(models, cache) for _ in range(3)] == [1, 0, 0]
    assert len(list(cache.iterdir())) == 1


@pytest.mark.parametrize(
    "damage",
    [
        lambda file: file.unlink(),
        lambda file: file.write_text(""),
        lambda file: file.write_bytes(file.read_bytes()[:-20]),
        lambda file: file.write_bytes(b"\xff\xfe"),
        lambda file: file.write_text("[]"),
        lambda file: file.write_text(file.read_text().replace('"names": [', '"names": [1, ')),
    ],
    ids=["deleted", "empty", "cut off", "no text", "something else", "odd"],
)
def test_a_damaged_cache_is_written_anew(models: Path, cache: Path, damage: Callable[[Path], object]) -> None:
    num_asked(models, cache)
    damage(next(cache.iterdir()))
    assert [num_asked(models, cache) for _ in range(2)] == [1, 0]


@pytest.mark.parametrize(
    "change",
    [
        lambda models: (models / "a" / "modeling_a.py").write_text("CD = 1"),
        lambda models: (models / "b.py").touch(),
        lambda models: (models / "a" / "modeling_a.py").rename(models / "a" / "modeling_b.py"),
    ],
    ids=["changed", "new", "renamed"],
)
def test_other_files_are_looked_at_again(models: Path, cache: Path, change: Callable[[Path], object]) -> None:
    num_asked(models, cache)
    change(models)
    assert [num_asked(models, cache) for _ in range(2)] == [1, 0]
    assert len(list(cache.iterdir())) == 1


def test_without_a_place_to_keep_them_they_are_found_out_each_time(models: Path, cache: Path) -> None:
    cache.write_text("no directory")
    assert [num_asked(models, cache) for _ in range(2)] == [1, 1]


def test_other_questions_are_passed_on(models: Path, cache: Path) -> None:
    finding = Finding()
    assert kept(finding, cache)(models / "a") == FOUND
    assert (finding.num_asked, cache.exists()) == (1, False)


PROGRAM = """
import sys
from pathlib import Path

from executor_service.model.kept_names import import_transformers

import_transformers(Path(sys.argv[1]))
from transformers import AutoConfig, LlamaForCausalLM
from transformers.utils.import_utils import define_import_structure
print(LlamaForCausalLM.__module__)
"""


def test_executors_that_start_at_once_import_it_and_one_that_starts_later_does(cache: Path) -> None:
    command = [sys.executable, "-c", PROGRAM, str(cache)]
    for _ in range(2):
        started = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
        assert [process.communicate(timeout=300)[0] for process in started] == [
            "transformers.models.llama.modeling_llama\n"
        ] * 2
        assert [file.name for file in cache.iterdir()] == ["transformers-names.json"]
