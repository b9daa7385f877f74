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

from typing import NamedTuple

import numpy as np

from scheduler_service.core.case import ARRIVAL_TIME_US, ID, NEXT_BLOCK_HASH, STATUS, TENANT, Case, ran_before
from scheduler_service.core.compiled import compiled, rule
from scheduler_service.core.policy import Ordering
from scheduler_service.core.rows import nowhere, those_at, those_where, zeros
from scheduler_service.core.sorting import places_in_order
from scheduler_service.core.state import IntArray, RequestStatus


class Held(NamedTuple):
    """Who is held, with the ids of those that compute for them or will first; `others`: the rest of the queue."""

    rows: IntArray
    behind_id: IntArray
    others: IntArray


@compiled
def held_back(queue: IntArray, running: IntArray, num_tokens: IntArray, case: Case) -> Held:
    """Who of the queue is held. `queue`: in no order; `running`: with the tokens of each."""
    nobody = zeros(0)
    if not case.policy.hold_for_shared_prefix:
        return Held(nobody, nobody, queue)
    behind_id, lacking, count = zeros(len(case.rank)), zeros(len(queue) + len(running)), 0
    for row in queue:
        if case.requests[NEXT_BLOCK_HASH, row] != 0:
            lacking[count] = row
            count += 1
    for place in range(len(running)):
        if num_tokens[place] > 0 and case.requests[NEXT_BLOCK_HASH, running[place]] != 0:
            lacking[count] = running[place]
            count += 1
    first = -1
    for row in _in_order_of_computing(lacking[:count], case):
        if first < 0 or not _computes_for(case, first, row):
            first = row
        elif case.requests[STATUS, row] == RequestStatus.WAITING:
            behind_id[row] = case.requests[ID, first]
    is_held = nowhere(len(queue))
    for place in range(len(queue)):
        is_held[place] = behind_id[queue[place]] > 0
    held = those_where(queue, is_held, True)
    return Held(held, those_at(behind_id, held), those_where(queue, is_held, False))


@compiled
def _in_order_of_computing(rows: IntArray, case: Case) -> IntArray:
    """Those that lack one block side by side: first who runs, in order; then the queue, under FAIR tenant by tenant."""
    keys = np.empty((8, len(rows)), dtype=np.int64)
    for place in range(len(rows)):
        row = rows[place]
        waits = not _runs(case, row)
        keys[0, place] = case.requests[NEXT_BLOCK_HASH, row]
        keys[1, place] = waits
        keys[2, place] = case.requests[TENANT, row] if waits and case.policy.ordering == Ordering.FAIR else 0
        keys[3, place] = case.rank[row]
        keys[4, place] = case.rank_within_tenant[row]
        keys[5, place] = waits and not ran_before(case, row)
        keys[6, place] = case.requests[ARRIVAL_TIME_US, row]
        keys[7, place] = case.requests[ID, row]
    return those_at(rows, places_in_order(keys))


@rule
def _computes_for(case: Case, one: int, other: int) -> bool:
    """Whether one computes the block that another lacks."""
    requests = case.requests
    if requests[NEXT_BLOCK_HASH, one] != requests[NEXT_BLOCK_HASH, other]:
        return False
    alike = case.policy.ordering != Ordering.FAIR or requests[TENANT, one] == requests[TENANT, other]
    return alike or _runs(case, one)


@rule
def _runs(case: Case, row: int) -> bool:
    return case.requests[STATUS, row] == RequestStatus.RUNNING
