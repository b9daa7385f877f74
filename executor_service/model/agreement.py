"""Whether a fused module computes what it stands for: both are tried on the same random numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

# What two roundings to a type can make of a number.
_TOLERANCES = {torch.bfloat16: 2e-2, torch.float32: 1e-4}


def sample(*shape: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(dtype)


def agree(compute_ours: Callable[[], torch.Tensor], compute_theirs: Callable[[], torch.Tensor]) -> bool:
    try:
        ours, theirs = compute_ours(), compute_theirs()
    except Exception:  # it takes something else than its name says, so it is something else
        return False
    tolerance = _TOLERANCES[theirs.dtype]
    return ours.shape == theirs.shape and torch.allclose(ours.float(), theirs.float(), rtol=tolerance, atol=tolerance)


def is_rms_norm(module: Any) -> bool:
    """By name, and by having a weight and an epsilon; what it computes has to be tried."""
    has_parts = getattr(module, "weight", None) is not None and _epsilon_name(module) is not None
    return type(module).__name__.endswith("RMSNorm") and has_parts


def epsilon_of(norm: Any) -> float:
    name = _epsilon_name(norm)
    assert name is not None
    epsilon: float = getattr(norm, name)
    return epsilon


def _epsilon_name(norm: Any) -> str | None:
    return next((name for name in ("eps", "variance_epsilon") if hasattr(norm, name)), None)
