"""Free blocks that several of those that wait would reuse, as the tree that a state tells of them.

    request   free blocks of its cached prefix      tree: parent, blocks     its row, from 1
    a         3 7 8                                 0       2  (3 7)         2
    b         3 7 8 5                               1       1  (8)           2
    c         3 7 4                                                          1
    d         9                                                              0: nobody else would reuse it

A block stands behind the same blocks in every prefix that it is in, so those who would reuse a block would reuse the
ones before it too: of each prefix, the blocks of the same requests side by side are a row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

# The contract's bound on rows that continue each other. What lies behind is charged to each by itself.
MAX_DEPTH = 32


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CommonPrefixes:
    """The tree, its columns as in the contract: int32 [num_prefixes] each. Rows count from 1, 0 is none."""

    parent: NDArray[np.int32]
    num_free_blocks: NDArray[np.int32]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Sharing:
    """What each of several prefixes shares, [num_prefixes], and the tree of what they have in common; None: nothing."""

    num_held_blocks: NDArray[np.int32]  # blocks that somebody holds
    row: NDArray[np.int32]  # in the tree
    common: CommonPrefixes | None


def sharing_of(prefixes: Sequence[list[int]], counts: NDArray[np.int32]) -> Sharing:
    """``prefixes``: the cached blocks of each request; equal ones may be one list. ``counts``: [num_blocks] holders."""
    distinct = {id(prefix): prefix for prefix in prefixes if prefix}
    if not distinct:
        nothing = np.zeros(len(prefixes), dtype=np.int32)
        return Sharing(num_held_blocks=nothing, row=nothing, common=None)
    place_of = {key: place for place, key in enumerate(distinct)}
    place = np.fromiter((place_of.get(id(prefix), -1) for prefix in prefixes), dtype=np.int64, count=len(prefixes))
    length = np.fromiter(map(len, distinct.values()), dtype=np.int64, count=len(distinct))
    blocks = np.fromiter(chain.from_iterable(distinct.values()), dtype=np.int64, count=int(length.sum()))
    of = np.repeat(np.arange(len(distinct)), length)
    is_free = counts[blocks] == 0
    num_free = np.bincount(of[is_free], minlength=len(distinct))

    num_users_of_distinct = np.bincount(place[place >= 0], minlength=len(distinct))
    blocks, of = blocks[is_free], of[is_free]
    num_users = np.bincount(blocks, weights=num_users_of_distinct[of], minlength=len(counts)).astype(np.int64)
    is_common = num_users[blocks] > 1
    row_of_distinct, common = np.zeros(len(distinct) + 1, dtype=np.int32), None
    if is_common.any():
        row, common = _tree_of(blocks[is_common], of[is_common], num_users)
        row_of_distinct[: len(row)] = row
    num_held = np.append(length - num_free, 0).astype(np.int32)
    # Place -1, of who has no prefix, is the last.
    return Sharing(num_held_blocks=num_held[place], row=row_of_distinct[place], common=common)


def _tree_of(
    blocks: NDArray[np.int64], of: NDArray[np.int64], num_users: NDArray[np.int64]
) -> tuple[NDArray[np.int32], CommonPrefixes]:
    """The row of each prefix, as far as there are any, and the tree.

    ``blocks``, ``of``: each block of a prefix, and which prefix, ascending. ``num_users``: [num_blocks].
    """
    # Of two rows with one first user the one with fewer users continues the other.
    used, where = np.unique(blocks, return_index=True)
    first_user = np.zeros(len(num_users), dtype=np.int64)
    first_user[used] = of[where]
    most = int(num_users.max())
    key = first_user[blocks] * (most + 1) + most - num_users[blocks]
    starts = np.flatnonzero(_changes(of) | _changes(key))
    num_blocks = np.diff(starts, append=len(key))
    of, key = of[starts], key[starts]
    depth = np.arange(len(of)) - np.maximum.accumulate(np.where(_changes(of), np.arange(len(of)), 0))
    is_near = depth < MAX_DEPTH
    of, key, num_blocks = of[is_near], key[is_near], num_blocks[is_near]

    _, where, row = np.unique(key, return_index=True, return_inverse=True)
    before = np.where(_changes(of), 0, np.roll(row, 1) + 1)
    row_of = np.zeros(int(of[-1]) + 1, dtype=np.int32)
    row_of[of] = row + 1  # the last of each is its longest
    tree = CommonPrefixes(parent=before[where].astype(np.int32), num_free_blocks=num_blocks[where].astype(np.int32))
    return row_of, tree


def _changes(values: NDArray[Any]) -> NDArray[np.bool_]:
    """Where a value is not the one before it; the first is not."""
    changes = np.ones(len(values), dtype=np.bool_)
    changes[1:] = values[1:] != values[:-1]
    return changes
