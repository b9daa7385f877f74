"""Machine code: what is marked here is compiled by Numba when it is first called, and is plain Python otherwise.

A plan crosses from Python to machine code at a few functions (`entry`); these are kept on disk, with all that they
call, so that only the first start after a change compiles. Where they are kept: `CACHE_DIRECTORY`. With
NUMBA_DISABLE_JIT=1 in the environment everything runs in Python, to the same plans.

The code is for the generic processor of its architecture, without fast arithmetic, so that figures are the same on all.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, TypeVar, cast

import llvmlite
import numba
import numpy as np
from numba.core.caching import _CacheLocator
from numba.extending import register_jitable

_Function = TypeVar("_Function", bound=Callable[..., Any])

# Numba sets its attributes from the environment.
_config: Any = numba.config

_HERE = Path(__file__).parent

# A file that says that everything is there.
COMPLETE = "complete"

# Read by Numba when it compiles the first function of the process.
if _config.CPU_NAME is None:
    _config.CPU_NAME, _config.CPU_FEATURES = "generic", ""


def compiled(function: _Function) -> _Function:
    """Compile a function where machine code calls it. Called from Python it is plain Python."""
    return register_jitable(error_model="numpy")(function)


def lean(function: _Function) -> _Function:
    """The same for a function that makes no arrays: it counts no references to those that it looks at."""
    return register_jitable(error_model="numpy", _nrt=False)(function)


def rule(function: _Function) -> _Function:
    """The same for a small one, about a row or two, called for each of many: it becomes a part of its caller."""
    return register_jitable(error_model="numpy", _nrt=False, forceinline=True)(function)


def entry(function: _Function) -> _Function:
    """Compile what Python calls, and keep it on disk where there is a place for it."""
    is_of_core = Path(function.__code__.co_filename).parent == _HERE
    if CACHE_DIRECTORY is None or not (is_of_core or _can_be_written_to(CACHE_DIRECTORY)):
        return cast(_Function, numba.njit(error_model="numpy")(function))
    others, _config.CACHE_LOCATOR_CLASSES = _config.CACHE_LOCATOR_CLASSES, f"{__name__}.{_Locator.__name__}"
    try:
        return cast(_Function, numba.njit(error_model="numpy", cache=True)(function))
    finally:
        _config.CACHE_LOCATOR_CLASSES = others


def _stamp(*directories: Path) -> str:
    """What the machine code depends on, in short: Numba looks at the file of a function, not at those it calls."""
    versions = f"{numba.__version__} {llvmlite.__version__} {np.__version__}"
    stamp = blake2b(versions.encode(), digest_size=8)
    for directory in directories:
        for path in sorted(directory.glob("*.py")):
            stamp.update(path.read_bytes())
    return stamp.hexdigest()


_STAMP = _stamp(_HERE)


def _cache_directory() -> Path | None:
    """The first of several places that can be written to, or where somebody has compiled everything.

    What the environment says (NUMBA_CACHE_DIR), beside the sources, as Python keeps what it compiles, and the user's
    cache. None: everything is compiled at each start.
    """
    given = _config.CACHE_DIR
    places = [Path(given)] if given else [_HERE / "__pycache__", _user_cache()]
    directories = [place / f"compiled-{_STAMP}" for place in places if place is not None]
    return next((directory for directory in directories if _is_of_use(directory)), None)


def _user_cache() -> Path | None:
    try:
        return Path.home() / ".cache" / "metronome"
    except RuntimeError:  # a user without a home
        return None


def _is_of_use(directory: Path) -> bool:
    return _can_be_written_to(directory) or (directory / COMPLETE).exists()


def _can_be_written_to(directory: Path) -> bool:
    try:
        directory.mkdir(parents=True, exist_ok=True)
        TemporaryFile(dir=directory).close()
    except OSError:
        return False
    return True


def mark_as_complete() -> None:
    """Say that everything is kept there, so that it is of use where it cannot be written to, and was used now."""
    if CACHE_DIRECTORY is not None:
        with suppress(OSError):  # somebody else's, who said so
            (CACHE_DIRECTORY / COMPLETE).touch()


CACHE_DIRECTORY = _cache_directory()


class _Locator(_CacheLocator):
    """Tells Numba where the machine code of the core is kept, and what it depends on."""

    def __init__(self, name: str, source: Path) -> None:
        self._name = name
        # What is not of the core, but calls it, depends on the modules beside it too.
        self._stamp = _STAMP if source.parent == _HERE else _stamp(_HERE, source.parent)

    @classmethod
    def from_function(cls, py_func: Callable[..., Any], py_file: str) -> _Locator:
        return cls(py_func.__name__, Path(py_file))

    def get_cache_path(self) -> str:
        return str(CACHE_DIRECTORY)

    def get_source_stamp(self) -> str:
        return self._stamp

    def get_disambiguator(self) -> str:
        return self._name
