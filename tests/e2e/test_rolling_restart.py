"""Schedulers, and executors, are restarted one after another under load: no request fails, none loses a token."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from threading import Event

import pytest

from metronome_client import Delta, GenerateOptions, InferenceClient
from support.services import Service, free_port, running_executor, running_scheduler, wait_until

NUM_CLIENTS = 4
NUM_TOKENS = 24


class Load:
    """Clients that ask one question after another, and always the same ones."""

    def __init__(self, addresses: list[str]) -> None:
        self._addresses = addresses
        self._stop = Event()
        self.num_answers = 0

    def ask(self, client: InferenceClient, prompt: str) -> list[int]:
        options = GenerateOptions(max_tokens=NUM_TOKENS, temperature=0, ignore_eos=True)
        return [
            token_id
            for event in client.generate(prompt, options, timeout_s=120)
            if isinstance(event, Delta)
            for token_id in event.token_ids
        ]

    def run(self, number: int) -> set[tuple[int, ...]]:
        """The different answers to one prompt, asked for over and over."""
        answers = set()
        with InferenceClient(self._addresses) as client:
            while not self._stop.is_set():
                answers.add(tuple(self.ask(client, f"the question of client {number}")))
                self.num_answers += 1
        return answers

    @contextmanager
    def running(self) -> Iterator[list[Future[set[tuple[int, ...]]]]]:
        """The load goes on meanwhile; afterwards each client has its answers."""
        with ThreadPoolExecutor(NUM_CLIENTS) as pool:
            clients = [pool.submit(self.run, number) for number in range(NUM_CLIENTS)]
            try:
                self.wait_for_more()
                yield clients
            finally:
                self._stop.set()

    def wait_for_more(self) -> None:
        before = self.num_answers
        wait_until(lambda: self.num_answers >= before + 2 * NUM_CLIENTS, 120)


def restart_each(services: list[Service], start: Callable[[int], Service], load: Load) -> None:
    """One after another: stop it in order, start it anew at the same address, go on when it is well."""
    for number, service in enumerate(services):
        service.send(signal.SIGTERM)
        load.wait_for_more()
        assert service.wait() == 0
        start(number)
        load.wait_for_more()


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def assert_all_is_well(clients: list[Future[set[tuple[int, ...]]]]) -> None:
    """No client raised, and to each its question always had the same whole answer."""
    for client in clients:
        (answer,) = client.result()
        assert len(answer) == NUM_TOKENS


def test_schedulers_are_restarted_without_a_failed_request(
    stack: ExitStack, services_directory: Path, tiny_model_directory: Path
) -> None:
    ports = [free_port(), free_port()]

    def start(number: int) -> Service:
        return stack.enter_context(running_scheduler(services_directory, port=ports[number]))

    schedulers = [start(0), start(1)]
    executor = stack.enter_context(
        running_executor(
            services_directory,
            tiny_model_directory,
            *("--num-blocks", "256"),
            scheduler=[scheduler.address for scheduler in schedulers],
        )
    )
    load = Load([executor.address])
    with load.running() as clients:
        restart_each(schedulers, start, load)
    assert_all_is_well(clients)


def test_executors_are_restarted_without_a_failed_request(
    stack: ExitStack, services_directory: Path, tiny_model_directory: Path, scheduler: Service
) -> None:
    ports = [free_port(), free_port()]

    def start(number: int) -> Service:
        arguments = ("--num-blocks", "256", "--port", ports[number], "--grace-s", "60")
        return stack.enter_context(
            running_executor(services_directory, tiny_model_directory, *arguments, scheduler=[scheduler.address])
        )

    executors = [start(0), start(1)]
    load = Load([executor.address for executor in executors])
    with load.running() as clients:
        restart_each(executors, start, load)
    assert_all_is_well(clients)
