"""Memory in pages of 2 MiB, where the system gives them to whoever asks.

A pass reads all weights once and pages of the cache in any order; with pages of 4 KiB the processor looks up 130,000 of
them meanwhile. On Linux with transparent huge pages (`/sys/kernel/mm/transparent_hugepage/enabled` not `never`);
elsewhere, and where it is refused, memory is as it always was.
"""

from __future__ import annotations

import ctypes
import mmap
import sys

import torch

_HUGE_PAGE = 2 << 20
_ARENA_BYTES = 64 << 20
_ALIGNMENT = 64  # bytes, a line of the cache
# Linux 6.1 and newer: at once, and not some time later by a thread of the kernel.
_MADV_COLLAPSE = 25


class Arena:
    """Tensors that live as long as the process does, one behind the other in huge pages."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, 1)
        self._start, self._stop = 0, 0  # of what is free

    def empty(self, count: int, dtype: torch.dtype) -> torch.Tensor:
        """[count], at an address of which the processor loads whole lines. Its numbers are zero."""
        num_bytes = -(-count * dtype.itemsize // _ALIGNMENT) * _ALIGNMENT
        if num_bytes > self._stop - self._start:
            self._grow(num_bytes)
        tensor = torch.frombuffer(self._memory, dtype=dtype, count=count, offset=self._start)
        self._start += num_bytes
        return tensor

    def _grow(self, num_bytes: int) -> None:
        size = max(_ARENA_BYTES, -(-num_bytes // _HUGE_PAGE) * _HUGE_PAGE)
        # Private: what is anonymous and shared is a file in memory to Linux, for which another setting decides.
        self._memory = mmap.mmap(-1, size + _HUGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        address = torch.frombuffer(self._memory, dtype=torch.uint8).data_ptr()
        self._start = -address % _HUGE_PAGE
        self._stop = self._start + size
        ask_for_huge_pages(torch.frombuffer(self._memory, dtype=torch.uint8)[self._start : self._stop])


def ask_for_huge_pages(tensor: torch.Tensor, *, is_filled: bool = False) -> None:
    """For the memory of a tensor on the host, as far as whole huge pages lie in it.

    ``is_filled``: what it holds is moved into them now, one page after the other; else pages come as they are written.
    """
    if not sys.platform.startswith("linux"):
        return
    start, num_bytes = tensor.data_ptr(), tensor.numel() * tensor.element_size()
    first = -(-start // _HUGE_PAGE) * _HUGE_PAGE
    size = (start + num_bytes) // _HUGE_PAGE * _HUGE_PAGE - first
    if size <= 0:
        return
    madvise = ctypes.CDLL(None, use_errno=True).madvise
    madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    for advice in (mmap.MADV_HUGEPAGE, *([_MADV_COLLAPSE] if is_filled else [])):
        madvise(first, size, advice)  # advice: who cannot follow it leaves all as it is
