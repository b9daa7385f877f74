"""What a pass takes, by a latency model, in whole microseconds."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from executor_service.engine.snapshot import Latency

Times = NDArray[np.int64]


def pass_times_us(
    latency: Latency, *, num_prefill_tokens: int, num_decodes: int, num_kv_tokens: NDArray[Any], num_copied_blocks: int
) -> Times:
    """[n] of passes that differ in `num_kv_tokens` alone, [n] tokens of KV that the decodes read. At least 1 each."""
    fixed_us = (
        latency.pass_us
        + latency.prefill_token_us * num_prefill_tokens
        + latency.decode_request_us * num_decodes
        + latency.swap_block_us * num_copied_blocks
    )
    times: Times = np.rint(fixed_us + latency.kv_token_us * num_kv_tokens).astype(np.int64)
    return np.maximum(times, 1)
