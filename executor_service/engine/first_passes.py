"""What the passes hold that an executor measures before its first request; `executor_service/warm_up.py` runs them.

They differ in what they hold: decodes by number and context, a chunk by length.
"""

from __future__ import annotations

from dataclasses import dataclass

from executor_service.engine.latency import MeasuredPass
from executor_service.engine.limits import Limits


@dataclass(frozen=True, slots=True)
class FirstPass:
    """So many decodes of so long a context, or a chunk of so many tokens."""

    num_decodes: int = 0
    context_len: int = 0
    num_prefill_tokens: int = 0

    def measured(self, time_us: int) -> MeasuredPass:
        return MeasuredPass(
            num_prefill_tokens=self.num_prefill_tokens,
            num_decodes=self.num_decodes,
            num_kv_tokens=self.num_decodes * self.context_len,
            time_us=time_us,
        )


_FIRST_PASSES = (
    FirstPass(num_decodes=1, context_len=16),
    FirstPass(num_decodes=32, context_len=16),
    FirstPass(num_decodes=16, context_len=512),
    FirstPass(num_prefill_tokens=32),
    FirstPass(num_prefill_tokens=256),
)


def first_passes(limits: Limits) -> tuple[FirstPass, ...]:
    """Each as large as the limits let it be."""
    room = min(limits.num_blocks * limits.block_size, limits.max_model_len)
    budget = limits.max_num_batched_tokens
    return tuple(
        FirstPass(
            num_decodes=min(shape.num_decodes, limits.max_num_seqs, budget),
            context_len=min(shape.context_len, room),
            num_prefill_tokens=min(shape.num_prefill_tokens, room, budget),
        )
        for shape in _FIRST_PASSES
    )
