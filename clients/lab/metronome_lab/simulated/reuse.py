"""How long what those that wait would reuse of the prefix cache is certain to stay as it is.

A request that waits is shown with the blocks that it would find. They become more when a running request fills a block
with the text that it lacks, and fewer when a free block loses its content to somebody who grows. So it is worked out,
once for a run of passes, who fills blocks with texts that several have: those that a trace names. What it does not name
is nobody else's.

The books are told of several passes at once: first what they allocate, then what they filled. That is what one after
the other does, unless a text is computed that can be found already, in a block that is lost meanwhile; or two compute
the same text, where the first to have it is the one that is found.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from executor_service.engine.books import Books, Rows, Status
from executor_service.kv.prefix_cache import PrefixScope
from scheduler_service.core.case import UNBOUNDED


def most_new_blocks(books: Books, rows: Rows, columns: Mapping[str, NDArray[Any]]) -> int:
    """How many blocks those that run may take until it is not certain any more; 0: it is not now.

    `columns`: what a snapshot tells of `rows`. The books have a column `num_named_blocks`.
    """
    if books.prefixes.scope is PrefixScope.OFF:
        return UNBOUNDED
    block_size, prefixes = books.limits.block_size, books.prefixes
    status, next_block = columns["status"], columns["num_computed_tokens"] // block_size
    waits, runs = status == Status.WAITING, status == Status.RUNNING
    num_named = books["num_named_blocks"][rows]
    num_to_compute_again = books["num_lost_tokens"][rows] // block_size
    wanted: set[bytes] = set()
    for place in np.flatnonzero(waits & (next_block < num_named)).tolist():
        wanted.update(prefixes.texts(rows[place], next_block[place], next_block[place] + 1))
    computed: set[bytes] = set()
    for place in np.flatnonzero(runs & (next_block < np.maximum(num_named, num_to_compute_again))).tolist():
        last = max(num_named[place], num_to_compute_again[place])
        texts = prefixes.texts(rows[place], next_block[place], last)
        if not computed.isdisjoint(texts):
            return 0
        computed.update(texts)
    if not computed.isdisjoint(wanted):
        return 0
    would_reuse_free_ones = (columns["num_blocks"] > columns["num_shared_blocks"]) & waits
    if would_reuse_free_ones.any() or any(map(prefixes.cache.finds, computed)):
        return books.block_pool.num_free - books.block_pool.num_kept
    return UNBOUNDED
