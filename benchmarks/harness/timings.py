"""When the tokens of each answer came, as the client saw it, and what users call that."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """Seconds on the clock of one run. `token_times_s`: when each token was at the client, at least one."""

    sent_s: float
    token_times_s: Sequence[float]


def output_tokens_per_s(answers: Sequence[Answer]) -> float:
    """From the first request that was sent to the last token of all."""
    num_tokens = sum(len(answer.token_times_s) for answer in answers)
    last = max(answer.token_times_s[-1] for answer in answers)
    return num_tokens / (last - min(answer.sent_s for answer in answers))


def times_to_first_token_ms(answers: Sequence[Answer]) -> list[float]:
    return [(answer.token_times_s[0] - answer.sent_s) * 1e3 for answer in answers]


def inter_token_latencies_ms(
    answers: Sequence[Answer], *, since_s: float = 0.0, until_s: float = np.inf
) -> list[float]:
    """The gaps between one token and the next of the same answer, of those that ended within the time."""
    return [
        (later - earlier) * 1e3
        for answer in answers
        for earlier, later in pairwise(answer.token_times_s)
        if since_s < later <= until_s
    ]


def percentile(values: Sequence[float], percent: float) -> float:
    """Between two of the values where it falls between them."""
    return float(np.percentile(values, percent))
