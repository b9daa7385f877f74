"""What a request may ask of its tokens and its stream, over the wire."""

from __future__ import annotations

import json
import math
import re

import pytest

from metronome.inference.v1 import inference_pb2 as pb
from support.services import wait_until
from support.wire import TIMEOUT_SECONDS, Answer, Client, greedy

PROMPT = "sixteen tokens.."
SCHEMA = json.dumps(
    {
        "type": "object",
        "properties": {"name": {"type": "string", "maxLength": 8}, "tags": {"enum": [["a"], []]}},
        "required": ["name", "tags"],
        "additionalProperties": False,
    }
)
ASCII_LETTERS = "abcdefghijklmnopqrstuvwxyz"


def with_sampling(request: pb.GenerateRequest, **parameters: object) -> pb.GenerateRequest:
    changed = pb.GenerateRequest()
    changed.CopyFrom(request)
    changed.sampling.MergeFrom(pb.SamplingParameters(**parameters))  # type: ignore[arg-type]
    return changed


def with_output(request: pb.GenerateRequest, **options: object) -> pb.GenerateRequest:
    changed = pb.GenerateRequest()
    changed.CopyFrom(request)
    changed.output.MergeFrom(pb.OutputOptions(**options))  # type: ignore[arg-type]
    return changed


def token_ids(client: Client, text: str) -> list[int]:
    return list(client.inference.Tokenize(pb.TokenizeRequest(text=text), timeout=TIMEOUT_SECONDS).token_ids)


def deltas(answer: Answer) -> list[pb.Delta]:
    return [response.delta for response in answer.responses if response.HasField("delta")]


def logprobs(answer: Answer) -> list[pb.TokenLogprobs]:
    return [told for delta in deltas(answer) for told in delta.logprobs]


def test_banned_tokens_are_not_chosen_and_allowed_ones_alone_are(client: Client) -> None:
    plain = client.generate(greedy(PROMPT, 20))
    banned = client.generate(with_sampling(greedy(PROMPT, 20), banned_token_ids=plain.tokens[:3]))
    assert not {*banned.tokens} & {*plain.tokens[:3]}
    allowed = token_ids(client, "abc")
    only = client.generate(with_sampling(greedy(PROMPT, 20), allowed_token_ids=allowed))
    assert {*only.tokens} <= {*allowed}


def test_a_bias_decides(client: Client) -> None:
    letter = token_ids(client, "z")[0]
    answer = client.generate(with_sampling(greedy(PROMPT, 8), logit_bias={letter: 100.0}))
    assert answer.text == "z" * 8


def test_penalties_make_tokens_differ(client: Client) -> None:
    letters = token_ids(client, "abcdfghjlmpq")  # none of the prompt
    request = with_sampling(greedy(PROMPT, 12), allowed_token_ids=letters, logit_bias=dict.fromkeys(letters, 100.0))
    plain = client.generate(request)
    assert len({*plain.tokens}) < 12
    # The bias makes all of them so likely that one that is there already is never the best.
    penalised = client.generate(with_sampling(request, repetition_penalty=100.0))
    assert sorted(penalised.tokens) == sorted(letters)


def test_the_parameters_that_were_told_give_the_same_answer_again(client: Client) -> None:
    request = pb.GenerateRequest(text=PROMPT)
    request.stopping.max_tokens = 16
    request = with_sampling(
        request,
        temperature=0.9,
        min_p=0.02,
        top_k=50,
        repetition_penalty=1.2,
        presence_penalty=0.5,
        frequency_penalty=0.25,
        logit_bias={65: 1.5},
        banned_token_ids=[66, 67],
        regex=r"[\x00-\x7f]{3,}",
    )
    first = client.generate(request)
    request.sampling.CopyFrom(first.started.sampling)
    second = client.generate(request)
    assert second.started.sampling == first.started.sampling
    assert second.tokens == first.tokens


