"""Turns what a plan schedules into the ragged batch of the pass."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from executor_service.engine.books import Books, Rows
from executor_service.model.batch import RaggedBatch
from executor_service.sampling.adjustments import Adjuster
from executor_service.sampling.logprobs import NO_LOGPROBS
from executor_service.sampling.sampler import SamplingBatch


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PassInputs:
    """A pass, ready to run, and whom its tokens are for."""

    batch: RaggedBatch
    sampling: SamplingBatch
    rows: Rows  # [R] rows of the batch's requests, in its order
    num_tokens: NDArray[np.int32]  # [R]
    sampled_rows: Rows  # [S] rows that get a new token, in the order of the sampling batch
    prompt_rows: Rows  # [P] rows whose prompt's log-probabilities are told by the logits after those, one row a token
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
    prompt = _prompt_logits(books, rows, computed, context_lens, query_starts)
    return PassInputs(
        batch=RaggedBatch(
            token_ids=token_ids.astype(np.int64),
            positions=positions,
            query_lens=num_tokens,
            context_lens=context_lens,
            block_tables=books.block_tables[rows, :max_blocks],
            num_decodes=num_decodes,
            logits_rows=np.concatenate([(query_starts + num_tokens - 1)[samples].astype(np.int64), prompt.logits_rows]),
        ),
        sampling=SamplingBatch(
            temperature=books["temperature"][sampled_rows],
            top_k=books["top_k"][sampled_rows],
            top_p=books["top_p"][sampled_rows],
            min_p=books["min_p"][sampled_rows],
            seed=books["seed"][sampled_rows],
            position=(context_lens[samples]).astype(np.int64),
            adjusters=_adjusters(books, sampled_rows),
            num_logprobs=books["num_logprobs"][sampled_rows],
            prompt_token_ids=prompt.token_ids,
            num_prompt_logprobs=books["num_prompt_logprobs"][prompt.rows],
        ),
        rows=rows,
        num_tokens=num_tokens,
        sampled_rows=sampled_rows,
        prompt_rows=prompt.rows,
        num_decodes=num_decodes,
    )


def _adjusters(books: Books, rows: Rows) -> dict[int, Adjuster]:
    """By place in ``rows``: what is done to the logits of those that ask for it, now or always."""
    asked = books["adjusts_logits"][rows] | (books["num_output_tokens"][rows] < books["min_output_tokens"][rows])
    adjusters = ((place, books.sequence(rows[place]).adjuster) for place in np.flatnonzero(asked).tolist())
    return {place: adjuster for place, adjuster in adjusters if adjuster is not None}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _PromptLogits:
    """Logits that tell how likely tokens of prompts were: those of the token before each."""

    rows: Rows  # [P]
    logits_rows: NDArray[np.int64]  # [P] indices into the batch's tokens
    token_ids: NDArray[np.int64]  # [P] whose log-probabilities are asked for


def _prompt_logits(
    books: Books,
    rows: Rows,
    computed: NDArray[np.int32],
    context_lens: NDArray[np.int32],
    query_starts: NDArray[np.int32],
) -> _PromptLogits:
    """Of those that ask for them, the logits of this pass that no pass before has shown: an eviction repeats some."""
    of_rows, logits_rows, token_ids = [_NO_ROWS], [_NO_ROWS], [_NO_ROWS]
    for i in np.flatnonzero(books["num_prompt_logprobs"][rows] != NO_LOGPROBS).tolist():
        sequence = books.sequence(rows[i])
        first = max(int(computed[i]), len(sequence.prompt_logprobs))
        stop = min(int(context_lens[i]), sequence.num_prompt_tokens - 1)
        if first < stop:
            of_rows.append(np.full(stop - first, rows[i]))
            logits_rows.append(np.arange(first, stop) + (query_starts[i] - computed[i]))
            token_ids.append(sequence.tokens(first + 1, stop + 1).astype(np.int64))
    return _PromptLogits(
        rows=np.concatenate(of_rows), logits_rows=np.concatenate(logits_rows), token_ids=np.concatenate(token_ids)
    )


_NO_ROWS: Rows = np.empty(0, dtype=np.int64)
