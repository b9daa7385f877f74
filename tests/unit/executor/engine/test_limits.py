"""What fits: the newest token needs no KV slot, and every check counts alike."""

from __future__ import annotations

import pytest

from executor_service.engine.limits import ExceedsKVCacheError, ExceedsModelLenError
from support.engine import limits_of

EIGHT_BLOCKS = limits_of(num_blocks=8, max_model_len=256)


def test_case_3_nine_tokens_after_a_prompt_of_120_fill_eight_blocks() -> None:
    assert EIGHT_BLOCKS.max_output_tokens(num_prompt_tokens=120, requested=9) == 9


def test_case_3_a_tenth_token_is_too_many() -> None:
    with pytest.raises(ExceedsKVCacheError, match=r"need 9 KV blocks, this executor has 8") as raised:
        EIGHT_BLOCKS.max_output_tokens(num_prompt_tokens=120, requested=10)
    assert (raised.value.num_needed_blocks, raised.value.num_blocks) == (9, 8)


def test_case_2_an_answer_that_cannot_be_stored_is_refused() -> None:
    with pytest.raises(ExceedsKVCacheError):
        EIGHT_BLOCKS.max_output_tokens(num_prompt_tokens=100, requested=100)


@pytest.mark.parametrize(("num_prompt_tokens", "room"), [(100, 29), (128, 1), (1, 128)])
def test_an_answer_of_unset_length_has_all_the_room_that_is_left(num_prompt_tokens: int, room: int) -> None:
    assert EIGHT_BLOCKS.max_output_tokens(num_prompt_tokens=num_prompt_tokens, requested=None) == room
    assert EIGHT_BLOCKS.max_output_tokens(num_prompt_tokens=num_prompt_tokens, requested=room) == room
    with pytest.raises(ExceedsKVCacheError):
        EIGHT_BLOCKS.max_output_tokens(num_prompt_tokens=num_prompt_tokens, requested=room + 1)


def test_case_1_a_prompt_that_can_never_fit_is_told_what_it_needs() -> None:
    with pytest.raises(ExceedsKVCacheError, match=r"need 13 KV blocks, this executor has 8"):
        EIGHT_BLOCKS.max_output_tokens(num_prompt_tokens=200, requested=8)


@pytest.mark.parametrize(("num_prompt_tokens", "requested"), [(256, None), (256, 1), (200, 57), (1000, 1)])
def test_the_length_of_the_model_bounds_prompt_and_answer_together(num_prompt_tokens: int, requested: int) -> None:
    with pytest.raises(ExceedsModelLenError, match="256"):
        limits_of(num_blocks=99, max_model_len=256).max_output_tokens(
            num_prompt_tokens=num_prompt_tokens, requested=requested
        )


@pytest.mark.parametrize(("num_blocks", "max_model_len", "longest"), [(8, 256, 129), (8, 64, 64), (1, 100, 17)])
def test_the_longest_request_is_bounded_by_cache_and_model(num_blocks: int, max_model_len: int, longest: int) -> None:
    limits = limits_of(num_blocks=num_blocks, max_model_len=max_model_len)
    assert limits.max_request_tokens == longest
    assert limits.max_blocks_per_request >= limits.blocks_for(longest - 1)