def test_an_end_token_waits_for_the_least_length(client: Client) -> None:
    eos = 257
    request = greedy(PROMPT, 20)
    request.stopping.ignore_eos = False
    request = with_sampling(request, logit_bias={eos: 100.0})
    assert client.generate(request).tokens == [eos]
    request.stopping.min_tokens = 5
    answer = client.generate(request)
    assert len(answer.tokens) == 6
    assert answer.tokens.index(eos) == 5
    assert answer.finished.finish_reason == pb.FINISH_REASON_STOP


def test_a_stop_string_waits_for_the_least_length(client: Client) -> None:
    letter = token_ids(client, "z")[0]
    request = with_sampling(greedy(PROMPT, 20), logit_bias={letter: 100.0})
    request.stopping.stop.append("zz")
    request.stopping.min_tokens = 5
    answer = client.generate(request)
    assert (answer.text, len(answer.tokens)) == ("z" * 5, 7)


def test_each_token_has_its_log_probability(client: Client) -> None:
    request = with_output(greedy(PROMPT, 12), logprobs=4)
    answer = client.generate(request)
    assert answer.tokens == client.generate(greedy(PROMPT, 12)).tokens
    assert all(len(delta.logprobs) == len(delta.token_ids) for delta in deltas(answer))
    for token_id, told in zip(answer.tokens, logprobs(answer), strict=True):
        assert len(told.top_token_ids) == len(told.top_logprobs) == 4
        assert list(told.top_logprobs) == sorted(told.top_logprobs, reverse=True)
        # Greedy, so the token is the most likely one.
        assert (told.top_token_ids[0], told.top_logprobs[0]) == (token_id, told.logprob)
        assert math.exp(told.logprob) <= 1


def test_log_probabilities_are_those_before_what_the_request_asks_for(client: Client) -> None:
    """A token that a bias made certain is told to be as unlikely as the model has it."""
    letter = token_ids(client, "z")[0]
    plain = client.generate(with_output(greedy(PROMPT, 1), logprobs=20))
    answer = client.generate(with_output(with_sampling(greedy(PROMPT, 1), logit_bias={letter: 100.0}), logprobs=20))
    assert answer.tokens == [letter]
    first, biased = logprobs(plain)[0], logprobs(answer)[0]
    assert list(biased.top_token_ids) == list(first.top_token_ids)
    assert list(biased.top_logprobs) == pytest.approx(list(first.top_logprobs), abs=1e-5)
    assert biased.logprob < first.logprob


def test_zero_log_probabilities_are_those_of_the_chosen_tokens_alone(client: Client) -> None:
    told = logprobs(client.generate(with_output(greedy(PROMPT, 3), logprobs=0)))
    assert len(told) == 3
    assert all(one.logprob <= 0 and not one.top_token_ids for one in told)
    assert logprobs(client.generate(greedy(PROMPT, 3))) == []


def test_case_41_the_prompts_log_probabilities_come_with_the_first_delta(client: Client) -> None:
    answer = client.generate(with_output(greedy(PROMPT, 6), prompt_logprobs=2))
    first, *others = deltas(answer)
    assert len(first.prompt_logprobs) == 16
    assert first.prompt_logprobs[0] == pb.TokenLogprobs()
    assert all(one.logprob < 0 and len(one.top_token_ids) == 2 for one in first.prompt_logprobs[1:])
    assert not any(delta.prompt_logprobs for delta in others)
    again = client.generate(with_output(greedy(PROMPT, 6), prompt_logprobs=2))
    values = [one.logprob for one in first.prompt_logprobs]
    assert [one.logprob for one in deltas(again)[0].prompt_logprobs] == pytest.approx(values, abs=1e-5)


def test_a_token_is_as_likely_in_the_prompt_as_it_was_in_the_answer(client: Client) -> None:
    answer = client.generate(with_output(greedy(PROMPT, 6), logprobs=0))
    request = greedy("", 1)
    request.token_ids.ids.extend(token_ids(client, PROMPT) + answer.tokens)
    told = deltas(client.generate(with_output(request, prompt_logprobs=0)))[0].prompt_logprobs
    assert [one.logprob for one in told][16:] == pytest.approx([one.logprob for one in logprobs(answer)], abs=1e-4)


