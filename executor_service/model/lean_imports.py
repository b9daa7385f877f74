"""Modules of transformers without the parts of torch that they import and an executor never calls.

Whatever model is imported, transformers imports torch's compiler (`torch._dynamo`: one class of it stands in the code
that makes masks) and torch's sharding (`torch.distributed.tensor`, where torch has it): a thousand modules, which are a
quarter of an executor's start. Nothing is compiled by torch here, and ranks cut their models themselves (`shard.py`).
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.machinery import PathFinder
from types import ModuleType
from typing import Any

import torch

_COMPILER = "torch._dynamo"
_MODULE_OF_MASKS = f"{_COMPILER}._trace_wrapped_higher_order_op"
# They tell the compiler how to treat a function, and are all that the modules of models want of it.
_MARKS = frozenset({"allow_in_graph", "assume_constant_result", "disable"})


@contextmanager
def lean_imports() -> Iterator[None]:
    """Meanwhile models of transformers are imported without torch's compiler and sharding.

    The sharding is left out as it is where torch was built without it. Who wants more of the compiler than marks on
    functions, or asks for it afterwards, gets it.
    """
    # Modules of models ask the first, whose answer is the second's. They do not say what they import from elsewhere.
    told_by: list[Any] = [importlib.import_module(f"transformers.{name}") for name in ("utils", "utils.import_utils")]
    whether_it_is_there = told_by[0].is_torch_distributed_available
    stand_in = _StandIn(_COMPILER)
    try:
        for module in told_by:
            module.is_torch_distributed_available = lambda: False
        if _COMPILER not in sys.modules:
            stand_in.enter()
        yield
    finally:
        stand_in.leave()
        for module in told_by:
            module.is_torch_distributed_available = whether_it_is_there


class _StandIn(ModuleType):
    """The compiler's package until something of it is asked for that it is not needed for.

    A module has no `__path__` unless it is given one, so the import of any module of the package asks for more, too.
    """

    def enter(self) -> None:
        """Stand there, with the one module that masks are made with."""
        sys.modules[_COMPILER] = self
        spec = PathFinder.find_spec(_COMPILER, torch.__path__)
        assert spec is not None
        self.__path__ = spec.submodule_search_locations or []
        try:
            importlib.import_module(_MODULE_OF_MASKS)
        finally:
            del self.__path__

    def leave(self) -> None:
        """Make place for the compiler itself."""
        if sys.modules.get(_COMPILER) is self:
            del sys.modules[_COMPILER]

    def __getattr__(self, name: str) -> Any:
        if name in _MARKS:
            return _unmarked
        if name == "__file__":  # asked for by those that look through all modules
            raise AttributeError(name)
        self.leave()
        return getattr(importlib.import_module(_COMPILER), name)


def _unmarked(function: Callable[..., Any] | None = None, *_args: Any, **_options: Any) -> Callable[..., Any]:
    return _unmarked if function is None else function
