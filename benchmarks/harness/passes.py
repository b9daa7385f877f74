"""Passes of a model runner that hold what a benchmark wants to measure."""

from __future__ import annotations

import numpy as np

from executor_service.model.batch import RaggedBatch
from executor_service.sampling.sampler import SamplingBatch


def greedy_pass(
    num_requests: int, query_len: int, context_len: int, blocks_each: int
) -> tuple[RaggedBatch, SamplingBatch]:
    """So many requests with so many new tokens each, at the end of such a context, in blocks of their own."""
    batch = RaggedBatch(
        token_ids=np.arange(num_requests * query_len, dtype=np.int64) + 100,
        positions=np.tile(np.arange(context_len - query_len, context_len, dtype=np.int64), num_requests),
        query_lens=np.full(num_requests, query_len, dtype=np.int32),
        context_lens=np.full(num_requests, context_len, dtype=np.int32),
        block_tables=np.arange(num_requests * blocks_each, dtype=np.int32).reshape(num_requests, blocks_each),
        num_decodes=num_requests if query_len == 1 else 0,
        logits_rows=np.arange(query_len - 1, num_requests * query_len, query_len, dtype=np.int64),
    )
    greedy = SamplingBatch(
        temperature=np.zeros(num_requests, dtype=np.float32),
        top_k=np.zeros(num_requests, dtype=np.int32),
        top_p=np.ones(num_requests, dtype=np.float32),
        min_p=np.zeros(num_requests, dtype=np.float32),
        seed=np.zeros(num_requests, dtype=np.uint64),
        position=np.full(num_requests, context_len, dtype=np.int64),
        num_logprobs=np.full(num_requests, -1, dtype=np.int8),
    )
    return batch, greedy
