"""Which phases share a pass, and how many tokens each may have of it.

- MIXED: decodes first, chunks fill the rest of the token budget. A long prompt delays the decodes of others by one
  chunk a pass at most.
- PREFILL_FIRST: prefills first, those that enter included; decodes fill the rest.
- DECODE_FIRST: decodes alone while there are any, prefills otherwise.
- SEPARATE: one phase alone, prefills before decodes.

Where a pass holds one phase only and those that run leave it open which, the head of the queue says so by entering: the
others then pause for the pass. So whoever stands at the head is never kept out by the phase for longer than those that
run are in it.

`target_inter_token_latency_us` bounds the prefill tokens of a pass while anyone decodes: to what the latency model
leaves of the target when all decodes are paid for, and never below a block, so that prompts go on.
`max_inter_token_slowdown` is such a target too, as a multiple of what the decodes take alone: it fits every machine. Up
to it each prompt that is computed or waits gets as long as the decodes get together: one that joins alone makes a pass
twice as long, and many do not queue behind a bound that was meant for one (docs/adr/0041). Where both are set the
target bounds what the prompts get together, and the multiple takes its place where the machine is too slow for it
(docs/adr/0042): all of the multiple where the decodes alone take the target, and of it as large a part as they take of
the target before, once that is more. So a pass becomes longer by degrees as decodes become slower, and a latency model
that is off by a little bounds it by a little more or less (docs/adr/0055). Three quarters of the target a pass may
always have, however few and fast the decodes are: nobody has asked for less (docs/adr/0048).

    the most that a pass takes /
    target, for three prompts,  4 |              __/      4 times the decodes
    with a multiple of 4        3 |           __/
                                2 |        __/
                                1 | ______/               the target
                                0 +-------+-------+
                                  0      1/2      1       decodes alone / target
"""

from __future__ import annotations

from typing import NamedTuple

from scheduler_service.core.case import NUM_COMPUTED_TOKENS, STATUS, UNBOUNDED, Case, in_decode
from scheduler_service.core.chunking import chunk_wanted, share_among_decodes, share_among_prefills
from scheduler_service.core.compiled import compiled, lean, rule
from scheduler_service.core.memory import new_blocks
from scheduler_service.core.policy import BatchComposition
from scheduler_service.core.rows import total, zeros
from scheduler_service.core.state import IntArray, RequestStatus

# A model may hold any figures; above 30 years they make no difference, and products of them stay finite.
_MOST_US = 1e15
# Of a target for inter-token latency: what a pass may take for one prompt, too.
_PART_OF_TARGET = 0.75


class TokensLeft(NamedTuple):
    """Tokens that those who run leave to those who enter, by the phase that these are in.

    `num_prefill_tokens` bounds prefills alone, `num_tokens` all. `one_phase`: only one of the phases may enter.
    """

    num_tokens: int
    num_prefill_tokens: int
    num_decode_tokens: int
    one_phase: bool


@rule
def holds_one_phase(composition: int) -> bool:
    """Whether a pass holds prefills or decodes, and never both."""
    return composition == BatchComposition.DECODE_FIRST or composition == BatchComposition.SEPARATE


@rule
def prefills_lead(composition: int) -> bool:
    """Whether prefills take their tokens before decodes do."""
    return composition == BatchComposition.PREFILL_FIRST or composition == BatchComposition.SEPARATE


@compiled
def share_tokens(running: IntArray, case: Case) -> IntArray:
    """Tokens for each running request, if nobody enters and without drafts. `running` is in order."""
    budget, composition = case.limits.max_num_batched_tokens, case.policy.batch_composition
    decodes, prefills = zeros(len(running)), zeros(len(running))
    for place in range(len(running)):
        row = running[place]
        if in_decode(case, row):
            decodes[place] = 1
        else:
            prefills[place] = chunk_wanted(case, row)
    most_prefill_tokens = prefill_budget(running, case)
    if prefills_lead(composition):
        prefills = share_among_prefills(prefills, most_prefill_tokens, case)
        left = budget - total(prefills)
        if composition == BatchComposition.SEPARATE and left < budget:
            return prefills
        return _together(prefills, share_among_decodes(running, decodes, left, case))
    decodes = share_among_decodes(running, decodes, budget, case)
    left = budget - total(decodes)
    if composition == BatchComposition.DECODE_FIRST and left < budget:
        return decodes
    return _together(decodes, share_among_prefills(prefills, min(left, most_prefill_tokens), case))


@compiled
def with_decodes_that_wait(running: IntArray, num_tokens: IntArray, case: Case) -> IntArray:
    """The same once prefills run fewer tokens than they were given: decodes that have their block take what is left."""
    if holds_one_phase(case.policy.batch_composition):
        return num_tokens
    decodes, prefills = zeros(len(running)), num_tokens.copy()
    for place in range(len(running)):
        row = running[place]
        if in_decode(case, row):
            has_block = new_blocks(case, row, case.requests[NUM_COMPUTED_TOKENS, row] + 1) == 0
            decodes[place], prefills[place] = has_block or num_tokens[place] > 0, 0
    left = case.limits.max_num_batched_tokens - total(prefills)
    return _together(prefills, share_among_decodes(running, decodes, left, case))


@compiled
def _together(num_tokens: IntArray, of_others: IntArray) -> IntArray:
    """The tokens of each: a request is in one of the phases, and has none in the other."""
    both = zeros(len(num_tokens))
    for place in range(len(both)):
        both[place] = num_tokens[place] + of_others[place]
    return both


