"""Compiling: once for each source, compiler and processor, and a sentence where it cannot be done."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest
import torch

from executor_service.kernels.build import KernelBuildError, build
from executor_service.kernels.choice import KernelChoice
from executor_service.kernels.cpu import CpuKernels
from executor_service.kernels.load import load_kernels
from support.kernels import compiled_kernels


@pytest.fixture(autouse=True)
def _needs_a_compiler() -> None:
    compiled_kernels(torch.float32)


def quiet(line: str) -> None:
    """Nobody watches."""


def compiler(directory: Path, script: str) -> str:
    path = directory / "compiler"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """In the place of the kernels, which take half a minute."""
    path = tmp_path / "small.cpp"
    path.write_text('extern "C" int one() { return 1; }')
    monkeypatch.setattr("executor_service.kernels.build.SOURCES", (path,))
    return path


@pytest.mark.usefixtures("source")
def test_a_library_is_compiled_once(tmp_path: Path) -> None:
    lines: list[str] = []
    library = build(tmp_path, lines.append)
    first_build_ns = library.stat().st_mtime_ns
    assert build(tmp_path, lines.append) == library
    assert library.stat().st_mtime_ns == first_build_ns
    assert len(lines) == 1
    assert [path.name for path in library.parent.iterdir()] == [library.name]  # nothing is left lying about


def test_another_source_is_another_library(tmp_path: Path, source: Path) -> None:
    before = build(tmp_path, quiet)
    source.write_text("// Another one.\n")
    assert build(tmp_path, quiet) != before


@pytest.mark.parametrize(
    ("script", "message"),
    [
        (
            'test "$1" = --version || { echo "cpu.cpp:1: error: no such flag" >&2; exit 1; }',
            "cpu.cpp:1: error: no such",
        ),
        ('test "$1" = --version || exit 7', "status 7"),
    ],
)
def test_a_compiler_that_fails_is_told_in_one_line(
    script: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", compiler(tmp_path, script))
    with pytest.raises(KernelBuildError, match=message) as raised:
        build(tmp_path / "cache", quiet)
    assert "\n" not in str(raised.value)
    assert list((tmp_path / "cache" / "kernels").iterdir()) == []


def test_no_compiler_at_all_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(KernelBuildError, match="no compiler of C"):
        build(tmp_path, quiet)


def test_a_cache_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "kernels").write_text("a file where a directory has to be")
    with pytest.raises(KernelBuildError, match="cannot keep compiled kernels"):
        build(tmp_path, quiet)


def test_a_damaged_library_is_told(tmp_path: Path) -> None:
    (tmp_path / "damaged.so").write_bytes(b"no library")
    with pytest.raises(KernelBuildError, match="cannot load"):
        CpuKernels(tmp_path / "damaged.so", torch.float32)


@pytest.mark.parametrize(
    ("dtype", "device", "choice"),
    [
        (torch.float32, "cpu", KernelChoice.TORCH),
        (torch.float16, "cpu", KernelChoice.AUTO),
        (torch.bfloat16, "cuda", KernelChoice.AUTO),
    ],
)
def test_what_kernels_do_not_serve_runs_on_torch(
    dtype: torch.dtype, device: str, choice: KernelChoice, tmp_path: Path
) -> None:
    assert load_kernels(choice, dtype=dtype, device=torch.device(device), cache_dir=tmp_path, progress=quiet) is None
