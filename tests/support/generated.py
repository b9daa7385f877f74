"""What transformers generates by itself: the reference for whatever is served."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from executor_service.model.loaded import LoadedModel


def generated(loaded: LoadedModel, prompts: Sequence[list[int]], num_tokens: int) -> list[list[int]]:
    """So many tokens after each prompt, greedy, with its own attention."""
    loaded.model.set_attn_implementation("eager")
    try:
        return [_generate(loaded, prompt, num_tokens) for prompt in prompts]
    finally:
        loaded.model.set_attn_implementation("metronome_paged")


def _generate(loaded: LoadedModel, prompt: list[int], num_tokens: int) -> list[int]:
    ids = torch.tensor([prompt])
    output = loaded.model.generate(
        input_ids=ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=num_tokens,
        do_sample=False,
        eos_token_id=None,
    )
    tokens: list[int] = output[0, len(prompt) :].tolist()
    return tokens
