"""The compiled kernels, from the cache that the executor uses; without a compiler, tests that need them are skipped."""

from __future__ import annotations

import functools

import pytest
import torch

from executor_service.kernels.build import KernelBuildError, build, find_compiler
from executor_service.kernels.cpu import CpuKernels
from executor_service.model.gguf import default_cache_dir


@functools.cache
def compiled_kernels(dtype: torch.dtype) -> CpuKernels:
    """A failure of the compiler is a failure; only having none skips."""
    try:
        find_compiler()
    except KernelBuildError as error:
        pytest.skip(str(error))
    return CpuKernels(build(default_cache_dir(), progress=print), dtype)
