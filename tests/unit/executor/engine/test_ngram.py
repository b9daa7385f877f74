"""How a text goes on, guessed from how it went on before."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from executor_service.engine.ngram import NO_LOOKUP, NgramLookup


def guess(tokens: list[int], num_drafts: int = 3, *, least: int = 2, most: int = 4) -> list[int]:
    lookup = NgramLookup(max_num_drafts=num_drafts, min_ngram=least, max_ngram=most)
    drafts: list[int] = lookup.propose(np.array(tokens, dtype=np.int32), num_drafts).tolist()
    return drafts


def by_definition(tokens: list[int], num_drafts: int, least: int, most: int) -> list[int]:
    """The longest end first, its latest occurrence first; token after token, those guessed among them."""
    for length in range(most, least - 1, -1):
        for end in range(len(tokens) - 1, length - 1, -1):
            if tokens[end - length : end] == tokens[len(tokens) - length :]:
                text = list(tokens)
                while len(text) < len(tokens) + num_drafts:
                    text.append(text[end + len(text) - len(tokens)])
                return text[len(tokens) :]
    return []


@pytest.mark.parametrize(
    ("tokens", "drafts"),
    [
        ([1, 2, 3, 4, 5, 1, 2], [3, 4, 5]),
        ([1, 2, 3, 9, 2, 7, 1, 2], [3, 9, 2]),  # two tokens count more than the later place of one
        ([1, 2, 3, 1, 2, 4, 1, 2], [4, 1, 2]),  # the latest of equals
        ([1, 2, 1, 2], [1, 2, 1]),  # it goes on repeating itself
        ([7, 7, 7], [7, 7, 7]),
        ([1, 2, 3, 4], []),
        ([2, 3, 2], []),  # one token is too few
        ([5], []),
    ],
)
def test_a_text_is_expected_to_go_on_as_before(tokens: list[int], drafts: list[int]) -> None:
    assert guess(tokens) == drafts


@given(
    tokens=st.lists(st.integers(0, 3), min_size=1, max_size=24),
    num_drafts=st.integers(1, 9),
    least=st.integers(1, 3),
    more=st.integers(0, 3),
)
def test_it_is_the_definition(tokens: list[int], num_drafts: int, least: int, more: int) -> None:
    assert guess(tokens, num_drafts, least=least, most=least + more) == by_definition(
        tokens, num_drafts, least, least + more
    )


def test_without_speculation_nothing_is_guessed() -> None:
    assert NO_LOOKUP.max_num_drafts == 0
