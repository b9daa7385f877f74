"""A scheduler dies while requests stream: whoever has begun gets the rest, whoever waits goes on when one is back."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest

from support.services import Service, free_port, is_healthy, running_executor, running_scheduler, wait_until
from support.wire import Client, connected, greedy

NUM_STREAMS = 8
NUM_TOKENS = 300
PROMPTS = [f"stream {number} of eight" for number in range(NUM_STREAMS)]

Setting = tuple[list[str], Client, Service]


@pytest.fixture(scope="module")
def setting(services_directory: Path, tiny_model_directory: Path) -> Iterator[Setting]:
    """Ports for two schedulers, none of which runs, and an executor that knows both."""
    ports = [free_port() for _ in range(2)]
    addresses = [f"127.0.0.1:{port}" for port in ports]
    arguments = ("--max-num-seqs", str(NUM_STREAMS), "--num-blocks", "256")
    with (
        running_executor(services_directory, tiny_model_directory, *arguments, scheduler=addresses) as service,
        connected(service.address) as client,
    ):
        yield ports, client, service


@pytest.fixture(scope="module")
def undisturbed(setting: Setting, services_directory: Path) -> list[list[int]]:
    """What the eight streams give when nothing happens."""
    ports, client, _ = setting
    with running_scheduler(services_directory, port=ports[0]), ThreadPoolExecutor(NUM_STREAMS) as pool:
        requests = [greedy(prompt, NUM_TOKENS) for prompt in PROMPTS]
        return list(pool.map(lambda request: client.generate(request).tokens, requests))


def open_streams(client: Client) -> tuple[list[grpc.CallIterator], list[list[int]]]:
    """Eight streams that run, and the first token of each."""
    streams = [client.open(greedy(prompt, NUM_TOKENS)) for prompt in PROMPTS]
    return streams, [list(next(stream).delta.token_ids) for stream in streams]


def rest_of(stream: grpc.CallIterator) -> list[int]:
    return [token_id for response in stream for token_id in response.delta.token_ids]


def test_requests_wait_for_a_scheduler_that_is_not_there_yet(setting: Setting, services_directory: Path) -> None:
    ports, client, executor = setting
    waiting = [client.open(greedy(f"patient {number}", 5)) for number in range(3)]
    before = client.books().counters.num_plan_failures
    wait_until(lambda: client.books().counters.num_plan_failures > before + 3)
    assert is_healthy(executor.address)
    assert list(client.executor().requests.num_computed_tokens) == [0] * 3
    told = executor.log.count("no_scheduler_answers")
    wait_until(lambda: client.books().counters.num_plan_failures > before + 6)
    assert executor.log.count("no_scheduler_answers") == told
    assert f"127.0.0.1:{ports[1]}" in executor.log
    with running_scheduler(services_directory, port=ports[1]):
        assert [len(rest_of(stream)) for stream in waiting] == [5] * 3


def test_a_killed_scheduler_costs_no_stream_a_token_and_the_queue_goes_on_with_the_next(
    setting: Setting, undisturbed: list[list[int]], services_directory: Path
) -> None:
    ports, client, executor = setting
    with running_scheduler(services_directory, port=ports[0]) as scheduler:
        streams, tokens = open_streams(client)
        scheduler.kill()
    waiting = [client.open(greedy(f"waits {number}", 3)) for number in range(4)]
    for stream, first in zip(streams, tokens, strict=True):
        first += rest_of(stream)
    assert tokens == undisturbed
    wait_until(lambda: len(client.executor().requests.id) == len(waiting))
    assert client.books().counters.num_safe_plans > 0
    assert "no_scheduler_answers" in executor.log
    with running_scheduler(services_directory, port=ports[0]):
        assert [len(rest_of(stream)) for stream in waiting] == [3] * 4
    assert "scheduler_answers_again" in executor.log
    wait_until(client.is_idle)


def test_the_other_scheduler_takes_over_at_once(
    setting: Setting, undisturbed: list[list[int]], services_directory: Path
) -> None:
    ports, client, _ = setting
    with (
        running_scheduler(services_directory, port=ports[0]) as first,
        running_scheduler(services_directory, port=ports[1]) as second,
    ):
        streams, tokens = open_streams(client)
        num_finished = client.books().counters.num_finished
        first.kill()
        for stream, received in zip(streams, tokens, strict=True):
            received += rest_of(stream)
        assert tokens == undisturbed
        for number in range(5):
            assert len(client.generate(greedy(f"admitted by the other {number}", 4)).tokens) == 4
        assert client.books().counters.num_finished == num_finished + NUM_STREAMS + 5
        with running_scheduler(services_directory, port=ports[0]):
            second.kill()
            assert len(client.generate(greedy("admitted by the first again", 4)).tokens) == 4
    wait_until(client.is_idle)


def test_schedulers_that_come_and_go_lose_nobody(
    setting: Setting, undisturbed: list[list[int]], services_directory: Path
) -> None:
    ports, client, _ = setting
    with ThreadPoolExecutor(NUM_STREAMS) as pool:
        answers = [pool.submit(client.generate, greedy(prompt, NUM_TOKENS)) for prompt in PROMPTS]
        while not all(answer.done() for answer in answers):
            with running_scheduler(services_directory, port=ports[0]) as scheduler:
                before = client.books().counters.num_iterations
                wait_until(lambda: client.books().counters.num_iterations > before + 20 or client.is_idle())  # noqa: B023
                scheduler.kill()
        assert [answer.result().tokens for answer in answers] == undisturbed
    wait_until(client.is_idle)