def test_the_prompt_is_echoed_before_the_answer(client: Client) -> None:
    plain = client.generate(greedy(PROMPT, 6))
    request = with_output(greedy(PROMPT, 6), echo=True)
    request.stopping.stop.append("sixteen")
    answer = client.generate(request)
    assert answer.text == PROMPT + plain.text
    assert deltas(answer)[0].text.startswith(PROMPT)
    assert client.generate(with_output(request, omit_text=True)).text == ""


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_an_answer_is_json_of_its_schema(client: Client, temperature: float) -> None:
    request = with_sampling(pb.GenerateRequest(text=PROMPT), json_schema=SCHEMA, temperature=temperature, seed=4)
    request.stopping.max_tokens = 200
    answer = client.generate(request)
    value = json.loads(answer.text)
    assert set(value) == {"name", "tags"}
    assert len(value["name"]) <= 8
    assert value["tags"] in ([], ["a"])
    assert answer.finished.finish_reason == pb.FINISH_REASON_STOP


@pytest.mark.parametrize("ignore_eos", [False, True])
def test_an_answer_matches_its_regular_expression(client: Client, ignore_eos: bool) -> None:
    expression = r"[a-z]{3,5}( [a-z]{3,5}){2}\."
    request = with_sampling(greedy(PROMPT, 100), regex=expression)
    request.stopping.ignore_eos = ignore_eos
    answer = client.generate(request)
    assert re.fullmatch(expression, answer.text)
    assert answer.finished.finish_reason == pb.FINISH_REASON_STOP
    assert answer.finished.usage.num_output_tokens == len(answer.text)


def test_an_answer_is_of_its_grammar(client: Client) -> None:
    answer = client.generate(with_sampling(greedy(PROMPT, 100), grammar='start: "<" start ">" | "x" | "y"'))
    assert re.fullmatch("(<*)[xy](>*)", answer.text)
    assert answer.text.count("<") == answer.text.count(">")


def test_requests_of_every_kind_at_once_get_what_they_get_alone(client: Client) -> None:
    plain = greedy(PROMPT, 30)
    requests = [
        plain,
        with_sampling(plain, repetition_penalty=1.5),
        with_sampling(plain, presence_penalty=1.0, frequency_penalty=0.5, temperature=0.9, seed=1),
        with_sampling(plain, allowed_token_ids=token_ids(client, ASCII_LETTERS), min_p=0.1, temperature=0.8, seed=2),
        with_sampling(plain, regex="[a-z]+", banned_token_ids=token_ids(client, "aeiou")),
        with_output(with_sampling(plain, logit_bias={70: 3.0}), logprobs=3),
        with_output(plain, prompt_logprobs=1),
        with_sampling(plain, json_schema=SCHEMA, temperature=1.0, seed=3),
    ]
    alone = [client.generate(request).tokens for request in requests]
    streams = [client.inference.Generate(request, timeout=TIMEOUT_SECONDS) for request in requests]
    together = [Answer(responses=list(stream)).tokens for stream in streams]
    assert together == alone


def test_a_contradiction_ends_alone(client: Client) -> None:
    beside = client.open(greedy("beside", 20))
    request = with_sampling(greedy(PROMPT, 20), regex="abc", banned_token_ids=token_ids(client, "c"))
    refusal = client.refused(request)
    assert refusal.info.reason == "NO_TOKEN_ALLOWED"
    assert "leave no token to choose" in refusal.message
    assert sum(len(response.delta.token_ids) for response in beside) == 20
    assert client.is_idle()


def answers(answer: Answer) -> dict[int, list[int]]:
    """The tokens of each answer."""
    tokens: dict[int, list[int]] = {}
    for delta in deltas(answer):
        tokens.setdefault(delta.index, []).extend(delta.token_ids)
    return tokens


