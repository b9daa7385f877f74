"""Log-probabilities of tokens, as the model gives them: the log-softmax in float32 of the logits before temperature,
penalties, masks or anything else that a request asks for (vLLM's `raw_logprobs`).

They are looked at after the tokens are chosen, and only in rows where somebody asks. A row's do not depend on others.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from executor_service.model.transfer import to_device
from executor_service.sampling.argmax import largest_of_rows, sum_of_rows
from executor_service.sampling.asked import NO_LOGPROBS

MAX_TOP_LOGPROBS = 20
# Stands for all that is less likely, -inf too: a number that every program and format can take. (vLLM's and OpenAI's.)
LOGPROB_FLOOR = -9999.0
# Bounds the float32 copy of logits, as in the sampler.
ROWS_AT_ONCE = 16


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Logprobs:
    """On the host. Of a row that asks for fewer than C top tokens the first so many count; of one for none, nothing."""

    rows: NDArray[np.int64]  # [N] rows of the logits, ascending
    of_tokens: NDArray[np.float32]  # [N] NaN where the row's logits are no numbers
    top_token_ids: NDArray[np.int64]  # [N, C] best first
    top_logprobs: NDArray[np.float32]  # [N, C]


def logprobs_of(logits: torch.Tensor, token_ids: torch.Tensor, num_logprobs: NDArray[np.int8]) -> Logprobs | None:
    """logits [S, V] of any float type, token_ids [S] of which negative ones stand for none, num_logprobs [S].

    None where no row asks for any (NO_LOGPROBS).
    """
    rows = np.flatnonzero(num_logprobs != NO_LOGPROBS)
    if not len(rows):
        return None
    num_candidates = min(MAX_TOP_LOGPROBS, logits.shape[1])
    of_tokens = torch.empty(len(rows), device=logits.device)
    top_ids = torch.zeros((len(rows), num_candidates), dtype=torch.int64, device=logits.device)
    top_values = torch.zeros((len(rows), num_candidates), device=logits.device)
    for start in range(0, len(rows), ROWS_AT_ONCE):
        at_once = slice(start, start + ROWS_AT_ONCE)
        index = to_device(torch.from_numpy(rows[at_once]), logits.device)
        of_rows = logits[index]
        maxima = of_rows.amax(dim=-1, keepdim=True).float()
        normaliser = maxima + sum_of_rows((of_rows.float() - maxima).exp_()).log().float()
        chosen = of_rows.gather(1, token_ids[index].clamp(min=0).unsqueeze(1)).float()
        of_tokens[at_once] = (chosen - normaliser).squeeze(1)
        with_top = np.flatnonzero(num_logprobs[rows[at_once]] > 0)
        if len(with_top):
            # The same number for every row, so that it does not depend on the others which of two equals is named.
            values, ids = largest_of_rows(of_rows[to_device(torch.from_numpy(with_top), logits.device)], num_candidates)
            top_ids[start + with_top] = ids
            top_values[start + with_top] = values.float() - normaliser[with_top]
    return Logprobs(
        rows=rows,
        of_tokens=of_tokens.clamp_(min=LOGPROB_FLOOR).cpu().numpy(),
        top_token_ids=top_ids.cpu().numpy(),
        top_logprobs=top_values.clamp_(min=LOGPROB_FLOOR).cpu().numpy(),
    )