@lean
def prefill_budget(running: IntArray, case: Case) -> int:
    """Most prefill tokens of the pass."""
    most, latency, policy = case.limits.max_num_batched_tokens, case.latency, case.policy
    is_bounded = policy.target_inter_token_latency_us != UNBOUNDED or policy.max_inter_token_slowdown > 0
    decodes_us = _decodes_alone_us(running, case)
    if not is_bounded or latency.prefill_token_us == 0 or decodes_us < 0:
        return most
    most_us = _most_pass_us(decodes_us, 1.0 + max(1, _num_prompts(running, case)), case)
    num_tokens = max((most_us - decodes_us) / latency.prefill_token_us, float(case.limits.block_size))
    return int(min(num_tokens, float(most)))


@lean
def prefill_token_time_us(running: IntArray, case: Case) -> float:
    """What a prompt token takes in a pass that holds as many as it may: its part of the pass, decodes included."""
    num_tokens = float(prefill_budget(running, case))
    pass_us = max(_decodes_alone_us(running, case), min(case.latency.pass_us, _MOST_US))
    return pass_us / num_tokens + min(case.latency.prefill_token_us, _MOST_US)


@lean
def _most_pass_us(decodes_us: float, slowdown_for_each: float, case: Case) -> float:
    """How long a pass may take whose decodes alone take `decodes_us`, where that is bounded.

    `slowdown_for_each`: as many times that if each prompt gets as long as the decodes.
    """
    target, slowdown = case.policy.target_inter_token_latency_us, case.policy.max_inter_token_slowdown
    if slowdown == 0:
        return float(target)
    if target == UNBOUNDED:
        return min(slowdown, slowdown_for_each) * decodes_us
    part_of_slowdown = min(1.0, decodes_us / target)
    most_us = max(float(target), part_of_slowdown * slowdown * decodes_us)
    return min(most_us, max(slowdown_for_each * decodes_us, _PART_OF_TARGET * target))


@lean
def _decodes_alone_us(running: IntArray, case: Case) -> float:
    """What a pass takes that holds the decodes alone, by the latency model; negative where nobody decodes."""
    latency, num_decodes, num_kv_tokens = case.latency, 0, 0
    for row in running:
        if in_decode(case, row):
            num_decodes += 1
            num_kv_tokens += case.requests[NUM_COMPUTED_TOKENS, row]
    if num_decodes == 0:
        return -1.0
    # A model may hold any figures, so these may be infinite until they are bounded.
    return min(
        latency.pass_us + num_decodes * latency.decode_request_us + num_kv_tokens * latency.kv_token_us, _MOST_US
    )


@lean
def _num_prompts(running: IntArray, case: Case) -> int:
    """Requests that compute a prompt, or wait to."""
    count = 0
    for status in case.requests[STATUS]:
        count += status == RequestStatus.WAITING
    for row in running:
        count += not in_decode(case, row)
    return count


@lean
def tokens_left(running: IntArray, num_tokens: IntArray, case: Case) -> TokensLeft:
    """What the queue may have beside those that run so many tokens."""
    budget, composition = case.limits.max_num_batched_tokens, case.policy.batch_composition
    num_decode_tokens, num_prefill_tokens = 0, 0
    for place in range(len(running)):
        if in_decode(case, running[place]):
            num_decode_tokens += num_tokens[place]
        else:
            num_prefill_tokens += num_tokens[place]
    left = budget - num_decode_tokens - num_prefill_tokens
    for_prefills, for_decodes = left, left
    if composition == BatchComposition.PREFILL_FIRST:
        for_prefills, for_decodes = left + num_decode_tokens, left + num_decode_tokens
    elif composition == BatchComposition.SEPARATE:
        for_prefills, for_decodes = left + num_decode_tokens, left if num_prefill_tokens == 0 else 0
    elif composition == BatchComposition.DECODE_FIRST:
        for_prefills, for_decodes = left if num_decode_tokens == 0 else 0, left + num_prefill_tokens
    return TokensLeft(
        max(for_prefills, for_decodes),
        min(for_prefills, prefill_budget(running, case) - num_prefill_tokens),
        for_decodes,
        holds_one_phase(composition),
    )


@lean
def less(left: TokensLeft, num_prefill_tokens: int, num_decode_tokens: int) -> TokensLeft:
    """What is left once some have entered. Where they are of one phase and that is all a pass holds, only to it."""
    num_tokens = num_prefill_tokens + num_decode_tokens
    for_prefills, for_decodes = left.num_prefill_tokens - num_prefill_tokens, left.num_decode_tokens - num_tokens
    if left.one_phase and num_tokens > 0:
        for_prefills = for_prefills if num_prefill_tokens > 0 else 0
        for_decodes = for_decodes if num_decode_tokens > 0 else 0
    return TokensLeft(left.num_tokens - num_tokens, for_prefills, for_decodes, left.one_phase)


@compiled
def give_way(
    running: IntArray, num_tokens: IntArray, entering: IntArray, num_entering_tokens: IntArray, case: Case
) -> IntArray:
    """Tokens for each running request, beside those that enter."""
    composition, budget = case.policy.batch_composition, case.limits.max_num_batched_tokens
    if composition == BatchComposition.MIXED or len(entering) == 0:
        return num_tokens
    decodes, prefills = num_tokens.copy(), num_tokens.copy()
    for place in range(len(running)):
        if in_decode(case, running[place]):
            prefills[place] = 0
        else:
            decodes[place] = 0
    if holds_one_phase(composition):
        return decodes if in_decode(case, entering[0]) else prefills
    num_entering = total(num_entering_tokens)
    if total(num_tokens) + num_entering <= budget:
        return num_tokens
    left = budget - total(prefills) - num_entering
    return _together(prefills, share_among_decodes(running, decodes, left, case))
