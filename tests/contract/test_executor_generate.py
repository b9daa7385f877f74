"""The stream of an answer: its shape, what is in force, and where it stops."""

from __future__ import annotations

import pytest

from metronome.inference.v1 import inference_pb2 as pb
from support.wire import TIMEOUT_SECONDS, Answer, Client, greedy

PROMPT = "sixteen tokens.."


def detokenize(client: Client, token_ids: list[int]) -> str:
    return client.inference.Detokenize(pb.DetokenizeRequest(token_ids=token_ids), timeout=TIMEOUT_SECONDS).text


def readable_answer(client: Client) -> tuple[pb.GenerateRequest, Answer]:
    """A request whose answer has three different ASCII characters in a row, each a token."""
    for number in range(200):
        request = greedy(f"prompt {number}", 40)
        answer = client.generate(request)
        for start in range(1, len(answer.text) - 3):
            piece = answer.text[start : start + 3]
            if piece.isascii() and len(set(piece)) == 3 and answer.text.index(piece) == start:
                return request, answer
    raise AssertionError("no prompt has such an answer")


def readable_piece(text: str) -> str:
    pieces = (text[start : start + 3] for start in range(1, len(text) - 3))
    return next(p for p in pieces if p.isascii() and len(set(p)) == 3)


def test_a_stream_opens_with_started_and_ends_with_finished(client: Client) -> None:
    answer = client.generate(greedy(PROMPT, 12))
    events = [response.WhichOneof("event") for response in answer.responses if not response.HasField("heartbeat")]
    assert events == ["started", *["delta"] * 12, "finished"]
    assert [response.sequence for response in answer.responses] == list(range(len(answer.responses)))


def test_the_last_message_has_reason_and_usage(client: Client) -> None:
    finished = client.generate(greedy(PROMPT, 12)).finished
    usage = finished.usage
    assert finished.finish_reason == pb.FINISH_REASON_LENGTH
    assert finished.matched_stop == ""
    assert (usage.num_prompt_tokens, usage.num_output_tokens, usage.num_preemptions) == (16, 12, 0)
    assert 0 <= usage.queue_time_us <= usage.time_to_first_token_us <= usage.total_time_us


def test_the_text_of_the_stream_is_the_text_of_its_tokens(client: Client) -> None:
    answers = [client.generate(greedy(f"{number} and more", 60)) for number in range(5)]
    assert len({answer.text for answer in answers}) == 5
    for answer in answers:
        assert answer.text == detokenize(client, answer.tokens)


def test_text_can_be_left_out(client: Client) -> None:
    request = greedy(PROMPT, 12)
    tokens = client.generate(request).tokens
    request.output.omit_text = True
    answer = client.generate(request)
    assert (answer.text, answer.tokens) == ("", tokens)


def test_text_that_is_left_out_is_searched_for_stop_strings(client: Client) -> None:
    request = greedy(PROMPT, 12)
    whole = client.generate(request)
    request.stopping.stop.append(whole.text[4:7])
    stopped = client.generate(request)
    request.output.omit_text = True
    answer = client.generate(request)
    assert (answer.text, answer.tokens, answer.finished.matched_stop) == ("", stopped.tokens, whole.text[4:7])
    assert len(answer.tokens) < len(whole.tokens)


def test_token_ids_are_a_prompt_as_they_are(client: Client) -> None:
    text = client.generate(greedy(PROMPT, 8))
    request = greedy("", 8)
    tokens = client.inference.Tokenize(pb.TokenizeRequest(text=PROMPT), timeout=TIMEOUT_SECONDS).token_ids
    request.token_ids.ids.extend(tokens)
    assert client.generate(request).tokens == text.tokens


def test_an_explicit_zero_is_a_zero(client: Client) -> None:
    """Case 5: temperature."""
    first, second = (client.generate(greedy(PROMPT, 20)) for _ in range(2))
    assert first.started.sampling.temperature == 0
    assert first.tokens == second.tokens
    assert first.started.sampling.seed != second.started.sampling.seed


def test_what_is_not_set_has_its_default_and_started_says_so(client: Client) -> None:
    """Case 5: defaults."""
    request = pb.GenerateRequest(text=PROMPT)
    request.stopping.max_tokens = 2
    answer = client.generate(request)
    in_force = answer.started.sampling
    assert answer.started.request_id
    assert answer.started.num_prompt_tokens == 16
    assert answer.started.max_tokens == 2
    assert all(in_force.HasField(name) for name in ("temperature", "top_p", "seed"))
    assert (in_force.temperature, in_force.top_p, in_force.top_k) == (1, 1, 0)


