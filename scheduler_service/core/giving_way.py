"""Prompts in progress that give way to those that enter.

Under FIRST_COME a prompt in progress has its chunk, and who enters takes what is left of the pass.

EQUAL, so that all advance alike: those in progress give up all but a block of tokens each, or what they have where that
is less; so a chunk that fills the pass keeps nobody out. Who enters takes as much for itself, and finds at least a
token. Then all that is there for prompts is shared out anew among both. So everyone goes on, and no pass holds more
prompts than blocks of tokens, the last one begun included, and those that lack less than a block.

IN_ORDER, so that a long prompt that has begun does not hold up shorter ones: who enters finds also what those in
progress have that come after it in the policy's order, and the last of these go without first. They keep their blocks,
and go on when it is their turn again.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from scheduler_service.core.case import Case, in_decode
from scheduler_service.core.chunking import chunk_wanted, equal_shares
from scheduler_service.core.compiled import compiled, lean, rule
from scheduler_service.core.composition import prefill_budget, prefills_lead
from scheduler_service.core.policy import Ordering, PrefillSharing
from scheduler_service.core.rows import total, zeros
from scheduler_service.core.sorting import places_in_order
from scheduler_service.core.state import IntArray

# Before all places in the order: whoever enters.
_ANYBODY = 2**63 - 1


class GivenUp(NamedTuple):
    """Tokens that each of those that run gives up, and for whom: those whose `turn` comes before."""

    num_tokens: IntArray
    before: IntArray


class Shares(NamedTuple):
    """Tokens of those that run, and of those that enter."""

    running: IntArray
    entering: IntArray


@compiled
def given_up(running: IntArray, num_tokens: IntArray, case: Case) -> GivenUp:
    """What each of those that run gives up for whom."""
    given, before = zeros(len(running)), zeros(len(running))
    for place in range(len(running)):
        if in_decode(case, running[place]):
            continue
        if case.policy.prefill_sharing == PrefillSharing.EQUAL:
            given[place], before[place] = max(num_tokens[place] - case.limits.block_size, 0), _ANYBODY
        elif case.policy.prefill_sharing == PrefillSharing.IN_ORDER:
            given[place], before[place] = num_tokens[place], turn(case, running[place])
    return GivenUp(given, before)


@lean
def given_to(case: Case, row: int, given: GivenUp) -> int:
    """Tokens that are given up for one that would enter."""
    num_tokens = 0
    for place in range(len(given.num_tokens)):
        if given.num_tokens[place] > 0 and turn(case, row) < given.before[place]:
            num_tokens += given.num_tokens[place]
    return num_tokens


@rule
def turn(case: Case, row: int) -> int:
    """Whose prompt goes first: the least. Whose request it is makes no difference, once its tenant had its turn."""
    return case.rank_within_tenant[row] if case.policy.ordering == Ordering.FAIR else case.rank[row]


@rule
def least_wanted(case: Case, row: int) -> int:
    """Tokens that one takes for itself when it enters, and that those behind it do not find."""
    want = chunk_wanted(case, row)
    return min(want, case.limits.block_size) if case.policy.prefill_sharing == PrefillSharing.EQUAL else want


@compiled
def beside_each_other(
    running: IntArray, num_tokens: IntArray, entering: IntArray, num_entering_tokens: IntArray, case: Case
) -> Shares:
    """What each has of the pass once those in progress have given way. `running` is in order."""
    sharing = case.policy.prefill_sharing
    if sharing == PrefillSharing.FIRST_COME or len(entering) == 0:
        return Shares(num_tokens, num_entering_tokens)
    num_decode_tokens, num_prompt_tokens = 0, 0
    for place in range(len(running)):
        if not in_decode(case, running[place]):
            num_prompt_tokens += num_tokens[place]
        elif not prefills_lead(case.policy.batch_composition):
            num_decode_tokens += num_tokens[place]
    for place in range(len(entering)):
        if in_decode(case, entering[place]):
            num_decode_tokens += num_entering_tokens[place]
        else:
            num_prompt_tokens += num_entering_tokens[place]
    budget = min(case.limits.max_num_batched_tokens - num_decode_tokens, prefill_budget(running, case))
    if sharing == PrefillSharing.EQUAL:
        return _shared_anew(running, num_tokens, entering, num_entering_tokens, budget, case)
    return Shares(_last_give_up(running, num_tokens, num_prompt_tokens - budget, case), num_entering_tokens)


@compiled
def _shared_anew(
    running: IntArray,
    num_tokens: IntArray,
    entering: IntArray,
    num_entering_tokens: IntArray,
    budget: int,
    case: Case,
) -> Shares:
    """EQUAL: all prompts share the budget alike."""
    want = zeros(len(running) + len(entering))
    for place in range(len(running)):
        if not in_decode(case, running[place]) and num_tokens[place] > 0:
            want[place] = chunk_wanted(case, running[place])
    for place in range(len(entering)):
        if not in_decode(case, entering[place]):
            want[len(running) + place] = chunk_wanted(case, entering[place])
    shared = equal_shares(want, budget) if total(want) > budget else want
    of_running, of_entering = num_tokens.copy(), num_entering_tokens.copy()
    for place in range(len(want)):
        if want[place] > 0 and place < len(running):
            of_running[place] = shared[place]
        elif want[place] > 0:
            of_entering[place - len(running)] = shared[place]
    return Shares(of_running, of_entering)


@compiled
def _last_give_up(running: IntArray, num_tokens: IntArray, excess: int, case: Case) -> IntArray:
    """IN_ORDER: what is too much the last in order of those in progress go without."""
    left, turns = num_tokens.copy(), np.empty((1, len(running)), dtype=np.int64)
    for place in range(len(running)):
        turns[0, place] = turn(case, running[place])
    order = places_in_order(turns)
    for index in range(len(order) - 1, -1, -1):
        place = order[index]
        if not in_decode(case, running[place]):
            given = min(max(excess, 0), left[place])
            left[place] -= given
            excess -= given
    return left
