"""Who is held until another has computed the prefix that both share (`hold_for_shared_prefix`).

Requests whose next block has the same hash would compute the same block. Of those one computes it, and whoever waits
is held: a later state has that block in the cache, and names the block after it.

- One that runs and has tokens in this pass computes; all that wait and lack the same block are held.
- Else the first of them in the order of the queue is not held, and the others are. Under FAIR that is so for each
  tenant, or one would wait for the turns of another.

One that is held steps aside: those behind it pass, whatever the head of the line. So whoever computes is never held,
and nobody is held but while another computes a token of its prefix or stands before it. If that one is evicted or ends,
the first of the others takes over. Swapped requests have blocks to bring back and are never held.

SGLang orders its queue so that of those that share an uncached prefix one goes first (in-batch prefix caching).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scheduler_service.core.policy import Ordering, Policy
from scheduler_service.core.state import BoolArray, IntArray, Requests, RequestStatus, rows_where

_NONE: IntArray = np.zeros(0, dtype=np.int64)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Held:
    """Rows that are held, and the ids of those that compute for them or will first; `others`: the rest of the queue."""

    rows: IntArray
    behind_id: IntArray
    others: IntArray


def held_back(ranked: Requests, queued: IntArray, running: Requests, num_tokens: IntArray, policy: Policy) -> Held:
    """Who of the queue is held. `queued`: its rows, ascending; `running`: of the same table, with their tokens."""
    if not policy.hold_for_shared_prefix:
        return Held(rows=_NONE, behind_id=_NONE, others=queued)
    computing = running.take(rows_where((num_tokens > 0) & (running.next_block_hash != 0)))
    rows = _lacking_the_same(ranked, queued, computing.next_block_hash)
    if len(rows) == 0:
        return Held(rows=rows, behind_id=rows, others=queued)
    sharing = computing.beside(ranked.take(rows))
    first = _first_to_compute(sharing, len(computing), policy)
    held = (first != np.arange(len(sharing))) & sharing.having(RequestStatus.WAITING)
    rows = rows[held[len(computing) :]]
    return Held(rows=rows, behind_id=sharing.id[first[held]], others=queued[~_among(queued, rows)])


def _lacking_the_same(ranked: Requests, queued: IntArray, computed: IntArray) -> IntArray:
    """Those of `queued` whose next block someone else of the queue lacks too, or computes."""
    hashes = ranked.next_block_hash[queued]
    queued, hashes = queued[hashes != 0], hashes[hashes != 0]
    ascending = np.sort(np.concatenate((hashes, computed)))
    again = ascending[1:][ascending[1:] == ascending[:-1]]
    return queued[_among(hashes, again)] if len(again) > 0 else queued[:0]


def _among(values: IntArray, ascending: IntArray) -> BoolArray:
    """Which of `values` are in a list that ascends."""
    if len(ascending) == 0:
        return np.zeros(len(values), dtype=np.bool_)
    place = np.minimum(np.searchsorted(ascending, values), len(ascending) - 1)
    among: BoolArray = ascending[place] == values
    return among


def _first_to_compute(sharing: Requests, num_computing: int, policy: Policy) -> IntArray:
    """The place in `sharing` of the one that computes the next block of each; the first `num_computing` run already."""
    places = np.arange(len(sharing))
    waits = places >= num_computing
    tenant = sharing.tenant if policy.ordering is Ordering.FAIR else np.zeros_like(places)
    keys: list[NDArray[Any]] = [sharing.id, sharing.arrival_time_us, ~sharing.ran_before]
    if sharing.rank is not None:
        keys.append(sharing.rank)
    order = np.lexsort([*keys, tenant, waits, sharing.next_block_hash])
    hashes, tenant, waits = sharing.next_block_hash[order], tenant[order], waits[order]
    starts = np.append(True, hashes[1:] != hashes[:-1])
    of_all = _last_start(starts)
    of_tenant = _last_start(starts | np.append(True, tenant[1:] != tenant[:-1]))
    first = np.empty_like(places)
    first[order] = order[np.where(waits[of_all], of_tenant, of_all)]
    return first


def _last_start(starts: BoolArray) -> IntArray:
    """For each place the last one up to it that starts something."""
    last: IntArray = np.maximum.accumulate(np.arange(len(starts)) * starts)
    return last
