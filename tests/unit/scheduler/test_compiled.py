"""Machine code and plain Python plan alike, and machine code is kept where it can be."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from random import Random

import pytest

from scheduler_service.core import compiled
from scheduler_service.core.explain import why_each
from scheduler_service.core.placement import load_of_each
from scheduler_service.core.plan import decide, plan_executor
from scheduler_service.core.validate import examine, examine_tenants, validate
from scheduler_service.warm_up import UNUSED_SECONDS, drop_unused, warm_up
from support.random_states import random_executor, random_policy
from support.states import cluster_of

SEEDS = range(150)
PROGRAM = "from test_compiled import digests; print(*digests())"


def digests() -> list[int]:
    """What is planned for some busy states under policies of all kinds."""
    planned = []
    for seed in SEEDS:
        random = Random(seed)
        executor, policy = random_executor(random), random_policy(random)
        validate(cluster_of(executor))
        planned.append(plan_executor(executor, policy).digest)
    return planned


def test_plain_python_plans_the_same() -> None:
    path = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    environment = {**os.environ, "NUMBA_DISABLE_JIT": "1", "PYTHONPATH": path}
    command = [sys.executable, "-c", PROGRAM]
    run = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120, env=environment)
    assert [int(word) for word in run.stdout.split()] == digests()


def test_nothing_is_compiled_after_the_warm_up() -> None:
    warm_up()
    entries = (decide, why_each, examine, examine_tenants, load_of_each)
    before = [len(entry.signatures) for entry in entries]
    digests()
    assert [len(entry.signatures) for entry in entries] == before


def test_a_directory_that_cannot_be_written_to_is_of_use_if_everything_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert compiled._is_of_use(tmp_path / "new")

    def refuse(**_: object) -> None:
        raise PermissionError

    monkeypatch.setattr(compiled, "TemporaryFile", refuse)
    assert not compiled._is_of_use(tmp_path / "new")
    (tmp_path / "new" / compiled.COMPLETE).touch()
    assert compiled._is_of_use(tmp_path / "new")
    (tmp_path / "file").touch()
    assert not compiled._is_of_use(tmp_path / "file" / "new")


def test_what_other_versions_left_is_removed_once_nobody_has_used_it_for_a_week(tmp_path: Path) -> None:
    now = time.time()
    for name, age in (("used", 0.0), ("unused", UNUSED_SECONDS + 60.0), ("in-use", UNUSED_SECONDS + 60.0)):
        directory = tmp_path / f"compiled-{name}"
        directory.mkdir()
        (directory / compiled.COMPLETE).touch()
        os.utime(directory / compiled.COMPLETE, (now - age, now - age))
    (tmp_path / "compiled-by-another-just-now").mkdir()
    drop_unused(tmp_path / "compiled-in-use")
    left = sorted(path.name for path in tmp_path.iterdir())
    assert left == ["compiled-by-another-just-now", "compiled-in-use", "compiled-used"]
