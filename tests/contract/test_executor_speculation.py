"""Speculation over the wire: the same answers in fewer passes, and a word about the drafts in books and passes."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from metronome.executor.v1 import executor_pb2
from metronome.inference.v1 import inference_pb2 as pb
from support.services import Service, running_executor, wait_until
from support.wire import TIMEOUT_SECONDS, Client, connected, greedy

TEXT = "one two three, one two three, one two"


@pytest.fixture(scope="module")
def speculating(services_directory: Path, tiny_model_directory: Path, scheduler: Service) -> Iterator[Client]:
    arguments = ("--num-blocks", "16", "--num-swap-blocks", "8", "--speculative-drafts", "6")
    with (
        running_executor(
            services_directory, tiny_model_directory, *arguments, scheduler=[scheduler.address]
        ) as service,
        connected(service.address) as client,
    ):
        yield client


def sampled(text: str, max_tokens: int, seed: int) -> pb.GenerateRequest:
    request = greedy(text, max_tokens)
    request.sampling.MergeFrom(pb.SamplingParameters(temperature=0.8, seed=seed))
    return request


def test_answers_are_the_same_and_take_fewer_passes(client: Client, speculating: Client) -> None:
    requests = [greedy(TEXT + "." * number, 40) for number in range(3)] + [sampled(TEXT, 40, seed=5)]
    expected = [client.generate(request) for request in requests]
    wait_until(speculating.is_idle)
    passes = speculating.control.WatchState(executor_pb2.WatchStateRequest(), timeout=TIMEOUT_SECONDS)
    before = next(passes).state.counters
    with ThreadPoolExecutor(len(requests)) as pool:
        answers = list(pool.map(speculating.generate, requests))
    assert [answer.tokens for answer in answers] == [answer.tokens for answer in expected]
    assert [answer.text for answer in answers] == [answer.text for answer in expected]
    assert [answer.finished.usage.num_output_tokens for answer in answers] == [40] * len(requests)
    wait_until(speculating.is_idle)
    after = speculating.books().counters
    num_drafts = after.num_draft_tokens - before.num_draft_tokens
    num_accepted = after.num_accepted_draft_tokens - before.num_accepted_draft_tokens
    assert 0 < num_accepted <= num_drafts
    seen: list[executor_pb2.Pass] = []
    while sum(one.num_finished for one in seen) < len(requests):
        seen.extend(next(passes).passes)
    assert sum(one.num_draft_tokens for one in seen) == num_drafts
    assert sum(one.num_accepted_draft_tokens for one in seen) == num_accepted
    # Each decode of a pass gives one token and the drafts that are right; the first token comes from prefill.
    given = sum(one.num_decode_requests + one.num_accepted_draft_tokens for one in seen)
    assert given == 4 * 39
    assert (after.num_refused_plans, after.num_failed) == (0, 0)


def test_a_client_that_leaves_in_the_middle_leaves_nothing(speculating: Client) -> None:
    stream = speculating.open(greedy(TEXT, 150))
    next(stream)
    stream.cancel()
    wait_until(speculating.is_idle)


def test_an_executor_without_speculation_counts_no_drafts(client: Client) -> None:
    client.generate(greedy(TEXT, 8))
    assert client.books().counters.num_draft_tokens == 0
