"""No more threads than cores that may be used."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from executor_service import cores
from executor_service.cores import usable_threads


@pytest.fixture(autouse=True)
def five_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 5)


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ([], 5),
        (["max 100000\n"], 5),
        (["200000 100000\n"], 2),
        (["250000 100000\n"], 3),
        (["10000 100000\n"], 1),
        (["900000 100000\n"], 5),
        (["-1\n", "100000\n"], 5),
        (["150000\n", "100000\n"], 2),
    ],
)
def test_a_containers_share_bounds_the_threads(
    files: list[str], expected: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = [tmp_path / str(number) for number in range(max(1, len(files)))]
    for path, text in zip(paths, files, strict=False):
        path.write_text(text)
    monkeypatch.setattr(cores, "_QUOTAS", (tuple(paths),))
    assert usable_threads() == expected
