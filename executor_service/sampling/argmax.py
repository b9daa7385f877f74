"""The largest logit of each row, in two levels: the largest chunk maximum, then the largest logit of that chunk.

`torch.argmax` is not vectorised over a row and slow in bfloat16. Over 64 rows of 262,144 on a CPU the two levels take
0.09 of its time in bfloat16 and 0.25 in float32; over one row 0.07 and 0.12.
"""

from __future__ import annotations

import torch

CHUNK_SIZE = 1024  # logits; 512 to 4,096 took the same time within a tenth


def argmax_rows(logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """logits [S, V]. Returns the index [S] int64 of each row's maximum, the first of equals, and the maximum [S].

    A maximum that is not finite marks a row that cannot be sampled: it has a NaN or an infinity, or nothing but -inf.
    """
    chunks = as_chunks(logits, padding=float("-inf"))  # [S, V / chunk, chunk]
    chunk_maxima = chunks.amax(dim=-1)
    best_chunk = chunk_maxima.argmax(dim=-1)
    rows = torch.arange(len(logits), device=logits.device)
    within_chunk = chunks[rows, best_chunk].argmax(dim=-1)
    return best_chunk * CHUNK_SIZE + within_chunk, chunk_maxima[rows, best_chunk]


def as_chunks(rows: torch.Tensor, *, padding: float) -> torch.Tensor:
    """[S, V] as [S, ceil(V / chunk), chunk], a view where V is a multiple of the chunk size."""
    missing = -rows.shape[1] % CHUNK_SIZE
    padded = torch.nn.functional.pad(rows, (0, missing), value=padding) if missing else rows
    return padded.view(len(rows), padded.shape[1] // CHUNK_SIZE, CHUNK_SIZE)
