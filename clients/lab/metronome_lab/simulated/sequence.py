"""The tokens of a request of a trace, which publishes none: made up so that two prompts are equal as far as they are.

The books of an executor ask a sequence for its tokens, to hash them, and for what its request asks for. A block that a
trace names has its id for each of its tokens; what no trace names, the answer too, has a number of the request's own.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from metronome_lab.workload.requests import PREFIX_BLOCK_TOKENS, TokenArray


@dataclass(frozen=True, slots=True)
class _Adjustments:
    is_neutral: bool = True


@dataclass(frozen=True, slots=True)
class _Sampling:
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int = 0
    adjustments: _Adjustments = _Adjustments()


@dataclass(frozen=True, slots=True)
class _Output:
    num_logprobs: None = None
    num_prompt_logprobs: None = None


_SAMPLING = _Sampling()
_OUTPUT = _Output()


@dataclass(frozen=True, slots=True)
class Stopping:
    max_output_tokens: int
    min_output_tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SimulatedRequest:
    """What the books ask of `executor_service.engine.request.Request`, without what only a sampler asks."""

    id: int
    prompt_token_ids: range  # as many as there are tokens
    stopping: Stopping
    priority: int
    tenant: str
    expected_output_tokens: int
    arrival_time_us: int
    deadline_us: int = 0
    reuse_prefix: bool = True
    may_reuse_prefix: bool = True
    samples_of: int = 0
    sampling: _Sampling = _SAMPLING
    output: _Output = _OUTPUT


class SimulatedSequence:
    """Stands in the books where an executor has an `executor_service.engine.sequence.Sequence`."""

    __slots__ = ("_named", "request")

    def __init__(self, request: SimulatedRequest, prefix: TokenArray) -> None:
        """`prefix`: ids of the blocks that its prompt begins with."""
        self.request = request
        self._named: NDArray[np.int32] = np.repeat(prefix, PREFIX_BLOCK_TOKENS)[: len(request.prompt_token_ids)]

    @property
    def num_named_tokens(self) -> int:
        """How many of its first tokens a trace names: others may have the same."""
        return len(self._named)

    @property
    def num_prompt_tokens(self) -> int:
        return len(self.request.prompt_token_ids)

    def tokens(self, start: int, stop: int) -> NDArray[np.int32]:
        """Tokens [start, stop) of prompt and answer together, whatever the length of the answer."""
        tokens = np.full(stop - start, -self.request.id, dtype=np.int32)
        named = self._named[start:stop]
        tokens[: len(named)] = named
        return tokens
