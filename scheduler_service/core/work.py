"""How much is left of a request, in tokens: what is bounded, and what is expected.

- It may generate at most `max_output_tokens`; where that is open (0), as many as the model's length leaves.
- It is expected to generate `expected_output_tokens`; where that is unknown (0), as many as it may. One that outlived
  its expectation is expected to end with its next token.
- With l output tokens left it computes the tokens that it lacks and l - 1 more: the last one is stored nowhere.
"""

from __future__ import annotations

from scheduler_service.core.case import (
    EXPECTED_OUTPUT_TOKENS,
    MAX_OUTPUT_TOKENS,
    NUM_OUTPUT_TOKENS,
    NUM_PROMPT_TOKENS,
    Case,
    num_lacking_tokens,
)
from scheduler_service.core.compiled import rule


@rule
def most_outputs_left(case: Case, row: int) -> int:
    """Output tokens that it may still generate, >= 1."""
    most = case.requests[MAX_OUTPUT_TOKENS, row]
    if most == 0:
        most = case.limits.max_model_len - case.requests[NUM_PROMPT_TOKENS, row]
    return max(most - case.requests[NUM_OUTPUT_TOKENS, row], 1)


@rule
def expected_outputs_left(case: Case, row: int) -> int:
    """Output tokens that it is expected to generate yet, >= 1 and at most what it may."""
    most, expected = most_outputs_left(case, row), case.requests[EXPECTED_OUTPUT_TOKENS, row]
    if expected == 0:
        return most
    return min(max(expected - case.requests[NUM_OUTPUT_TOKENS, row], 1), most)


@rule
def tokens_to_compute(case: Case, row: int) -> int:
    """Expected tokens to compute until it is complete, >= 1: what its prompt lacks and its output.

    An output of open length counts as if it could have the whole model length, whatever the prompt takes of it: so of
    two of which nothing is known the one with the shorter prompt is the shorter.
    """
    work = num_lacking_tokens(case, row) + expected_outputs_left(case, row) - 1
    if case.requests[MAX_OUTPUT_TOKENS, row] == 0 and case.requests[EXPECTED_OUTPUT_TOKENS, row] == 0:
        work += case.requests[NUM_PROMPT_TOKENS, row]
    return work
