"""The sizes of an executor, and the one arithmetic of what fits into them.

A request with prompt p and g generated tokens stores p + g - 1 tokens: the newest token has no KV until the next pass
computes it. Submission, growth and the texts of errors all use the functions here, so that they cannot disagree.
"""

from __future__ import annotations

from dataclasses import dataclass


class RequestTooLongError(ValueError):
    """A request can never fit, however long it waits."""


class ExceedsModelLenError(RequestTooLongError):
    def __init__(self, *, num_tokens: int, max_model_len: int, num_prompt_tokens: int) -> None:
        super().__init__(
            f"prompt ({num_prompt_tokens} tokens) and answer need {num_tokens} tokens, "
            f"this model takes {max_model_len} (max_model_len)"
        )
        self.num_tokens = num_tokens
        self.max_model_len = max_model_len


class ExceedsKVCacheError(RequestTooLongError):
    def __init__(self, *, num_needed_blocks: int, num_blocks: int, num_prompt_tokens: int) -> None:
        super().__init__(
            f"prompt ({num_prompt_tokens} tokens) and answer need {num_needed_blocks} KV blocks, "
            f"this executor has {num_blocks}"
        )
        self.num_needed_blocks = num_needed_blocks
        self.num_blocks = num_blocks


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """All > 0, but num_swap_blocks (0: no swap) and max_num_waiting (None: no bound)."""

    max_num_batched_tokens: int  # the token budget of a pass
    max_num_seqs: int  # requests in the running set
    block_size: int  # tokens
    num_blocks: int
    num_swap_blocks: int
    max_model_len: int  # tokens, prompt and output together
    max_num_waiting: int | None

    @property
    def max_request_tokens(self) -> int:
        """Most tokens of one request, prompt and output together, when it has the executor to itself."""
        return min(self.max_model_len, self.num_blocks * self.block_size + 1)

    @property
    def max_blocks_per_request(self) -> int:
        return self.blocks_for(self.max_request_tokens)

    def blocks_for(self, num_stored_tokens: int) -> int:
        return -(-num_stored_tokens // self.block_size)

    def max_output_tokens(self, *, num_prompt_tokens: int, requested: int | None) -> int:
        """Tokens that an answer may have: as many as asked for, or all the room that is left.

        Raises RequestTooLongError if so many, or a single one, can never fit beside the prompt.
        """
        num_tokens = num_prompt_tokens + (requested or 1)
        if num_tokens > self.max_model_len:
            raise ExceedsModelLenError(
                num_tokens=num_tokens, max_model_len=self.max_model_len, num_prompt_tokens=num_prompt_tokens
            )
        needed = self.blocks_for(num_tokens - 1)
        if needed > self.num_blocks:
            raise ExceedsKVCacheError(
                num_needed_blocks=needed, num_blocks=self.num_blocks, num_prompt_tokens=num_prompt_tokens
            )
        return requested or self.max_request_tokens - num_prompt_tokens
