"""Prompts in progress that give way to those that enter, so that all advance alike (EQUAL).

Under FIRST_COME a prompt in progress has its chunk, and who enters takes what is left of the pass. Under EQUAL those in
progress give up all but a block of tokens each, or what they have where that is less: so a chunk that fills the pass
keeps nobody out. Who enters takes as much for itself, and finds at least a token. Then all that is there for prompts is
shared out anew among both. So everyone goes on, and no pass holds more prompts than blocks of tokens, the last one
begun included, and those that lack less than a block.
"""

from __future__ import annotations

from typing import NamedTuple

from scheduler_service.core.case import Case, in_decode
from scheduler_service.core.chunking import chunk_wanted, equal_shares
from scheduler_service.core.compiled import compiled, lean, rule
from scheduler_service.core.composition import prefill_budget, prefills_lead
from scheduler_service.core.policy import PrefillSharing
from scheduler_service.core.rows import total, zeros
from scheduler_service.core.state import IntArray


class Shares(NamedTuple):
    """Tokens of those that run, and of those that enter."""

    running: IntArray
    entering: IntArray


@lean
def num_given_up(running: IntArray, num_tokens: IntArray, case: Case) -> int:
    """Tokens that prompts in progress leave to those that enter."""
    num_given = 0
    if case.policy.prefill_sharing == PrefillSharing.EQUAL:
        for place in range(len(running)):
            if not in_decode(case, running[place]):
                num_given += max(num_tokens[place] - case.limits.block_size, 0)
    return num_given


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
    if case.policy.prefill_sharing != PrefillSharing.EQUAL or len(entering) == 0:
        return Shares(num_tokens, num_entering_tokens)
    want, num_decode_tokens = zeros(len(running) + len(entering)), 0
    for place in range(len(running)):
        if not in_decode(case, running[place]):
            want[place] = chunk_wanted(case, running[place]) if num_tokens[place] > 0 else 0
        elif not prefills_lead(case.policy.batch_composition):
            num_decode_tokens += num_tokens[place]
    for place in range(len(entering)):
        if in_decode(case, entering[place]):
            num_decode_tokens += num_entering_tokens[place]
        else:
            want[len(running) + place] = chunk_wanted(case, entering[place])
    budget = min(case.limits.max_num_batched_tokens - num_decode_tokens, prefill_budget(running, case))
    shared = equal_shares(want, budget) if total(want) > budget else want
    of_running, of_entering = num_tokens.copy(), num_entering_tokens.copy()
    for place in range(len(want)):
        if want[place] > 0 and place < len(running):
            of_running[place] = shared[place]
        elif want[place] > 0:
            of_entering[place - len(running)] = shared[place]
    return Shares(of_running, of_entering)
