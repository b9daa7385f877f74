"""Times by the executor's latency model, in microseconds.

A pass takes `pass_us`, `prefill_token_us` for each prefill token, `decode_request_us` for each request that decodes and
`kv_token_us` for each token of KV that these read. Counts are whole numbers, added up before they meet the model's
figures, so the order of the rows does not matter.
"""

from __future__ import annotations

import numpy as np

from scheduler_service.core.case import (
    EXPECTED_OUTPUT_TOKENS,
    NUM_COMPUTED_TOKENS,
    Case,
    in_decode,
    num_lacking_tokens,
)
from scheduler_service.core.compiled import lean
from scheduler_service.core.executor_plan import Composition
from scheduler_service.core.memory import blocks_for
from scheduler_service.core.state import BoolArray, IntArray
from scheduler_service.core.work import expected_outputs_left

# A model may hold any figures; above 30 years they make no difference, and products of them stay finite.
_MOST_US = 1e15
# The contract's fields are int64.
_MOST_IN_FIELD = 2.0**62


@lean
def predicted_time_us(batch: IntArray, composition: Composition, case: Case) -> int:
    """What the pass takes; 0 without a model, or for an empty pass."""
    latency, num_kv_tokens = case.latency, 0
    if len(batch) == 0:
        return 0
    for row in batch:
        if in_decode(case, row):
            num_kv_tokens += case.requests[NUM_COMPUTED_TOKENS, row]
    predicted = (
        latency.pass_us
        + composition.num_prefill_tokens * latency.prefill_token_us
        + composition.num_decode_requests * latency.decode_request_us
        + num_kv_tokens * latency.kv_token_us
    )
    return int(np.rint(min(predicted, _MOST_IN_FIELD)))


@lean
def time_alone_us(case: Case, row: int) -> int:
    """What it takes at least until it is complete, alone on the executor: its chunks, and a pass a further token.

    As many tokens as are expected; where that is unknown, one. 0 without a model.
    """
    latency, lacking = case.latency, num_lacking_tokens(case, row)
    num_outputs = expected_outputs_left(case, row) if case.requests[EXPECTED_OUTPUT_TOKENS, row] > 0 else 1
    largest_chunk = min(case.policy.chunk_size_tokens, case.limits.max_num_batched_tokens)
    num_passes = blocks_for(lacking, largest_chunk) + num_outputs - 1
    num_prefill_tokens = 0 if in_decode(case, row) else lacking
    pass_us, token_us = min(latency.pass_us, _MOST_US), min(latency.prefill_token_us, _MOST_US)
    return int(min(num_passes * pass_us + num_prefill_tokens * token_us, _MOST_IN_FIELD))


@lean
def estimated_wait_us(is_ahead: BoolArray, case: Case) -> int:
    """Until a request that stands behind all these runs: their prompts, and their answers, `max_num_seqs` at a time.

    `is_ahead`: which rows. 0 without a model.
    """
    latency, max_num_seqs = case.latency, case.limits.max_num_seqs
    num_prefill_tokens, num_outputs = 0, 0
    for row in range(len(is_ahead)):
        if is_ahead[row]:
            num_outputs += expected_outputs_left(case, row)
            if not in_decode(case, row):
                num_prefill_tokens += num_lacking_tokens(case, row)
    pass_us = min(latency.pass_us + max_num_seqs * latency.decode_request_us, _MOST_US)
    token_us = min(latency.prefill_token_us, _MOST_US)
    wait_us = num_prefill_tokens * token_us + (num_outputs // max_num_seqs) * pass_us
    return int(np.rint(min(wait_us, _MOST_IN_FIELD)))
