"""How the tokens of an answer become its text, and what ends it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from executor_service.engine.request import FinishReason, OutputOptions
from executor_service.engine.sequence import Sequence
from executor_service.sampling.adjustments import Adjustments
from executor_service.sampling.penalties import Penalties
from support.engine import GREEDY, Spelling, sequence_of

SPELLED = Spelling({1: "AB", 2: "C", 3: "DEF", 4: "G", 5: "HI", 6: "J", 7: "X", 8: "Y"})
END = 99


def answer(*tokens: int, new: int = 100, stop: tuple[str, ...] = ()) -> tuple[str, Sequence, FinishReason | None, str]:
    """Push tokens until the answer ends: its text, and how it ended."""
    sequence = sequence_of(1, [1, 2, 3], new, stop=stop, stop_token_ids=[END], detokenizer=SPELLED)
    text = ""
    for token in tokens:
        output = sequence.push(token)
        text += output.text
        if output.finish_reason is not None:
            return text, sequence, output.finish_reason, output.matched_stop
    return text, sequence, None, ""


def test_case_42_a_stop_string_across_tokens_ends_the_answer_before_itself() -> None:
    text, sequence, reason, matched = answer(1, 2, 3, 4, 5, 6, 1, stop=("DEFGHIJ",))
    assert (text, reason, matched) == ("ABC", FinishReason.STOP, "DEFGHIJ")
    assert sequence.num_output_tokens == 6


def test_case_42_what_was_held_is_sent_when_the_text_ends_otherwise() -> None:
    text, sequence, reason, matched = answer(1, 2, 3, 4, END, stop=("DEFGHIJ",))
    assert (text, reason, matched) == ("ABCDEFG", FinishReason.STOP, "")
    assert sequence.num_output_tokens == 5


def test_case_42_the_earliest_match_wins() -> None:
    text, _, reason, matched = answer(1, 7, 8, stop=("XY", "X"))
    assert (text, reason, matched) == ("AB", FinishReason.STOP, "X")


def test_what_was_held_is_sent_when_the_length_is_reached() -> None:
    text, sequence, reason, _ = answer(1, 2, 3, 4, 5, new=3, stop=("DEFGHIJ",))
    assert (text, reason) == ("ABCDEF", FinishReason.LENGTH)
    assert sequence.num_output_tokens == 3


def test_a_stop_string_that_the_last_token_completes_is_a_stop() -> None:
    assert answer(1, 2, new=2, stop=("BC",))[::2] == ("A", FinishReason.STOP)


def test_the_text_of_a_stop_token_is_not_sent() -> None:
    sequence = sequence_of(1, [1], 9, stop_token_ids=[3], detokenizer=SPELLED)
    assert sequence.push(1).text == "AB"
    output = sequence.push(3)
    assert (output.text, output.finish_reason) == ("", FinishReason.STOP)
    assert sequence.num_output_tokens == 2


def test_an_answer_goes_on_until_something_ends_it() -> None:
    text, sequence, reason, _ = answer(1, 2, 3)
    assert (text, reason) == ("ABCDEF", None)
    assert sequence.tokens(0, sequence.num_tokens).tolist() == [1, 2, 3, 1, 2, 3]


@pytest.mark.parametrize("held_to_the_end", ["G", "DEF"])
def test_text_that_the_detokenizer_held_may_complete_a_stop_string(held_to_the_end: str) -> None:
    class Holding(Spelling):
        def flush(self) -> str:
            return held_to_the_end

    sequence = sequence_of(1, [1], 2, stop=(held_to_the_end,), detokenizer=Holding({1: "AB"}))
    assert sequence.push(1).finish_reason is None
    output = sequence.push(1)
    assert (output.text, output.finish_reason, output.matched_stop) == ("AB", FinishReason.STOP, held_to_the_end)


def test_a_stop_token_before_the_least_length_does_not_end_the_answer() -> None:
    """No sampler chooses one then; whoever runs without one is held to it too."""
    sequence = sequence_of(1, [1], 9, stop_token_ids=[END], min_new=2, detokenizer=SPELLED)
    assert [sequence.push(END).finish_reason for _ in range(3)] == [None, None, FinishReason.STOP]


def test_a_stop_string_is_looked_for_in_the_text_after_the_least_length() -> None:
    sequence = sequence_of(1, [1], 9, stop=["BC", "X"], min_new=3, detokenizer=SPELLED)
    outputs = [sequence.push(token) for token in (7, 1, 2, 1, 2)]
    assert [output.text for output in outputs] == ["X", "AB", "C", "A", ""]
    assert [output.finish_reason for output in outputs] == [None] * 4 + [FinishReason.STOP]
    assert outputs[-1].matched_stop == "BC"


def test_a_stop_string_that_began_before_the_least_length_is_none() -> None:
    sequence = sequence_of(1, [1], 3, stop=["BC"], min_new=1, detokenizer=SPELLED)
    assert [sequence.push(token).text for token in (1, 2, 1)] == ["AB", "C", "AB"]


def test_text_to_echo_comes_once_and_stops_are_not_looked_for_in_it() -> None:
    sequence = sequence_of(1, [1], 9, stop=["AB"], detokenizer=SPELLED, output=OutputOptions(echo="ABC"))
    assert [sequence.push(token).text for token in (2, 3)] == ["ABCC", "DEF"]


def test_text_to_echo_comes_although_the_first_token_ends_the_answer() -> None:
    sequence = sequence_of(1, [1], 9, stop_token_ids=[END], output=OutputOptions(echo="ABC"))
    output = sequence.push(END)
    assert (output.text, output.finish_reason) == ("ABC", FinishReason.STOP)


def test_only_a_request_that_changes_its_logits_has_an_adjuster() -> None:
    assert sequence_of(1, [1], 9).adjuster is None
    assert sequence_of(1, [1], 9, min_new=1).adjuster is not None
    asked = replace(GREEDY, adjustments=Adjustments(penalties=Penalties(presence=0.1)))
    assert sequence_of(1, [1], 9, sampling=asked).adjuster is not None


def test_a_long_answer_outgrows_its_buffer_and_keeps_every_token() -> None:
    sequence = sequence_of(1, range(100), 5000)
    pushed = np.random.default_rng(0).integers(0, 300, 1000).tolist()
    for token in pushed:
        sequence.push(token)
    assert sequence.tokens(0, 1100).tolist() == [*range(100), *pushed]
    assert sequence.tokens(98, 102).tolist() == [98, 99, *pushed[:2]]


def test_times_count_from_arrival_and_are_never_negative() -> None:
    sequence = sequence_of(1, [1, 2], 5, arrival_time_us=1000)
    sequence.push(1)
    sequence.first_run_us, sequence.first_token_us = 1500, 2500
    usage = sequence.usage(num_preemptions=3, now_us=4000)
    assert (usage.queue_time_us, usage.time_to_first_token_us, usage.total_time_us) == (500, 1500, 3000)
    assert (usage.num_prompt_tokens, usage.num_output_tokens, usage.num_preemptions) == (2, 1, 3)
    # A clock that was set back meanwhile.
    assert sequence.usage(num_preemptions=0, now_us=500).total_time_us == 0
