"""Cached prefixes in free blocks, which several of the queue would reuse: what they take up together is counted once.

Such prefixes are a tree, each row the continuation of one before it (`CachedPrefixTable` in state.proto). Who enters
takes up the free blocks of its own row and of all above; who enters after it finds those that they share taken already.
Swapped requests bring their blocks back and reuse none.
"""

from __future__ import annotations

from scheduler_service.core.case import CACHED_PREFIX, STATUS, Case
from scheduler_service.core.compiled import compiled, lean, rule
from scheduler_service.core.rows import zeros
from scheduler_service.core.state import IntArray, RequestStatus

# As many rows may continue each other: what the tree costs a plan is bounded, whatever comes.
MAX_DEPTH = 32


@compiled
def nobody_enters(case: Case) -> IntArray:
    """How many of those that enter reuse each prefix: none yet. [num_prefixes]"""
    return zeros(len(case.parent))


@lean
def count_in(case: Case, row: int, num_users: IntArray) -> None:
    """One more enters."""
    _add(case, row, 1, num_users)


@lean
def count_out(case: Case, row: int, num_users: IntArray) -> None:
    """One that entered leaves."""
    _add(case, row, -1, num_users)


@lean
def _add(case: Case, row: int, count: int, num_users: IntArray) -> None:
    prefix = _prefix_of(case, row)
    while prefix > 0:
        num_users[prefix - 1] += count
        prefix = case.parent[prefix - 1]


@lean
def blocks_taken_by(case: Case, row: int, num_users: IntArray) -> int:
    """Free blocks of the prefix of one that waits, or entered, which those that are counted take up too."""
    num_blocks, prefix = 0, _prefix_of(case, row)
    while prefix > 0:
        if num_users[prefix - 1] > 0:
            num_blocks += case.num_free_of_prefix[prefix - 1]
        prefix = case.parent[prefix - 1]
    return num_blocks


@rule
def _prefix_of(case: Case, row: int) -> int:
    return case.requests[CACHED_PREFIX, row] if case.requests[STATUS, row] == RequestStatus.WAITING else 0