def test_case_39_several_answers_differ_and_are_those_of_their_seeds(client: Client) -> None:
    request = pb.GenerateRequest(text=PROMPT, sampling=pb.SamplingParameters(temperature=0.8, n=4, seed=7))
    request.stopping.max_tokens = 16
    request.stopping.ignore_eos = True
    together = client.generate(request)
    assert (together.started.sampling.n, together.started.sampling.best_of) == (4, 4)
    ends = [response.finished for response in together.responses if response.HasField("finished")]
    assert sorted(end.index for end in ends) == [0, 1, 2, 3]
    assert [end.usage.num_output_tokens for end in ends] == [16] * 4
    assert [response.sequence for response in together.responses] == list(range(len(together.responses)))
    by_index = answers(together)
    assert len({tuple(tokens) for tokens in by_index.values()}) == 4
    assert answers(client.generate(request)) == by_index
    for index in range(4):
        alone = with_sampling(request, n=1, seed=7 + index)
        assert client.generate(alone).tokens == by_index[index]
    assert client.is_idle()


@pytest.mark.parametrize("n", [2, 5])
def test_several_answers_compute_their_prompt_once(client: Client, n: int) -> None:
    wait_until(client.is_idle)
    before = client.books().counters.num_prefill_tokens
    text = f"{n} answers to a prompt that nobody else has"
    answer = client.generate(with_sampling(greedy(text, 6), n=n))
    ends = [response.finished for response in answer.responses if response.HasField("finished")]
    (num_prompt_tokens,) = {end.usage.num_prompt_tokens for end in ends}
    cached = {end.index: end.usage.num_cached_tokens for end in ends}
    assert cached == {0: 0} | dict.fromkeys(range(1, n), num_prompt_tokens - 1)
    assert client.books().counters.num_prefill_tokens - before == num_prompt_tokens + n - 1
    assert len({tuple(tokens) for tokens in answers(answer).values()}) == 1
    assert client.is_idle()


def test_the_best_of_several_answers_is_the_most_likely_one(client: Client) -> None:
    request = pb.GenerateRequest(text=PROMPT, sampling=pb.SamplingParameters(temperature=1.5, n=4, seed=3))
    request.stopping.max_tokens = 8
    request.stopping.ignore_eos = True
    all_of_them = client.generate(with_output(request, logprobs=0))
    likelihood = dict.fromkeys(range(4), 0.0)
    for delta in deltas(all_of_them):
        likelihood[delta.index] += sum(told.logprob for told in delta.logprobs) / 8
    best, second = sorted(likelihood, key=likelihood.__getitem__, reverse=True)[:2]
    chosen = client.generate(with_sampling(request, n=2, best_of=4))
    assert answers(chosen) == {0: answers(all_of_them)[best], 1: answers(all_of_them)[second]}
    assert [len(delta.token_ids) for delta in deltas(chosen)] == [8, 8]
    assert logprobs(chosen) == []


def test_several_answers_keep_to_their_form_and_stops_each_by_itself(client: Client) -> None:
    request = with_sampling(greedy(PROMPT, 60), n=3, temperature=1.0, seed=5, regex="[a-z]+(,[a-z]+)*")
    request.stopping.stop.append(",")
    request.output.echo = True
    request.output.prompt_logprobs = 0
    answer = client.generate(request)
    texts = {index: "".join(d.text for d in deltas(answer) if d.index == index) for index in range(3)}
    for text in texts.values():
        assert text.startswith(PROMPT)
        assert re.fullmatch("[a-z]*", text.removeprefix(PROMPT))
    assert len([delta for delta in deltas(answer) if delta.prompt_logprobs]) == 1


def test_a_call_fails_as_a_whole_where_one_of_its_answers_does(client: Client) -> None:
    request = with_sampling(greedy(PROMPT, 20), n=3, regex="abc", banned_token_ids=token_ids(client, "c"))
    assert client.refused(request).info.reason == "NO_TOKEN_ALLOWED"
    wait_until(client.is_idle)
