"""How many passes can be applied at once, since the plan of each would be the same: all that run decode, and go on.

The planner is a function of the state, and in such passes nothing of the state changes that could change the plan:

- Everybody on the device decodes, one token each, and the token budget holds them all.
- Nobody can enter: nobody waits, or all places are taken and no rank takes them from anybody. Nobody who waits is
  turned away either: that happens when a request comes, or when its deadline can no longer be met, and none has one.
- Each pass has the blocks that it needs among those that are free, so nobody is evicted; which blocks they are does not
  matter to anybody.
- A plan charges nothing for blocks held, so the service of a tenant is its tokens, whole numbers that add up alike.

It ends with the pass in which the first answer is complete, with the last that begins before the next arrival, or where
the free blocks end. A test plays workloads with and without repetition and compares the results byte by byte.
"""

from __future__ import annotations

import numpy as np

from executor_service.engine.books import Books, Rows, Status
from scheduler_service.core.policy import Policy, Preemption


def is_repeatable(policy: Policy) -> bool:
    """Whether plans of a policy may repeat at all."""
    return policy.kv_residency_charge == 0


def repeating_rows(books: Books, policy: Policy) -> Rows | None:
    """Who would run in each of the next passes; None where the plan of the next one is to be asked for."""
    running = books.rows_with(Status.RUNNING)
    limits = books.limits
    if not 0 < len(running) <= limits.max_num_batched_tokens or not books.in_decode(running).all():
        return None
    if len(running) < len(books):
        places_are_taken = len(running) >= limits.max_num_seqs and policy.preemption is not Preemption.FOR_PRIORITY
        if not places_are_taken or books["deadline_us"].any():
            return None
    return running


def most_passes(books: Books, rows: Rows, limit: int) -> int:
    """How many passes over a token of each of `rows` the free blocks reach for, at most `limit`; 0: not for one."""
    free = books.block_pool.num_free
    computed, held = books["num_computed_tokens"][rows].astype(np.int64), books["num_blocks"][rows]

    def fits(num_passes: int) -> bool:
        return int((books.num_blocks_for(computed + num_passes) - held).clip(min=0).sum()) <= free  # type: ignore[arg-type]

    if fits(limit):
        return limit
    enough, too_many = 0, limit
    while too_many - enough > 1:
        middle = (enough + too_many) // 2
        enough, too_many = (middle, too_many) if fits(middle) else (enough, middle)
    return enough
