"""Turns what a plan schedules into the ragged batch of the pass.

A request that decodes with drafts has as many rows in the batch as it has tokens in the pass, one for the newest token
and one for each draft: decodes over one block table, each with one more token of context than the one before. So a
draft is computed by the very operations by which it would be computed in a pass of its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from executor_service.engine.books import Books, Rows
from executor_service.engine.drafts import NO_DRAFT
from executor_service.model.batch import RaggedBatch
from executor_service.sampling.adjustments import Adjuster
from executor_service.sampling.asked import NO_LOGPROBS
from executor_service.sampling.sampler import SamplingBatch


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PassInputs:
    """A pass, ready to run, and whom its tokens are for."""

    batch: RaggedBatch
    sampling: SamplingBatch
    rows: Rows  # [R] rows of the books, in the order of the batch
    num_tokens: NDArray[np.int32]  # [R]
    num_drafts: NDArray[np.int32]  # [R] how many of these are drafts, the last ones
    context_lens: NDArray[np.int32]  # [R] tokens stored after the pass, drafts included
    sampled: NDArray[np.int64]  # [S] index into ``rows`` of whom each token of the sampling batch is for
    draft_token_ids: NDArray[np.int64]  # [S] the draft after which it is sampled; NO_DRAFT: after what is known
    prompt_rows: Rows  # [P] rows whose prompt's log-probabilities are told by the logits after those, one row a token
    num_decodes: int  # requests with output that lack one token, the first of ``rows``

    @property
    def sampled_rows(self) -> Rows:
        """[S] whom each token of the sampling batch is for. One that has drafts is there once more for each."""
        return self.rows[self.sampled]


def build_pass(books: Books, rows: Rows, num_tokens: NDArray[np.int32]) -> PassInputs:
    """Pack so many tokens of each row, the first that it lacks and then its drafts; their blocks are allocated."""
    is_decode = books.in_decode(rows)
    order = np.argsort(~is_decode, kind="stable")
    rows, num_tokens, lacking = rows[order], num_tokens[order], books.num_lacking_tokens(rows[order])
    num_decodes = int(is_decode.sum())
    num_drafts = (num_tokens - lacking).clip(min=0)

    computed = books["num_computed_tokens"][rows]
    context_lens = computed + num_tokens
    query_starts = np.cumsum(num_tokens) - num_tokens
    positions = np.arange(num_tokens.sum(), dtype=np.int64) + np.repeat(computed - query_starts, num_tokens)
    spans = zip(rows.tolist(), computed.tolist(), context_lens.tolist(), strict=True)
    token_ids = np.concatenate([books.sequence(row).tokens(start, stop) for row, start, stop in spans])
    token_ids = token_ids.astype(np.int64)
    max_blocks = int(books.num_blocks_for(context_lens).max())

    # [S] in the order of requests: the draft that each follows, counted from 1, 0 for the newest token.
    sampled, nth_draft = _one_for_each(np.where(num_tokens >= lacking, 1 + num_drafts, 0))
    logits_rows = (query_starts + num_tokens - 1 - num_drafts)[sampled] + nth_draft
    draft_token_ids = np.where(nth_draft > 0, token_ids[logits_rows], NO_DRAFT)
    sampled_rows = rows[sampled]
    # [batch rows] the tokens of a decode have a row each.
    of_batch, nth_token = _one_for_each(np.where(np.arange(len(rows)) < num_decodes, num_tokens, 1))
    batch_num_decodes = int(num_tokens[:num_decodes].sum())
    is_batch_decode = np.arange(len(of_batch)) < batch_num_decodes
    prompt = _prompt_logits(books, rows, computed, context_lens, query_starts)
    return PassInputs(
        batch=RaggedBatch(
            token_ids=token_ids,
            positions=positions,
            query_lens=np.where(is_batch_decode, 1, num_tokens[of_batch]).astype(np.int32),
            context_lens=np.where(is_batch_decode, computed[of_batch] + 1 + nth_token, context_lens[of_batch]).astype(
                np.int32
            ),
            block_tables=books.block_tables[rows[of_batch], :max_blocks],
            num_decodes=batch_num_decodes,
            logits_rows=np.concatenate([logits_rows.astype(np.int64), prompt.logits_rows]),
        ),
        sampling=SamplingBatch(
            temperature=books["temperature"][sampled_rows],
            top_k=books["top_k"][sampled_rows],
            top_p=books["top_p"][sampled_rows],
            min_p=books["min_p"][sampled_rows],
            seed=books["seed"][sampled_rows],
            position=((computed + lacking)[sampled] + nth_draft).astype(np.int64),
            adjusters=_adjusters(books, sampled_rows),
            num_logprobs=books["num_logprobs"][sampled_rows],
            prompt_token_ids=prompt.token_ids,
            num_prompt_logprobs=books["num_prompt_logprobs"][prompt.rows],
        ),
        rows=rows,
        num_tokens=num_tokens,
        num_drafts=num_drafts,
        context_lens=context_lens,
        sampled=sampled,
        draft_token_ids=draft_token_ids,
        prompt_rows=prompt.rows,
        num_decodes=num_decodes,
    )


def _one_for_each(counts: NDArray[np.integer[Any]]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """[n] to two of [sum]: index i counts[i] times, and which of these it is, from 0."""
    indexes = np.repeat(np.arange(len(counts)), counts)
    return indexes, np.arange(len(indexes)) - (np.cumsum(counts) - counts)[indexes]


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
