"""Which float type a model runs in."""

from __future__ import annotations

from collections.abc import Callable

import torch

from executor_service.model.errors import ModelSourceError

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
DTYPE_NAMES = ("auto", *_DTYPES)


def resolve_dtype(name: str, device: torch.device, *, has_products: Callable[[], bool] = lambda: False) -> torch.dtype:
    """`auto` is bfloat16 where it is multiplied fast, else float32, since torch would emulate it: on a device that has
    instructions for it, or by kernels of our own (`has_products`, asked only on a CPU that has none).

    Raises ModelSourceError for a name that is not in DTYPE_NAMES.
    """
    if name == "auto":
        is_fast = device.type == "cuda" or _cpu_has_native_bfloat16() or has_products()
        return torch.bfloat16 if is_fast else torch.float32
    if name not in _DTYPES:
        raise ModelSourceError(f"unknown dtype {name!r}; choose one of {', '.join(DTYPE_NAMES)}")
    return _DTYPES[name]


def _cpu_has_native_bfloat16() -> bool:
    capabilities = torch.cpu.get_capabilities()
    return any(capabilities.get(name, False) for name in ("avx512_bf16", "amx_bf16", "bf16"))
