"""Turns what a plan schedules into the ragged batch of the pass."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from executor_service.engine.books import Books, Rows
from executor_service.model.batch import RaggedBatch
from executor_service.sampling.sampler import SamplingBatch


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PassInputs:
    """A pass, ready to run, and whom its tokens are for."""

    batch: RaggedBatch
    sampling: SamplingBatch
    rows: Rows  # [R] rows of the batch's requests, in its order
    num_tokens: NDArray[np.int32]  # [R]
    sampled_rows: Rows  # [S] rows that get a new token, in the order of the sampling batch
    num_decodes: int  # requests with output that lack one token, the first of the batch


def build_pass(books: Books, rows: Rows, num_tokens: NDArray[np.int32]) -> PassInputs:
    """Pack so many tokens of each row, the first that it lacks; their blocks are allocated already."""
    lacking = books.num_lacking_tokens(rows)
    is_decode = (lacking == 1) & (books["num_output_tokens"][rows] > 0)
    order = np.argsort(~is_decode, kind="stable")
    rows, num_tokens, lacking = rows[order], num_tokens[order], lacking[order]
    num_decodes = int(is_decode.sum())

    computed = books["num_computed_tokens"][rows]
    context_lens = computed + num_tokens
    query_starts = np.cumsum(num_tokens) - num_tokens
    positions = np.arange(num_tokens.sum(), dtype=np.int64) + np.repeat(computed - query_starts, num_tokens)
    spans = zip(rows.tolist(), computed.tolist(), context_lens.tolist(), strict=True)
    token_ids = np.concatenate([books.sequence(row).tokens(start, stop) for row, start, stop in spans])
    max_blocks = int(books.num_blocks_for(context_lens).max())
    samples = lacking == num_tokens
    sampled_rows = rows[samples]
    return PassInputs(
        batch=RaggedBatch(
            token_ids=token_ids.astype(np.int64),
            positions=positions,
            query_lens=num_tokens,
            context_lens=context_lens,
            block_tables=books.block_tables[rows, :max_blocks],
            num_decodes=num_decodes,
            logits_rows=(query_starts + num_tokens - 1)[samples].astype(np.int64),
        ),
        sampling=SamplingBatch(
            temperature=books["temperature"][sampled_rows],
            top_k=books["top_k"][sampled_rows],
            top_p=books["top_p"][sampled_rows],
            seed=books["seed"][sampled_rows],
            position=(context_lens[samples]).astype(np.int64),
        ),
        rows=rows,
        num_tokens=num_tokens,
        sampled_rows=sampled_rows,
        num_decodes=num_decodes,
    )
