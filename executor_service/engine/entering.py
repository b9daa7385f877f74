"""What those that enter the running set by a plan reuse of the prefix cache, and the free blocks that the plan takes.

Cached blocks may be free ones. They are not held for those that wait for them: between a state and the coming into
force of its plan nothing is allocated, so what the state told of a cached prefix is still there. What may have changed
is who else holds it, and the plan itself may evict the last holder. So the prefixes are looked up anew, as they will be
once the evicted have left, and taken before any block is allocated. Where the free blocks do not suffice, the last to
enter reuses less of its prefix and begins to compute earlier: so a plan that fits by the state that it was made for
fits. (docs/adr/0009)
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from executor_service.engine.books import NO_BLOCKS, Books, Rows
from executor_service.kv.block_pool import BlockIds
from executor_service.kv.prefix_cache import Prefix


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Entrance:
    """How the requests of a plan come in. ``num_tokens``: [n], at most what each row then lacks, and drafts."""

    admit_prefixes: tuple[Prefix, ...]
    resume_prefixes: tuple[Prefix, ...]
    num_tokens: NDArray[np.int32]
    num_taken_blocks: int  # free blocks that the plan takes
    num_free_blocks: int  # once the evicted have left


def work_out(
    books: Books, *, rows: Rows, num_tokens: NDArray[np.int32], admit: Rows, resume: Rows, evict: Rows
) -> Entrance:
    """``rows``, ``num_tokens``: [n] scheduled, those in ``admit`` and ``resume`` among them. Changes nothing."""
    entering = np.concatenate([admit, resume])
    prefixes = [books.cached_prefix(row) for row in entering]
    num_free, counts = books.block_pool.num_free, NO_BLOCKS
    if len(evict) or any(len(prefix.blocks) for prefix in prefixes):
        counts = books.block_pool.reference_counts_without(books.blocks_of(evict))
        num_free = int(np.count_nonzero(counts == 0))
    places = _places_of(entering, rows)
    while True:
        tokens, num_new = _demand(books, rows, num_tokens, places, prefixes, num_resumed=len(resume))
        num_taken = num_new + _num_revived(prefixes, counts)
        if num_taken <= num_free or not _shorten_last(prefixes, num_taken - num_free):
            break
    return Entrance(
        admit_prefixes=tuple(prefixes[: len(admit)]),
        resume_prefixes=tuple(prefixes[len(admit) :]),
        num_tokens=tokens,
        num_taken_blocks=num_taken,
        num_free_blocks=num_free,
    )


def _places_of(entering: Rows, rows: Rows) -> NDArray[np.int64]:
    """Where each of ``entering`` stands in ``rows``."""
    order = np.argsort(rows)
    return order[np.searchsorted(rows, entering, sorter=order)]


def _demand(
    books: Books,
    rows: Rows,
    num_tokens: NDArray[np.int32],
    places: NDArray[np.int64],
    prefixes: list[Prefix],
    *,
    num_resumed: int,
) -> tuple[NDArray[np.int32], int]:
    """Tokens that each row runs, and the blocks that are written anew, if those that enter have these prefixes."""
    num_reused = np.array([prefix.num_tokens(books.limits.block_size) for prefix in prefixes], dtype=np.int32)
    admitted = slice(0, len(prefixes) - num_resumed)
    computed, held = books["num_computed_tokens"][rows], books["num_blocks"][rows]
    computed[places[admitted]] = num_reused[admitted]
    # What a swapped one holds is in swap space, and the copy of a tail has a block yet to be allocated.
    held[places] = np.array([len(prefix.blocks) for prefix in prefixes], dtype=np.int32)
    num_lacking = books["num_prompt_tokens"][rows] + books["num_output_tokens"][rows] - computed
    tokens = np.minimum(num_tokens, num_lacking + books["num_draft_tokens"][rows])
    missing = books.num_blocks_for(computed + tokens) - held
    return tokens, int(missing.clip(min=0).sum())


def _shorten_last(prefixes: list[Prefix], num_blocks: int) -> bool:
    """Take blocks, and the tail, off the end of the last prefix that has any. Returns whether there was one."""
    for i in reversed(range(len(prefixes))):
        blocks = prefixes[i].blocks
        if len(blocks):
            prefixes[i] = Prefix(blocks=blocks[: max(0, len(blocks) - num_blocks)])
            return True
    return False


def _num_revived(prefixes: list[Prefix], counts: NDArray[np.int32]) -> int:
    """How many free blocks these prefixes take, each counted once. ``counts``: [num_blocks] references of each."""
    blocks: BlockIds = np.concatenate([NO_BLOCKS, *(prefix.blocks for prefix in prefixes)])
    return len(set(blocks[counts[blocks] == 0].tolist()))
