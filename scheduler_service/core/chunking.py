"""Tokens of a pass, shared out within a phase. Which phases share a pass is told in `composition.py`.

- Decodes: a token each and its drafts. Where that is more than the budget the drafts go, and where even the decodes are
  too many they take turns, the least recently run first, then in order.
- Prefills: each wants a chunk, at most `chunk_size_tokens` and what it lacks. FIRST_COME: in order each takes what it
  wants of what is left (Sarathi-Serve, arXiv 2403.02310). EQUAL: all advance alike, as far as each wants, a token that
  is left over going to the first.
"""

from __future__ import annotations

import numpy as np

from scheduler_service.core.executor_plan import Reason
from scheduler_service.core.policy import Policy, PrefillSharing
from scheduler_service.core.state import IntArray, Requests, rows_where

# Reasons to run, by what is false or true of a request.
_WHOLE_PREFILL_OR_DECODE = np.array([Reason.PREFILL, Reason.DECODE], dtype=np.int64)
_BUDGET_OR_CHUNK_SIZE = np.array([Reason.PREFILL_TOKEN_BUDGET, Reason.PREFILL_CHUNK_SIZE], dtype=np.int64)


def share_among_decodes(running: Requests, want: IntArray, budget: int) -> IntArray:
    """Tokens of each that decodes. `running` is in order; `want`: a token and its drafts, 0 for those in prefill."""
    if int(want.sum()) <= budget:
        return want
    decodes = want.nonzero()[0]
    longest_without = running.last_run_iteration[decodes].argsort(kind="stable")
    num_tokens = np.zeros_like(want)
    num_tokens[decodes[longest_without[: max(budget, 0)]]] = 1
    return num_tokens


def share_among_prefills(want: IntArray, budget: int, policy: Policy) -> IntArray:
    """Tokens of each that is in prefill, in order. `want`: a chunk, 0 for those that decode."""
    if policy.max_num_partial_prefills is not None:
        want = want * ((want > 0).cumsum() <= policy.max_num_partial_prefills)
    return share(want, budget, policy)


def chunks_wanted(requests: Requests, policy: Policy) -> IntArray:
    """The chunk that each would compute in one pass with no one beside it."""
    chunks: IntArray = np.minimum(requests.num_lacking_tokens, policy.chunk_size_tokens)
    return chunks


def share(want: IntArray, budget: int, policy: Policy) -> IntArray:
    """What each gets of the budget."""
    if policy.prefill_sharing is PrefillSharing.EQUAL and int(want.sum()) > budget:
        return equal_shares(want, max(budget, 0))
    return first_come(want, budget)


def first_come(want: IntArray, budget: int) -> IntArray:
    """What each gets of the budget, when each in its turn takes what it wants of what is left."""
    if int(want.sum()) <= budget:
        return want
    taken_before = want.cumsum() - want
    taken: IntArray = np.minimum(np.maximum(budget - taken_before, 0), want)
    return taken


def equal_shares(want: IntArray, budget: int) -> IntArray:
    """What each gets of a budget that is too small: the same for all, or what it wants where that is less.

    The level at which water poured into all stands (max-min fairness); what does not divide goes to the first in turn.
    """
    ascending, num_left = np.sort(want), np.arange(len(want), 0, -1)
    # Where all before have what they want, and what is left does not do for the others, these stand level.
    left = budget - (np.cumsum(ascending) - ascending)
    first_short = int((ascending * num_left > left).argmax())
    level = left[first_short] // num_left[first_short]
    taken: IntArray = np.minimum(want, level)
    taken[rows_where(want > level)[: budget - int(taken.sum())]] += 1
    return taken


def reasons_to_run(requests: Requests, num_tokens: IntArray, policy: Policy) -> IntArray:
    """Why each runs so many tokens."""
    reasons: IntArray = _WHOLE_PREFILL_OR_DECODE.take(requests.in_decode)
    cut = rows_where(num_tokens < requests.num_lacking_tokens)
    if len(cut) > 0:
        reasons[cut] = _BUDGET_OR_CHUNK_SIZE.take(num_tokens[cut] == policy.chunk_size_tokens)
    return reasons
