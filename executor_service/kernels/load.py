"""Whether this executor runs compiled kernels, and why not if it does not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch

from executor_service.kernels.build import KernelBuildError, build
from executor_service.kernels.choice import KernelChoice
from executor_service.kernels.cpu import SERVED_DTYPES, CpuKernels


def load_kernels(
    choice: KernelChoice,
    *,
    dtype: torch.dtype,
    device: torch.device,
    cache_dir: Path,
    progress: Callable[[str], None],
) -> CpuKernels | None:
    """None: torch's operations. Raises KernelBuildError where compiled kernels are demanded and cannot be had."""
    if choice is KernelChoice.TORCH or (choice is KernelChoice.AUTO and device.type != "cpu"):
        return None
    try:
        if device.type != "cpu" or dtype not in SERVED_DTYPES:
            raise KernelBuildError(f"kernels are for the CPU, in float32 and bfloat16, not for {dtype} on {device}")
        return CpuKernels(build(cache_dir, progress), dtype)
    except KernelBuildError as error:
        if choice is KernelChoice.COMPILED:
            raise
        progress(f"running with torch's own operations, which are slower: {error}")
        return None


def has_products(choice: KernelChoice, *, cache_dir: Path, progress: Callable[[str], None]) -> bool:
    """Whether compiled kernels multiply in bfloat16 on this processor. `load_kernels` says why they cannot be had."""
    if choice is KernelChoice.TORCH:
        return False
    try:
        return CpuKernels(build(cache_dir, progress), torch.bfloat16).products is not None
    except KernelBuildError:
        return False
