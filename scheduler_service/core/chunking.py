"""The token budget of a pass, shared out.

Decodes come first: a token each and its drafts. Where that is more than the budget the drafts go, and where even the
decodes are too many they take turns, the least recently run first, then in order. The rest of the budget goes to
prefills in order: each takes a chunk, at most `chunk_size_tokens` and what it lacks, until the budget is used up
(Sarathi-Serve, arXiv 2403.02310). So a long prompt delays the decodes of others by one chunk a pass at most.
"""

from __future__ import annotations

import numpy as np

from scheduler_service.core.executor_plan import Reason
from scheduler_service.core.policy import Policy
from scheduler_service.core.state import BoolArray, IntArray, Requests, rows_where


def share_tokens(running: Requests, budget: int, max_draft_tokens: IntArray, policy: Policy) -> IntArray:
    """Tokens for each running request in the pass. `running` is in order; `max_draft_tokens`: drafts that fit."""
    in_decode = running.in_decode
    num_tokens = _share_among_decodes(running, in_decode, budget, max_draft_tokens)
    if not in_decode.all():
        left = budget - int(num_tokens.sum())
        want = np.where(in_decode, 0, chunks_wanted(running, policy))
        if policy.max_num_partial_prefills is not None:
            want[np.cumsum(~in_decode) > policy.max_num_partial_prefills] = 0
        num_tokens = num_tokens + first_come(want, left)
    return num_tokens


def _share_among_decodes(running: Requests, in_decode: BoolArray, budget: int, max_drafts: IntArray) -> IntArray:
    drafts = np.minimum(running.num_draft_tokens, max_drafts)
    num_tokens: IntArray = in_decode * (1 + drafts)
    if int(num_tokens.sum()) <= budget:
        return num_tokens
    decodes = rows_where(in_decode)
    longest_without = np.argsort(running.last_run_iteration[decodes], kind="stable")
    num_tokens = np.zeros_like(num_tokens)
    num_tokens[decodes[longest_without[:budget]]] = 1
    return num_tokens


def chunks_wanted(requests: Requests, policy: Policy) -> IntArray:
    """The chunk that each would compute in one pass with no one beside it."""
    chunks: IntArray = np.minimum(requests.num_lacking_tokens, policy.chunk_size_tokens)
    return chunks


def first_come(want: IntArray, budget: int) -> IntArray:
    """What each gets of the budget, when each in its turn takes what it wants of what is left."""
    taken_before = np.cumsum(want) - want
    taken: IntArray = np.minimum(np.maximum(budget - taken_before, 0), want)
    return taken


def reasons_to_run(requests: Requests, num_tokens: IntArray, policy: Policy) -> IntArray:
    """Why each runs so many tokens."""
    reasons = np.where(
        num_tokens == requests.num_lacking_tokens,
        Reason.PREFILL.value,
        np.where(
            num_tokens == policy.chunk_size_tokens,
            Reason.PREFILL_CHUNK_SIZE.value,
            Reason.PREFILL_TOKEN_BUDGET.value,
        ),
    )
    reasons[requests.in_decode] = Reason.DECODE.value
    return reasons
