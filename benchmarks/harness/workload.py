"""Requests of mixed length: real text, cut by a fixed seed, with heavy-tailed lengths of prompt and answer."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import resources
from itertools import accumulate
from pathlib import Path

MAX_PROMPT_TOKENS = 1024
MAX_OUTPUT_TOKENS = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    prompt_token_ids: tuple[int, ...]
    num_output_tokens: int


def mixed_jobs(count: int, tokenize: Callable[[str], Sequence[int]], *, seed: int = 1) -> list[Job]:
    """``count`` jobs over the texts that `metronome run` uses as prompts; the same for the same seed."""
    start_token, tokens = corpus_tokens(tokenize)
    draw = random.Random(seed)
    return [_job(draw, start_token, tokens) for _ in range(count)]


def corpus_tokens(tokenize: Callable[[str], Sequence[int]]) -> tuple[int, list[int]]:
    """The token that begins a text, and those of the texts that `metronome run` uses as prompts, one after another."""
    folder = resources.files("metronome_cli") / "prompts"
    texts = sorted((file.name, file.read_text(encoding="utf-8")) for file in folder.iterdir())
    return tokenize("")[0], [token for _, text in texts for token in tokenize(text)[1:]]


def jobs_from_file(path: Path) -> list[Job]:
    """Jobs of a JSON file: {"requests": [{"prompt_token_ids": [...], "output_len": n}, ...]}."""
    requests = json.loads(path.read_text(encoding="utf-8"))["requests"]
    return [
        Job(prompt_token_ids=tuple(request["prompt_token_ids"]), num_output_tokens=request["output_len"])
        for request in requests
    ]


def poisson_arrivals_s(count: int, rate: float, *, seed: int) -> list[float]:
    """When each of ``count`` jobs arrives, in seconds, the first at 0: ``rate`` of them a second in the mean."""
    draw = random.Random(seed)
    gaps = (draw.expovariate(rate) for _ in range(count - 1))
    return list(accumulate(gaps, initial=0.0))


def _job(draw: random.Random, start_token: int, tokens: Sequence[int]) -> Job:
    """Prompts of 22 tokens and more, 100 at the median; answers of 7 and more, 50 at the median, a few very long."""
    num_prompt = min(MAX_PROMPT_TOKENS, 22 + int(draw.lognormvariate(4.36, 0.85)))
    num_output = min(MAX_OUTPUT_TOKENS, 7 + int(draw.lognormvariate(3.76, 0.85)))
    start = draw.randrange(len(tokens) - num_prompt)
    return Job(prompt_token_ids=(start_token, *tokens[start : start + num_prompt - 1]), num_output_tokens=num_output)
