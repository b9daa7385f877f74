"""Times by the executor's latency model, in microseconds.

A pass takes `pass_us`, `prefill_token_us` for each prefill token, `decode_request_us` for each request that decodes and
`kv_token_us` for each token of KV that these read. Counts are whole numbers, added up before they meet the model's
figures, so the order of the rows does not matter.
"""

from __future__ import annotations

import numpy as np

from scheduler_service.core.executor_plan import Composition
from scheduler_service.core.memory import blocks_for
from scheduler_service.core.policy import Policy
from scheduler_service.core.state import ExecutorState, IntArray, LatencyModel, Requests
from scheduler_service.core.work import expected_outputs_left

# A model may hold any figures; above 30 years they make no difference, and products of them stay finite.
_MOST_US = 1e15
# The contract's field is an int64.
_MOST_PREDICTED_US = 2.0**62


def predicted_time_us(batch: Requests, composition: Composition, latency: LatencyModel | None) -> int:
    """What the pass takes; 0 without a model, or for an empty pass."""
    if latency is None or len(batch) == 0:
        return 0
    num_kv_tokens = int(batch.num_computed_tokens.dot(batch.in_decode))
    predicted = (
        latency.pass_us
        + composition.num_prefill_tokens * latency.prefill_token_us
        + composition.num_decode_requests * latency.decode_request_us
        + num_kv_tokens * latency.kv_token_us
    )
    return round(min(predicted, _MOST_PREDICTED_US))


def time_alone_us(requests: Requests, executor: ExecutorState, policy: Policy) -> IntArray:
    """What each takes at least until it is complete, alone on the executor: its chunks, and a pass a further token.

    As many tokens as are expected; where that is unknown, one. 0 without a model.
    """
    latency, limits = executor.latency, executor.limits
    if latency is None:
        return np.zeros(len(requests), dtype=np.int64)
    num_outputs = np.where(requests.expected_output_tokens > 0, expected_outputs_left(requests, limits), 1)
    num_passes = blocks_for(requests.num_lacking_tokens, _largest_chunk(executor, policy)) + num_outputs - 1
    pass_us, token_us = min(latency.pass_us, _MOST_US), min(latency.prefill_token_us, _MOST_US)
    time_us = num_passes * pass_us + (requests.num_lacking_tokens * ~requests.in_decode) * token_us
    return np.minimum(time_us, 2.0**62).astype(np.int64)


def estimated_wait_us(ahead: Requests, executor: ExecutorState) -> int:
    """Until a request that stands behind all these runs: their prompts, and their answers, `max_num_seqs` at a time.

    0 without a model.
    """
    latency, limits = executor.latency, executor.limits
    if latency is None:
        return 0
    num_prefill_tokens = int((ahead.num_lacking_tokens * ~ahead.in_decode).sum())
    num_passes = int(expected_outputs_left(ahead, limits).sum()) // limits.max_num_seqs
    pass_us = min(latency.pass_us + limits.max_num_seqs * latency.decode_request_us, _MOST_US)
    token_us = min(latency.prefill_token_us, _MOST_US)
    return round(min(num_prefill_tokens * token_us + num_passes * pass_us, 2.0**62))


def _largest_chunk(executor: ExecutorState, policy: Policy) -> int:
    return min(policy.chunk_size_tokens, executor.limits.max_num_batched_tokens)
