"""Prompts for requests of a trace, which publishes none: random tokens, equal where the trace says that prompts are."""

from __future__ import annotations

import numpy as np

from metronome_lab.workload.requests import PREFIX_BLOCK_TOKENS, Workload

# Streams of random numbers: of the blocks that a trace names, and of what is a request's own.
_NAMED, _OWN = 0, 1
# The first tokens of a vocabulary are often such as end a text or mark a turn.
_FIRST_SHARE = 0.1


def prompt_tokens(workload: Workload, index: int, *, vocab_size: int, seed: int) -> tuple[int, ...]:
    """The prompt of one request, the same for the same seed."""
    blocks, count = workload.prefixes[index].tolist(), int(workload.num_prompt_tokens[index])
    streams = [(seed, _NAMED, block) for block in blocks] + [(seed, _OWN, index)]
    sizes = [PREFIX_BLOCK_TOKENS] * len(blocks) + [max(0, count - PREFIX_BLOCK_TOKENS * len(blocks))]
    least = int(vocab_size * _FIRST_SHARE)
    parts = (
        np.random.default_rng(stream).integers(least, vocab_size, size)
        for stream, size in zip(streams, sizes, strict=True)
    )
    return tuple(np.concatenate(list(parts))[:count].tolist())
