"""What a pass takes, by a latency model alone, in whole microseconds: `hardware/cost.py` for machine code."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from executor_service.engine.snapshot import Latency
from scheduler_service.core.compiled import rule


class PassCost(NamedTuple):
    """The figures of a latency model, as machine code takes them. Microseconds each."""

    pass_us: float
    prefill_token_us: float
    decode_request_us: float
    kv_token_us: float
    swap_block_us: float


def cost_by(latency: Latency) -> PassCost:
    """What passes cost by this model."""
    return PassCost(
        float(latency.pass_us),
        float(latency.prefill_token_us),
        float(latency.decode_request_us),
        float(latency.kv_token_us),
        float(latency.swap_block_us),
    )


@rule
def pass_time_us(
    cost: PassCost, num_prefill_tokens: int, num_decodes: int, num_kv_tokens: int, num_copied_blocks: int
) -> int:
    """At least 1. `num_kv_tokens`: of KV that the decodes read."""
    fixed_us = (
        cost.pass_us
        + cost.prefill_token_us * num_prefill_tokens
        + cost.decode_request_us * num_decodes
        + cost.swap_block_us * num_copied_blocks
    )
    return max(int(np.rint(fixed_us + cost.kv_token_us * num_kv_tokens)), 1)
