"""Stop strings over a stream: product case 42, the rules of a match, and a naive matcher to compare with."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from executor_service.text.errors import InvalidStopStringError
from executor_service.text.stop import MAX_STOP_CHARACTERS, StopMatcher, StopResult

CASE_42_TOKENS = ("AB", "C", "DEF", "G", "HI", "J")


def run(matcher: StopMatcher, pieces: Sequence[str]) -> tuple[list[str], str | None]:
    """Feed pieces until one matches, then end the text. Returns what was emitted by each, and the match."""
    emitted = []
    for piece in pieces:
        result = matcher.push(piece)
        emitted.append(result.text)
        if result.matched is not None:
            return emitted, result.matched
    return [*emitted, matcher.flush()], None


def test_case_42_stop_string_across_tokens() -> None:
    emitted, matched = run(StopMatcher(["DEFGHIJ"]), CASE_42_TOKENS)
    assert emitted == ["AB", "C", "", "", "", ""]
    assert matched == "DEFGHIJ"


def test_case_42_held_text_is_sent_when_the_text_ends() -> None:
    emitted, matched = run(StopMatcher(["DEFGHIJ"]), CASE_42_TOKENS[:4])
    assert emitted == ["AB", "C", "", "", "DEFG"]
    assert matched is None


@pytest.mark.parametrize("stop_strings", [["X", "XY"], ["XY", "X"]])
@pytest.mark.parametrize("pieces", [["ab", "XY"], ["abX", "Y"], ["abXYcXY"]])
def test_case_42_two_stops_stop_at_the_earliest_match(stop_strings: list[str], pieces: list[str]) -> None:
    emitted, matched = run(StopMatcher(stop_strings), pieces)
    assert "".join(emitted) == "ab"
    assert matched == "X"


@pytest.mark.parametrize(
    ("stop_strings", "text", "visible", "matched"),
    [
        pytest.param([], "any text", "any text", None, id="no stop strings"),
        pytest.param(["END"], "END", "", "END", id="at once"),
        pytest.param(["END"], "the EN", "the EN", None, id="incomplete at the end"),
        pytest.param(["aab"], "aaab", "a", "aab", id="restart within a failed match"),
        pytest.param(["abab", "bx"], "ababab", "", "abab", id="overlap with itself"),
        pytest.param(["abcd", "bc"], "xabcd", "xa", "bc", id="the first to be complete wins"),
        pytest.param(["cd", "bcd", "d"], "abcd", "a", "bcd", id="of those that end together the longest"),
        pytest.param(["\n\n"], "one\ntwo\n\nthree", "one\ntwo", "\n\n", id="newlines"),
        pytest.param(["日本"], "ab日日本語", "ab日", "日本", id="not only ASCII"),
    ],
)
def test_where_a_text_stops(stop_strings: list[str], text: str, visible: str, matched: str | None) -> None:
    for pieces in ([text], list(text)):
        emitted, found = run(StopMatcher(stop_strings), pieces)
        assert ("".join(emitted), found) == (visible, matched)


def test_include_stop_emits_the_stop_and_nothing_after_it() -> None:
    emitted, matched = run(StopMatcher(["DEFG"], include_stop=True), ["AB", "CD", "EFGH"])
    assert emitted == ["AB", "C", "DEFG"]
    assert matched == "DEFG"


def test_after_a_match_nothing_more_comes_out() -> None:
    matcher = StopMatcher(["X"])
    assert matcher.push("aXb") == StopResult(text="a", matched="X")
    assert matcher.push("more") == StopResult(text="", matched="X")
    assert matcher.flush() == ""


@pytest.mark.parametrize("stop_strings", [[""], ["X", ""], ["X" * (MAX_STOP_CHARACTERS + 1)]])
def test_empty_and_absurd_stop_strings_are_refused(stop_strings: list[str]) -> None:
    with pytest.raises(InvalidStopStringError, match="must not"):
        StopMatcher(stop_strings)


def naive_stop(stop_strings: Sequence[str], text: str) -> tuple[str, str | None]:
    for end in range(1, len(text) + 1):
        for stop_string in sorted(stop_strings, key=len, reverse=True):
            if text[:end].endswith(stop_string):
                return text[: end - len(stop_string)], stop_string
    return text, None


def naive_held(stop_strings: Sequence[str], text: str) -> str:
    prefixes = {stop_string[:length] for stop_string in stop_strings for length in range(len(stop_string))}
    return max((prefix for prefix in prefixes if text.endswith(prefix)), key=len, default="")


@given(
    stop_strings=st.lists(st.text("abc", min_size=1, max_size=6), max_size=4),
    pieces=st.lists(st.text("abc", max_size=5), max_size=12),
)
def test_any_split_streams_what_a_naive_matcher_says_as_early_as_it_can(
    stop_strings: list[str], pieces: list[str]
) -> None:
    matcher = StopMatcher(stop_strings)
    seen, emitted = "", ""
    for piece in pieces:
        seen += piece
        result = matcher.push(piece)
        emitted += result.text
        visible, matched = naive_stop(stop_strings, seen)
        assert result.matched == matched
        if matched is not None:
            assert emitted == visible
            return
        assert emitted + naive_held(stop_strings, seen) == seen
    assert emitted + matcher.flush() == seen
