"""The log-probabilities of a pass, as arrays over rows of logits, to those of tokens."""

from __future__ import annotations

from dataclasses import dataclass

from executor_service.engine.batch_builder import PassInputs
from executor_service.engine.request import TokenLogprobs
from executor_service.sampling.logprobs import Logprobs


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadLogprobs:
    """Of new tokens, by their place among the sampled rows; of tokens of prompts in their order, each with its row."""

    of_new_tokens: dict[int, TokenLogprobs]
    of_prompts: list[tuple[int, TokenLogprobs]]


NOTHING_READ = ReadLogprobs(of_new_tokens={}, of_prompts=[])


def read_logprobs(logprobs: Logprobs | None, inputs: PassInputs) -> ReadLogprobs:
    if logprobs is None:
        return NOTHING_READ
    num_sampled = len(inputs.sampled_rows)
    num_logprobs, num_prompt_logprobs = inputs.sampling.num_logprobs, inputs.sampling.num_prompt_logprobs
    read = ReadLogprobs(of_new_tokens={}, of_prompts=[])
    columns = (logprobs.rows, logprobs.of_tokens, logprobs.top_token_ids, logprobs.top_logprobs)
    for place, of_token, top_token_ids, top_logprobs in zip(*(column.tolist() for column in columns), strict=True):
        is_new = place < num_sampled
        num_top = int(num_logprobs[place] if is_new else num_prompt_logprobs[place - num_sampled])
        told = TokenLogprobs(
            logprob=of_token,
            top_token_ids=tuple(top_token_ids[:num_top]),
            top_logprobs=tuple(top_logprobs[:num_top]),
        )
        if is_new:
            read.of_new_tokens[place] = told
        else:
            read.of_prompts.append((int(inputs.prompt_rows[place - num_sampled]), told))
    return read
