"""What requests may ask to be done to their logits, in lists and loops: the definition that the sampler is held to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from executor_service.sampling.adjustments import Adjuster, Adjustments
from executor_service.sampling.entries import LogitBias
from executor_service.sampling.masks import AllowedTokens
from executor_service.sampling.penalties import Penalties

MINUS_INFINITY = float("-inf")


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What one request asks for, in lists."""

    prompt: list[int] = field(default_factory=lambda: [1, 2, 2, 3])
    output: list[int] = field(default_factory=list)
    repetition: float = 1.0
    presence: float = 0.0
    frequency: float = 0.0
    bias: dict[int, float] = field(default_factory=dict)
    allowed: list[int] = field(default_factory=list)
    banned: list[int] = field(default_factory=list)
    end_tokens: list[int] = field(default_factory=list)
    min_new: int = 0

    def adjustments(self) -> Adjustments:
        """The same as the sampler takes it."""
        bias = LogitBias(
            token_ids=np.array(list(self.bias), dtype=np.int64),
            values=np.array(list(self.bias.values()), dtype=np.float32),
        )
        return Adjustments(
            bias=bias if self.bias else None,
            penalties=Penalties(repetition=self.repetition, presence=self.presence, frequency=self.frequency),
            allowed=AllowedTokens(np.array(self.allowed)) if self.allowed else None,
            banned_token_ids=np.array(self.banned) if self.banned else None,
        )

    def adjuster(self) -> Adjuster:
        adjuster = Adjuster(
            self.adjustments(),
            prompt_token_ids=np.array(self.prompt, dtype=np.int32),
            end_token_ids=np.array(self.end_tokens, dtype=np.int64),
            min_output_tokens=self.min_new,
        )
        for token_id in self.output:
            adjuster.push(token_id)
        return adjuster


def by_definition(logits: Sequence[float], asked: Asked) -> list[float]:
    """One logit after another, in float32 as the sampler has them."""
    adjusted = []
    for token_id, logit in enumerate(np.float32(value) for value in logits):
        logit += np.float32(asked.bias.get(token_id, 0))
        if token_id in asked.prompt or token_id in asked.output:
            penalty = np.float32(asked.repetition)
            logit = logit / penalty if logit > 0 else logit * penalty
        times = asked.output.count(token_id)
        logit -= np.float32(asked.frequency) * np.float32(times)
        logit -= np.float32(asked.presence) * np.float32(times > 0)
        is_too_early = len(asked.output) < asked.min_new and token_id in asked.end_tokens
        is_left_out = bool(asked.allowed) and token_id not in asked.allowed
        adjusted.append(MINUS_INFINITY if token_id in asked.banned or is_too_early or is_left_out else float(logit))
    return adjusted
