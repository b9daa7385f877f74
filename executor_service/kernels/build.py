"""Compiles the kernels for the processor of this machine, once: the library is kept in the cache directory.

What a library was made from (source, compiler, flags, processor) names its file, so none is ever out of date, and
machines that share a home directory do not run each other's instructions.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

_DIRECTORY = Path(__file__).parent
SOURCES, HEADERS = (tuple(sorted(_DIRECTORY.glob(pattern))) for pattern in ("*.cpp", "*.h"))
FLAGS = (
    *("-std=c++20", "-O3", "-march=native", "-mprefer-vector-width=512", "-fopenmp", "-shared", "-fPIC"),
    # Nobody reads errno or floating-point exceptions; without them loops with roots and divisions are vectorised.
    *("-fno-math-errno", "-fno-trapping-math"),
)
COMPILERS = ("c++", "g++", "clang++")
TIMEOUT_S = 300


class KernelBuildError(Exception):
    """There is no compiler, or it failed; the message says which, in one line."""


def build(cache_dir: Path, progress: Callable[[str], None]) -> Path:
    """The library for this machine, compiled if it is not in `cache_dir`. Raises KernelBuildError."""
    compiler = find_compiler()
    library = cache_dir / "kernels" / f"{_fingerprint(compiler)}.so"
    if library.exists():
        return library
    progress(f"compiling kernels for this processor with {compiler} (once, a few seconds)")
    try:
        library.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=library.parent) as scratch:
            fresh = Path(scratch) / library.name
            _run(compiler, *FLAGS, *map(str, SOURCES), "-o", str(fresh))
            fresh.replace(library)  # at once, whoever compiles beside us
    except OSError as error:
        raise KernelBuildError(f"cannot keep compiled kernels in {library.parent}: {error.strerror}") from error
    return library


def find_compiler() -> str:
    """`$CXX`, or the first compiler of C++ on the path. Raises KernelBuildError."""
    for name in (os.environ.get("CXX", ""), *COMPILERS):
        if name and shutil.which(name):
            return name
    raise KernelBuildError(f"no compiler of C++ ({', '.join(COMPILERS)}) is installed")


def _fingerprint(compiler: str) -> str:
    parts = (
        *(source.read_text() for source in (*SOURCES, *HEADERS)),
        " ".join(FLAGS),
        _run(compiler, "--version"),
        _processor(),
    )
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]


def _processor() -> str:
    """Name and instruction sets of the processor, as far as the system tells."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.machine()
    return "\n".join(sorted({line for line in lines if line.startswith(("model name", "flags", "Features"))}))


def _run(compiler: str, *arguments: str) -> str:
    try:
        done = subprocess.run([compiler, *arguments], capture_output=True, text=True, timeout=TIMEOUT_S, check=True)
    except subprocess.CalledProcessError as error:
        reason = next((line for line in error.stderr.splitlines() if "error" in line), f"status {error.returncode}")
        raise KernelBuildError(f"{compiler} failed: {reason}") from error
    except (OSError, subprocess.TimeoutExpired) as error:
        raise KernelBuildError(f"{compiler} failed: {error}") from error
    return done.stdout
