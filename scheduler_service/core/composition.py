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

from dataclasses import dataclass

import numpy as np

from scheduler_service.core.chunking import share_among_decodes, share_among_prefills
from scheduler_service.core.policy import BatchComposition, Policy
from scheduler_service.core.state import ExecutorState, IntArray, Requests
from scheduler_service.core.work import most_outputs_left

ONE_PHASE = (BatchComposition.DECODE_FIRST, BatchComposition.SEPARATE)
_PREFILLS_LEAD = (BatchComposition.PREFILL_FIRST, BatchComposition.SEPARATE)


@dataclass(frozen=True, slots=True, kw_only=True)
class TokensLeft:
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
    budget, in_decode = executor.limits.max_num_batched_tokens, running.in_decode
    if in_decode.all():
        return share_among_decodes(running, in_decode, budget, _most_drafts(running, executor))
    most_prefill_tokens = prefill_budget(running, executor, policy)
    if policy.batch_composition in _PREFILLS_LEAD:
        prefills = share_among_prefills(running, in_decode, most_prefill_tokens, policy)
        if policy.batch_composition is BatchComposition.SEPARATE and prefills.any():
            return prefills
        left = budget - int(prefills.sum())
        return prefills + share_among_decodes(running, in_decode, left, _most_drafts(running, executor))
    decodes = share_among_decodes(running, in_decode, budget, _most_drafts(running, executor))
    if policy.batch_composition is BatchComposition.DECODE_FIRST and decodes.any():
        return decodes
    left = min(budget - int(decodes.sum()), most_prefill_tokens)
    return decodes + share_among_prefills(running, in_decode, left, policy)


def prefill_budget(running: Requests, executor: ExecutorState, policy: Policy) -> int:
    """Most prefill tokens of the pass."""
    limits, latency, target = executor.limits, executor.latency, policy.target_inter_token_latency_us
    if target is None or latency is None or latency.prefill_token_us == 0:
        return limits.max_num_batched_tokens
    in_decode = running.in_decode
    num_decodes = int(np.count_nonzero(in_decode))
    if num_decodes == 0:
        return limits.max_num_batched_tokens
    num_kv_tokens = int(running.num_computed_tokens[in_decode].sum())
    spent_us = latency.pass_us + num_decodes * latency.decode_request_us + num_kv_tokens * latency.kv_token_us
    # A model may hold any figures, so this may be infinite until it is bounded.
    num_tokens = max((target - spent_us) / latency.prefill_token_us, limits.block_size)
    return int(min(num_tokens, limits.max_num_batched_tokens))


def tokens_left(running: Requests, num_tokens: IntArray, executor: ExecutorState, policy: Policy) -> TokensLeft:
    """What the queue may have beside those that run so many tokens."""
    budget = executor.limits.max_num_batched_tokens
    in_decode = running.in_decode
    num_decode_tokens = int(num_tokens[in_decode].sum())
    num_prefill_tokens = int(num_tokens.sum()) - num_decode_tokens
    left = budget - num_prefill_tokens - num_decode_tokens
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
    in_decode = running.in_decode
    if policy.batch_composition is BatchComposition.PREFILL_FIRST:
        prefills = np.where(in_decode, 0, num_tokens)
        left = executor.limits.max_num_batched_tokens - int(prefills.sum()) - int(num_entering_tokens.sum())
        return prefills + share_among_decodes(running, in_decode, left, np.maximum(num_tokens - 1, 0))
    return np.where(in_decode == bool(entering.in_decode[0]), num_tokens, 0)


def _most_drafts(running: Requests, executor: ExecutorState) -> IntArray:
    """Drafts that are of use: there is room for them in the batch and in the cache, and the answer may be so long."""
    limits = executor.limits
    if not running.num_draft_tokens.any():
        return running.num_draft_tokens
    room_in_cache = limits.num_blocks * limits.block_size - running.num_computed_tokens - 1
    useful = np.minimum(room_in_cache, most_outputs_left(running, limits) - 1)
    return np.clip(useful, 0, limits.max_num_batched_tokens - 1)
