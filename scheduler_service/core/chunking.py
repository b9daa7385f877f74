"""Tokens of a pass, shared out within a phase. Which phases share a pass is told in `composition.py`.

- Decodes: a token each. Where they are more than the budget they take turns, the least recently run first, then in
  order. What is left in the end is for their drafts (`drafts.py`).
- Prefills: each wants a chunk, at most `chunk_size_tokens` and what it lacks. FIRST_COME: in order each takes what it
  wants of what is left (Sarathi-Serve, arXiv 2403.02310). EQUAL: all advance alike, as far as each wants, a token that
  is left over going to the first. What those that enter find beside them is told in `giving_way.py`.
"""

from __future__ import annotations

import numpy as np

from scheduler_service.core.case import LAST_RUN_ITERATION, Case, in_decode, num_lacking_tokens
from scheduler_service.core.compiled import compiled, rule
from scheduler_service.core.executor_plan import Reason
from scheduler_service.core.policy import PrefillSharing
from scheduler_service.core.rows import total, zeros
from scheduler_service.core.sorting import places_in_order
from scheduler_service.core.state import IntArray


@rule
def chunk_wanted(case: Case, row: int) -> int:
    """The chunk that it would compute in one pass with no one beside it."""
    return min(num_lacking_tokens(case, row), case.policy.chunk_size_tokens)


@compiled
def share_among_decodes(running: IntArray, want: IntArray, budget: int, case: Case) -> IntArray:
    """Tokens of each that decodes. `running` is in order; `want`: a token, 0 for those in prefill."""
    if total(want) <= budget:
        return want
    num_tokens, left = zeros(len(want)), budget
    last_run = np.empty((1, len(want)), dtype=np.int64)
    for place in range(len(want)):
        last_run[0, place] = case.requests[LAST_RUN_ITERATION, running[place]]
    for place in places_in_order(last_run):
        if want[place] > 0 and left > 0:
            num_tokens[place] = 1
            left -= 1
    return num_tokens


@compiled
def share_among_prefills(want: IntArray, budget: int, case: Case) -> IntArray:
    """Tokens of each that is in prefill, in order. `want`: a chunk, 0 for those that decode."""
    want, num_prefills = want.copy(), 0
    for place in range(len(want)):
        if want[place] > 0:
            num_prefills += 1
            if num_prefills > case.policy.max_num_partial_prefills:
                want[place] = 0
    if case.policy.prefill_sharing == PrefillSharing.EQUAL and total(want) > budget:
        return equal_shares(want, max(budget, 0))
    return first_come(want, budget)


@compiled
def first_come(want: IntArray, budget: int) -> IntArray:
    """What each gets of the budget, when each in its turn takes what it wants of what is left."""
    taken, left = zeros(len(want)), max(budget, 0)
    for place in range(len(want)):
        taken[place] = min(want[place], left)
        left -= taken[place]
    return taken


@compiled
def equal_shares(want: IntArray, budget: int) -> IntArray:
    """What each gets of a budget that is too small: the same for all, or what it wants where that is less.

    The level at which water poured into all stands (max-min fairness); what does not divide goes to the first in turn.
    """
    ascending, left, level = places_in_order(want.reshape(1, -1)), budget, 0
    for place in range(len(want)):
        num_level = len(want) - place
        if want[ascending[place]] * num_level > left:
            # All before have what they want, and what is left does not do for the others: these stand level.
            level = left // num_level
            break
        left -= want[ascending[place]]
        level = want[ascending[place]]
    taken = want.copy()
    left = budget
    for place in range(len(want)):
        taken[place] = min(want[place], level)
        left -= taken[place]
    for place in range(len(want)):
        if want[place] > level and left > 0:
            taken[place] += 1
            left -= 1
    return taken


@rule
def reason_to_run(case: Case, row: int, num_tokens: int) -> int:
    """Why it runs so many tokens."""
    if num_tokens >= num_lacking_tokens(case, row):
        return Reason.DECODE if in_decode(case, row) else Reason.PREFILL
    if num_tokens == case.policy.chunk_size_tokens:
        return Reason.PREFILL_CHUNK_SIZE
    return Reason.PREFILL_TOKEN_BUDGET
