"""A few passes before the first request: libraries make their first calls, and it is measured what a pass costs.

A plan bounds prefills by what decodes would take without them, so a scheduler has to know the costs from the first pass
on; once requests run, `engine/latency.py` corrects them. What the passes hold: `engine/first_passes.py`. Nothing that
they write in the cache is ever read: its blocks are free, and a request writes each slot before it reads it.
"""

from __future__ import annotations

import time

import numpy as np

from executor_service.engine.device import Runner
from executor_service.engine.first_passes import FirstPass, first_passes
from executor_service.engine.latency import MeasuredPass
from executor_service.engine.limits import Limits
from executor_service.model.batch import RaggedBatch
from executor_service.sampling.asked import NO_LOGPROBS
from executor_service.sampling.sampler import SamplingBatch

# The first pass of a kind meets shapes that no library has seen, so it is run again, and the lesser time counts. Of a
# pass that takes longer than this that is little, and it is run once.
LONG_PASS_US = 200_000


def run_first_passes(runner: Runner, limits: Limits) -> tuple[MeasuredPass, ...]:
    """Run and measure each kind of pass, as large as the limits let it be. The cache holds nothing yet."""
    return tuple(_measure(runner, shape, limits) for shape in first_passes(limits))


def _measure(runner: Runner, shape: FirstPass, limits: Limits) -> MeasuredPass:
    batch, sampling = _pass_of(shape, limits)

    def time_us() -> int:
        started = time.perf_counter_ns()
        runner.execute(batch, sampling)
        return (time.perf_counter_ns() - started) // 1000

    first_us = time_us()
    return shape.measured(first_us if first_us > LONG_PASS_US else min(first_us, time_us()))


def _pass_of(shape: FirstPass, limits: Limits) -> tuple[RaggedBatch, SamplingBatch]:
    """All requests have the same blocks. Every decode and the chunk sample one token."""
    if shape.num_decodes:
        query_lens = np.ones(shape.num_decodes, dtype=np.int32)
        context_lens = np.full(shape.num_decodes, shape.context_len, dtype=np.int32)
        positions = context_lens.astype(np.int64) - 1
    else:
        query_lens = context_lens = np.array([shape.num_prefill_tokens], dtype=np.int32)
        positions = np.arange(shape.num_prefill_tokens, dtype=np.int64)
    num_blocks = limits.blocks_for(int(context_lens.max()))
    num_rows = len(query_lens)
    return (
        RaggedBatch(
            token_ids=np.zeros(len(positions), dtype=np.int64),
            positions=positions,
            query_lens=query_lens,
            context_lens=context_lens,
            block_tables=np.tile(np.arange(num_blocks, dtype=np.int32), (num_rows, 1)),
            num_decodes=shape.num_decodes,
            logits_rows=np.cumsum(query_lens, dtype=np.int64) - 1,
        ),
        SamplingBatch(
            temperature=np.zeros(num_rows, dtype=np.float32),
            top_k=np.zeros(num_rows, dtype=np.int32),
            top_p=np.ones(num_rows, dtype=np.float32),
            min_p=np.zeros(num_rows, dtype=np.float32),
            seed=np.zeros(num_rows, dtype=np.uint64),
            position=context_lens.astype(np.int64),
            num_logprobs=np.full(num_rows, NO_LOGPROBS, dtype=np.int8),
        ),
    )