@pytest.mark.parametrize("seed", [0, 7, -1, 2**63 - 1, -(2**63)])
def test_a_seed_repeats_an_answer(client: Client, seed: int) -> None:
    """Case 5: seed 0 is a seed like any other."""
    request = pb.GenerateRequest(text=PROMPT, sampling=pb.SamplingParameters(temperature=0.8, seed=seed))
    request.stopping.max_tokens = 20
    request.stopping.ignore_eos = True
    first, second = (client.generate(request) for _ in range(2))
    assert first.started.sampling.seed == seed
    assert first.tokens == second.tokens


def test_the_seed_that_was_drawn_repeats_an_answer_that_had_none(client: Client) -> None:
    request = pb.GenerateRequest(text=PROMPT)
    request.stopping.max_tokens = 20
    first = client.generate(request)
    request.sampling.CopyFrom(first.started.sampling)
    assert client.generate(request).tokens == first.tokens


def test_unset_max_tokens_is_the_room_that_is_left(client: Client) -> None:
    """Case 5: 16 blocks hold 256 tokens, and the last token needs no place."""
    request = greedy(PROMPT, 1)
    request.stopping.ClearField("max_tokens")
    answer = client.generate(request)
    assert answer.started.max_tokens == 241
    assert len(answer.tokens) == 241
    assert answer.finished.finish_reason == pb.FINISH_REASON_LENGTH


def test_a_stop_string_over_several_tokens_is_never_sent(client: Client) -> None:
    """Case 42, first run."""
    request, plain = readable_answer(client)
    stop = readable_piece(plain.text)
    request.stopping.stop.append(stop)
    answer = client.generate(request)
    assert answer.text == plain.text[: plain.text.index(stop)]
    assert answer.finished.finish_reason == pb.FINISH_REASON_STOP
    assert answer.finished.matched_stop == stop
    assert answer.finished.usage.num_output_tokens == len(answer.tokens)
    assert answer.tokens == plain.tokens[: len(answer.tokens)]
    assert stop in detokenize(client, answer.tokens)


def test_text_that_was_held_for_a_stop_string_is_sent_at_the_end(client: Client) -> None:
    """Case 42, second run: the answer ends before the stop string is complete."""
    request, plain = readable_answer(client)
    for num_tokens in range(1, 40, 6):
        request.stopping.max_tokens = num_tokens
        request.stopping.stop[:] = [plain.text[1:] + "never comes"]
        assert client.generate(request).text == detokenize(client, plain.tokens[:num_tokens])


def test_the_earliest_of_several_stop_strings_ends_the_answer(client: Client) -> None:
    """Case 42, third run: 'X' and 'XY' together."""
    request, plain = readable_answer(client)
    piece = readable_piece(plain.text)
    request.stopping.stop.extend([piece[:2], piece[:1]])
    answer = client.generate(request)
    assert answer.finished.matched_stop == piece[0]
    assert answer.text == plain.text[: plain.text.index(piece[0])]


def test_a_stop_token_ends_the_answer_and_counts(client: Client) -> None:
    request, plain = readable_answer(client)
    stop_token = plain.tokens[5]
    end = plain.tokens.index(stop_token)
    request.stopping.stop_token_ids.append(stop_token)
    answer = client.generate(request)
    assert answer.tokens == plain.tokens[: end + 1]
    assert answer.text == detokenize(client, plain.tokens[:end])
    assert answer.finished.finish_reason == pb.FINISH_REASON_STOP
    assert answer.finished.usage.num_output_tokens == end + 1


@pytest.mark.parametrize("text", ["", "plain", "Grüße, 日本語 👨‍👩‍👧‍👦", "a\x00b\n\t"])
def test_text_comes_back_from_its_tokens(client: Client, text: str) -> None:
    token_ids = client.inference.Tokenize(pb.TokenizeRequest(text=text), timeout=TIMEOUT_SECONDS).token_ids
    assert len(token_ids) == len(text.encode())
    assert detokenize(client, list(token_ids)) == text


def test_the_model_is_described(client: Client) -> None:
    info = client.inference.GetModelInfo(pb.GetModelInfoRequest(), timeout=TIMEOUT_SECONDS)
    assert (info.architecture, info.dtype, info.device) == ("Qwen3ForCausalLM", "float32", "cpu")
    assert (info.vocab_size, info.has_chat_template, list(info.eos_token_ids)) == (300, False, [257])
    assert info.max_model_len == 257
    assert info.num_parameters > 0
    assert info.model
