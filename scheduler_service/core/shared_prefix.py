"""Who is held until another has computed the prefix that both share (`hold_for_shared_prefix`).

Requests whose next block has the same hash would compute the same block. Of those one computes it, and whoever waits
is held: a later state has that block in the cache, and names the block after it.

- One that runs and has tokens in this pass computes; all that wait and lack the same block are held.
- Else the first of them in the order of the queue is not held, and the others are. Under FAIR that is so for each
  tenant, or one would wait for the turns of another.

One that is held steps aside: those behind it pass, whatever the head of the line. So whoever computes is never held,
and nobody is held but while another computes a token of its prefix or stands before it. If that one is evicted or ends,
the first of the others takes over. Swapped requests have blocks to bring back and are never held.

So does TensorRT-LLM's capacity scheduler (`beneficialToSkip`), which compares the first new block of each; SGLang puts
those off that share 32 uncached tokens with another in its queue (in-batch prefix caching); vLLM computes them all.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from scheduler_service.core.policy import Ordering, Policy
from scheduler_service.core.state import NO_ROWS, BoolArray, IntArray, Requests, RequestStatus, rows_where


class Held(NamedTuple):
    """Who is held, with the ids of those that compute for them or will first; `others`: the rest of the queue."""

    requests: Requests
    behind_id: IntArray
    others: Requests


def held_back(queued: Requests, running: Requests, num_tokens: IntArray, policy: Policy) -> Held:
    """Who of the queue is held. `queued`: in no order; `running`: in order, with the tokens of each."""
    nobody = Held(requests=queued.of(NO_ROWS), behind_id=NO_ROWS, others=queued)
    if not policy.hold_for_shared_prefix:
        return nobody
    computing = running.take(rows_where((num_tokens > 0) & (running.next_block_hash != 0)))
    lacked = _lacked_by_several(np.concatenate((queued.next_block_hash, computing.next_block_hash)))
    positions = rows_where(_among(queued.next_block_hash, lacked))
    if len(positions) == 0:
        return nobody
    waiting = queued.take(positions)
    block = np.searchsorted(lacked, waiting.next_block_hash)
    behind_id = _first_in_queue(waiting, block, policy)
    if len(computing) > 0:
        computed_by = np.zeros(len(lacked), dtype=np.int64)
        # The first in order computes for all, so it is written last.
        of_several = computing.take(rows_where(_among(computing.next_block_hash, lacked))[::-1])
        computed_by[np.searchsorted(lacked, of_several.next_block_hash)] = of_several.id
        behind_id = np.where(computed_by[block] > 0, computed_by[block], behind_id)
    is_held = (behind_id != waiting.id) & waiting.having(RequestStatus.WAITING)
    goes_on = np.ones(len(queued), dtype=np.bool_)
    goes_on[positions[is_held]] = False
    return Held(
        requests=waiting.take(rows_where(is_held)),
        behind_id=behind_id[is_held],
        others=queued.take(rows_where(goes_on)),
    )


def _lacked_by_several(hashes: IntArray) -> IntArray:
    """Hashes that are there more than once, each once, ascending; 0 is none."""
    ascending = np.sort(hashes)
    again: IntArray = ascending[1:][(ascending[1:] == ascending[:-1]) & (ascending[1:] != 0)]
    return again[rows_where(np.append(True, again[1:] != again[:-1]))] if len(again) > 0 else again


def _among(values: IntArray, ascending: IntArray) -> BoolArray:
    """Which of `values` are in a list that ascends."""
    if len(ascending) == 0:
        return np.zeros(len(values), dtype=np.bool_)
    place = np.minimum(np.searchsorted(ascending, values), len(ascending) - 1)
    among: BoolArray = ascending[place] == values
    return among


def _first_in_queue(waiting: Requests, block: IntArray, policy: Policy) -> IntArray:
    """The id of the first in the order of the queue that lacks the same block as each (under FAIR, of its tenant).

    Found key by key, each of which leaves fewer that are level: nothing is sorted.
    """
    group = block
    if policy.ordering is Ordering.FAIR:
        group = np.unique(block * (waiting.tenant.max() + 1) + waiting.tenant, return_inverse=True)[1]
    never_ran = (~waiting.ran_before).astype(np.int64)
    keys: list[NDArray[Any]] = [never_ran, waiting.arrival_time_us, waiting.id]
    if waiting.rank is not None:
        keys.insert(0, waiting.rank)
    level = np.arange(len(waiting))
    for key in keys:
        least = np.full(int(group.max()) + 1, key.max())
        np.minimum.at(least, group[level], key[level])
        level = level[key[level] == least[group[level]]]
    first = np.empty(int(group.max()) + 1, dtype=np.int64)
    first[group[level]] = waiting.id[level]
    return first[group]
