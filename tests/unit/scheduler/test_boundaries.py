"""What may import what, looked at in a fresh process each."""

from __future__ import annotations

import subprocess
import sys

STANDARD = set(sys.stdlib_module_names)

# numba reads its own settings from a file where PyYAML is installed.
USED_BY_NUMBA = {"llvmlite", "yaml"}


def modules_after(statement: str, *, blocked: tuple[str, ...] = ()) -> set[str]:
    """Top-level modules that a fresh interpreter has loaded after a statement; importing a blocked one fails."""
    program = (
        f"import sys\nfor name in {blocked!r}: sys.modules[name] = None\nbefore = set(sys.modules)\n{statement}\n"
        "print(*{name.split('.')[0] for name in set(sys.modules) - before})"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    return set(run.stdout.split())


def test_the_core_imports_numpy_numba_and_the_standard_library_only() -> None:
    statement = (
        "import importlib, pkgutil, scheduler_service.core as core\n"
        "for module in pkgutil.iter_modules(core.__path__, 'scheduler_service.core.'):\n"
        "    importlib.import_module(module.name)"
    )
    foreign = {name for name in modules_after(statement) - STANDARD if not name.startswith("_")}
    assert foreign <= {"scheduler_service", "numpy", "numba", "cython_runtime", *USED_BY_NUMBA}


def test_the_service_imports_no_torch_and_nothing_of_the_executor() -> None:
    statement = "import scheduler_service.__main__"
    blocked = ("torch", "transformers", "executor_service")
    assert not modules_after(statement, blocked=blocked) & set(blocked)
