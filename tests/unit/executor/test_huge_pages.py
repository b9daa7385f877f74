"""Weights lie in huge pages wherever this system gives them to anybody."""

from __future__ import annotations

import mmap
import re
import sys
from pathlib import Path

import pytest
import torch

from executor_service.huge_pages import Arena

MEBI = 1 << 20


def huge_kib() -> int:
    """Of this process, in private anonymous memory."""
    return sum(map(int, re.findall(r"AnonHugePages:\s+(\d+) kB", Path("/proc/self/smaps").read_text())))


def test_tensors_lie_one_behind_the_other_on_whole_lines() -> None:
    arena = Arena()
    first, second = (arena.empty(count, torch.bfloat16) for count in (33, 5))
    assert (len(first), len(second)) == (33, 5)
    assert first.data_ptr() % 64 == 0
    assert second.data_ptr() - first.data_ptr() == 128
    assert not first.any()
    assert len(arena.empty(40 * MEBI, torch.bfloat16)) == 40 * MEBI  # more than the arena takes at once


def test_an_arena_has_huge_pages() -> None:
    if not sys.platform.startswith("linux"):
        pytest.skip("huge pages are asked for on Linux alone")
    before = huge_kib()
    by_hand = mmap.mmap(-1, 16 * MEBI, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    by_hand.madvise(mmap.MADV_HUGEPAGE)
    torch.frombuffer(by_hand, dtype=torch.uint8).fill_(1)
    given = huge_kib()
    if given == before:
        pytest.skip("this system gives no huge pages")
    weights = Arena().empty(8 * MEBI, torch.bfloat16).fill_(1.0)
    assert huge_kib() > given
    assert weights.all()
