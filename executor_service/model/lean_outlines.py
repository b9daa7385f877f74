"""Models made without memory, and without what torch imports to reckon with tensors that have none.

On the meta device some operations are Python, whose checks import sympy and torch's shapes of symbols: most of a second
for three kinds of call that are made for every model. First values are no values there; and positions, of which rotary
embeddings make their frequencies, are a few numbers that may as well have memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from torch.nn import init
from torch.overrides import TorchFunctionMode

_Model = TypeVar("_Model")
# Those of which torch tells a mode, and the methods that the others lead to.
_FIRST_VALUES = frozenset(
    {init.normal_, init.uniform_, init.constant_, init.kaiming_uniform_, torch.Tensor.normal_, torch.Tensor.uniform_}
)


def make_lean(make: Callable[[], _Model]) -> _Model:
    """What ``make`` makes. It is called again, without all this, where it fails: a model may join its positions with
    tensors that have no memory."""
    try:
        with _FewInMemory():
            return make()
    except RuntimeError:
        return make()


class _FewInMemory(TorchFunctionMode):
    """Answers these calls of its thread; all others go on to torch."""

    def __torch_function__(
        self, function: Any, types: Sequence[type], args: Sequence[Any] = (), options: dict[str, Any] | None = None
    ) -> Any:
        options = options or {}
        if function in _FIRST_VALUES and (tensor := args[0] if args else options["tensor"]).is_meta:
            return tensor
        if function is torch.arange and _is_nowhere(options.get("device")):  # as transformers has it with `linspace`
            options = {**options, "device": "cpu"}
        elif function is torch.empty_like and args[0].is_meta and options.keys() == {"device"}:
            return torch.empty(args[0].shape, dtype=args[0].dtype, **options)
        return function(*args, **options)


def _is_nowhere(device: Any) -> bool:
    return device is None or torch.device(device).type == "meta"
