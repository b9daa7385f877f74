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
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from scheduler_service.core.chunking import chunks_wanted, share_among_decodes, share_among_prefills
from scheduler_service.core.policy import BatchComposition, Policy
from scheduler_service.core.state import ExecutorState, IntArray, Requests
from scheduler_service.core.work import most_outputs_left

ONE_PHASE = (BatchComposition.DECODE_FIRST, BatchComposition.SEPARATE)
_MIXES_PHASES = (BatchComposition.MIXED, BatchComposition.PREFILL_FIRST)
_PREFILLS_LEAD = (BatchComposition.PREFILL_FIRST, BatchComposition.SEPARATE)


class TokensLeft(NamedTuple):
    """Tokens that those who run leave to those who enter, by the phase that these are in.

    `num_prefill_tokens` bounds prefills alone, `num_tokens` all. `one_phase`: only one of the phases may enter.
    """

    num_tokens: int
    num_prefill_tokens: int
    num_decode_tokens: int
    one_phase: bool

    def less(self, num_prefill_tokens: int, num_decode_tokens: int) -> TokensLeft:
        """What is left once some have entered. Where they are of one phase and that is all a pass holds, only to it."""
        num_tokens = num_prefill_tokens + num_decode_tokens
        for_prefills, for_decodes = self.num_prefill_tokens - num_prefill_tokens, self.num_decode_tokens - num_tokens
        if self.one_phase and num_tokens > 0:
            for_prefills = for_prefills if num_prefill_tokens > 0 else 0
            for_decodes = for_decodes if num_decode_tokens > 0 else 0
        return TokensLeft(
            num_tokens=self.num_tokens - num_tokens,
            num_prefill_tokens=for_prefills,
            num_decode_tokens=for_decodes,
            one_phase=self.one_phase,
        )


def share_tokens(running: Requests, executor: ExecutorState, policy: Policy) -> IntArray:
    """Tokens for each running request, if nobody enters. `running` is in order."""
    budget, want = executor.limits.max_num_batched_tokens, _tokens_wanted(running, executor, policy)
    if _phases_mix_freely(policy) and int(want.sum()) <= budget:
        return want
    decodes = want * running.in_decode
    prefills = want - decodes
    most_prefill_tokens = prefill_budget(running, executor, policy)
    if policy.batch_composition in _PREFILLS_LEAD:
        prefills = share_among_prefills(prefills, most_prefill_tokens, policy)
        left = budget - int(prefills.sum())
        if policy.batch_composition is BatchComposition.SEPARATE and left < budget:
            return prefills
        return prefills + share_among_decodes(running, decodes, left)
    decodes = share_among_decodes(running, decodes, budget)
    left = budget - int(decodes.sum())
    if policy.batch_composition is BatchComposition.DECODE_FIRST and left < budget:
        return decodes
    return decodes + share_among_prefills(prefills, min(left, most_prefill_tokens), policy)


def _tokens_wanted(running: Requests, executor: ExecutorState, policy: Policy) -> IntArray:
    """What each would run with no one beside it: a chunk, or its next token and the drafts that are of use."""
    want = chunks_wanted(running, policy)
    return want if running.whole.greatest["num_draft_tokens"] == 0 else want + _drafts_of_use(running, executor)


def _phases_mix_freely(policy: Policy) -> bool:
    """Whether nothing but the token budget limits what a pass may hold of either phase."""
    return (
        policy.batch_composition in _MIXES_PHASES
        and policy.max_num_partial_prefills is None
        and policy.target_inter_token_latency_us is None
    )


def prefill_budget(running: Requests, executor: ExecutorState, policy: Policy) -> int:
    """Most prefill tokens of the pass."""
    limits, latency, target = executor.limits, executor.latency, policy.target_inter_token_latency_us
    if target is None or latency is None or latency.prefill_token_us == 0:
        return limits.max_num_batched_tokens
    in_decode = running.in_decode
    num_decodes = int(np.count_nonzero(in_decode))
    if num_decodes == 0:
        return limits.max_num_batched_tokens
    num_kv_tokens = int(running.num_computed_tokens.dot(in_decode))
    spent_us = latency.pass_us + num_decodes * latency.decode_request_us + num_kv_tokens * latency.kv_token_us
    # A model may hold any figures, so this may be infinite until it is bounded.
    num_tokens = max((target - spent_us) / latency.prefill_token_us, limits.block_size)
    return int(min(num_tokens, limits.max_num_batched_tokens))


def tokens_left(running: Requests, num_tokens: IntArray, executor: ExecutorState, policy: Policy) -> TokensLeft:
    """What the queue may have beside those that run so many tokens."""
    budget = executor.limits.max_num_batched_tokens
    left = budget - int(num_tokens.sum())
    if policy.batch_composition is BatchComposition.MIXED and policy.target_inter_token_latency_us is None:
        return TokensLeft(num_tokens=left, num_prefill_tokens=left, num_decode_tokens=left, one_phase=False)
    num_decode_tokens = int(num_tokens.dot(running.in_decode))
    num_prefill_tokens = budget - left - num_decode_tokens
    left_to_prefills = prefill_budget(running, executor, policy) - num_prefill_tokens
    match policy.batch_composition:
        case BatchComposition.MIXED:
            for_prefills, for_decodes = left, left
        case BatchComposition.PREFILL_FIRST:
            for_prefills, for_decodes = left + num_decode_tokens, left + num_decode_tokens
        case BatchComposition.SEPARATE:
            for_prefills, for_decodes = left + num_decode_tokens, left if num_prefill_tokens == 0 else 0
        case BatchComposition.DECODE_FIRST:
            for_prefills, for_decodes = left if num_decode_tokens == 0 else 0, left + num_prefill_tokens
    return TokensLeft(
        num_tokens=max(for_prefills, for_decodes),
        num_prefill_tokens=min(for_prefills, left_to_prefills),
        num_decode_tokens=for_decodes,
        one_phase=policy.batch_composition in ONE_PHASE,
    )


def give_way(
    running: Requests,
    num_tokens: IntArray,
    entering: Requests,
    num_entering_tokens: IntArray,
    executor: ExecutorState,
    policy: Policy,
) -> IntArray:
    """Tokens for each running request, beside those that enter."""
    if policy.batch_composition is BatchComposition.MIXED or len(entering) == 0:
        return num_tokens
    if policy.batch_composition in ONE_PHASE:
        of_phase: IntArray = num_tokens * (running.in_decode == entering.in_decode[0])
        return of_phase
    num_entering = int(num_entering_tokens.sum())
    if int(num_tokens.sum()) + num_entering <= executor.limits.max_num_batched_tokens:
        return num_tokens
    decodes = num_tokens * running.in_decode
    prefills = num_tokens - decodes
    left = executor.limits.max_num_batched_tokens - int(prefills.sum()) - num_entering
    return prefills + share_among_decodes(running, decodes, left)


def _drafts_of_use(running: Requests, executor: ExecutorState) -> IntArray:
    """Drafts for which there is room in the batch and in the cache, of answers that may become so long."""
    limits = executor.limits
    room_in_cache = limits.num_blocks * limits.block_size - running.num_computed_tokens - 1
    useful = np.minimum(room_in_cache, most_outputs_left(running, limits) - 1)
    most = np.clip(useful, 0, limits.max_num_batched_tokens - 1)
    drafts: IntArray = np.minimum(running.num_draft_tokens, most) * running.in_decode
    return drafts
