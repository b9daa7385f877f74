"""How much is left of a request, in tokens: what is bounded, and what is expected.

- It may generate at most `max_output_tokens`; where that is open (0), as many as the model's length leaves.
- It is expected to generate `expected_output_tokens`; where that is unknown (0), as many as it may. One that outlived
  its expectation is expected to end with its next token.
- With l output tokens left it computes the tokens that it lacks and l - 1 more: the last one is stored nowhere.
"""

from __future__ import annotations

import numpy as np

from scheduler_service.core.state import ExecutorLimits, IntArray, Requests


def most_outputs_left(requests: Requests, limits: ExecutorLimits) -> IntArray:
    """Output tokens that each may still generate, >= 1."""
    most = requests.max_output_tokens
    if requests.whole.least["max_output_tokens"] == 0:
        most = np.where(most > 0, most, limits.max_model_len - requests.num_prompt_tokens)
    left: IntArray = most - requests.num_output_tokens
    return np.maximum(left, 1, out=left)


def expected_outputs_left(requests: Requests, limits: ExecutorLimits) -> IntArray:
    """Output tokens that each is expected to generate yet, >= 1 and at most what it may."""
    most, expected = most_outputs_left(requests, limits), requests.expected_output_tokens
    if requests.whole.greatest["expected_output_tokens"] == 0:
        return most
    left: IntArray = expected - requests.num_output_tokens
    np.maximum(left, 1, out=left)
    np.minimum(left, most, out=left)
    return np.where(expected > 0, left, most)


def tokens_to_compute(requests: Requests, limits: ExecutorLimits) -> IntArray:
    """Expected tokens to compute until each is complete, >= 1: what its prompt lacks and its output.

    An output of open length counts as if it could have the whole model length, whatever the prompt takes of it: so of
    two of which nothing is known the one with the shorter prompt is the shorter.
    """
    work: IntArray = requests.num_lacking_tokens + expected_outputs_left(requests, limits)
    work -= 1
    if requests.whole.least["max_output_tokens"] == 0:
        is_open = (requests.expected_output_tokens == 0) & (requests.max_output_tokens == 0)
        work += is_open * requests.num_prompt_tokens
    return work
