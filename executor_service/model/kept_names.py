"""Which module of transformers has which name: found out once and kept in the cache directory, not at every start.

transformers reads its two thousand files of models for that whenever it is imported, which takes a third of a second.
What was found is good as long as these files have the names, sizes and times that they had. It is one small file, which
is written anew where it is of other files, damaged or gone; that a cache cannot be written to costs the third of a
second, and nothing else.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType

Names = dict[frozenset[str], dict[str, set[str]]]  # what must be installed -> module -> names
_PACKAGE, _ASKED_BY = "transformers", "transformers.utils.import_utils"
_QUESTION = "define_import_structure"
_OF_MODELS = "models"


def import_transformers(cache_dir: Path) -> None:
    """Import it, if that has not been done."""
    if _PACKAGE in sys.modules:
        return
    finder = _Finder(cache_dir)
    sys.meta_path.insert(0, finder)
    try:
        importlib.import_module(_PACKAGE)
    finally:
        sys.meta_path.remove(finder)


class _Finder(MetaPathFinder):
    """Puts `kept` before the function that finds names out, when its module is imported."""

    def __init__(self, cache_dir: Path) -> None:
        self._cache_dir = cache_dir

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        spec = PathFinder.find_spec(fullname, path) if fullname == _ASKED_BY else None
        if spec is None or spec.loader is None:
            return None
        run = spec.loader.exec_module

        def run_and_keep(module: ModuleType) -> None:
            run(module)
            if (find_out := getattr(module, _QUESTION, None)) is not None:
                setattr(module, _QUESTION, kept(find_out, self._cache_dir))

        spec.loader.exec_module = run_and_keep  # type: ignore[method-assign]
        return spec


def kept(find_out: Callable[..., Names], cache_dir: Path) -> Callable[..., Names]:
    """``find_out`` as it is, but that it looks into the cache first when it is asked for all models."""

    def names(directory: str | Path, prefix: str | None = None) -> Names:
        if prefix != _OF_MODELS:
            return find_out(directory, prefix=prefix)
        file = cache_dir / f"{_PACKAGE}-names.json"
        fingerprint = _fingerprint(Path(directory))
        found = _read(file, fingerprint)
        if found is None:
            found = find_out(directory, prefix=prefix)
            _write(file, fingerprint, found)
        return found

    return names


def _fingerprint(directory: Path) -> str:
    return hashlib.sha256(json.dumps([str(directory), sorted(_files(directory))]).encode()).hexdigest()


def _files(directory: Path) -> Iterator[tuple[str, int, int]]:
    with os.scandir(directory) as entries:
        for entry in entries:
            if entry.is_dir():
                if entry.name != "__pycache__":
                    yield from _files(Path(entry.path))
            else:
                status = entry.stat()
                yield entry.path, status.st_size, status.st_mtime_ns


def _read(file: Path, fingerprint: str) -> Names | None:
    try:
        content = json.loads(file.read_bytes())
        if content["fingerprint"] != fingerprint:
            return None
        return {
            frozenset(needed): {module: set(names) for module, names in modules.items()}
            for needed, modules in content["names"]
        }
    except (OSError, ValueError, KeyError, TypeError, AttributeError):  # absent, or not what was written
        return None


def _write(file: Path, fingerprint: str, names: Names) -> None:
    """At once, whoever writes beside us; not at all where nothing can be written."""
    content = {
        "fingerprint": fingerprint,
        "names": [[sorted(needed), {m: sorted(n) for m, n in modules.items()}] for needed, modules in names.items()],
    }
    with suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=file.parent) as scratch:
            fresh = Path(scratch) / file.name
            fresh.write_text(json.dumps(content))
            fresh.replace(file)
