"""Leaving, cancelling, and the names of requests: each ends once, gives back all it held, and touches nobody else."""

from __future__ import annotations

import random
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest

from metronome.inference.v1 import inference_pb2 as pb
from metronome_conformance.line import Line
from support.services import executor_command, impatient, started, wait_until, wait_until_healthy
from support.wire import TIMEOUT_SECONDS, Client, connected, details_of, greedy

CONCURRENCY = 8


@pytest.fixture(autouse=True)
def _idle_before_and_after(client: Client):
    wait_until(client.is_idle)
    yield
    wait_until(client.is_idle)


def ending_of(stream: grpc.CallIterator) -> grpc.StatusCode:
    """Read a stream to its end. Returns the status that ended it."""
    try:
        for _ in stream:
            pass
    except grpc.RpcError:
        return stream.code()
    return grpc.StatusCode.OK


def cancel(client: Client, request_id: str) -> None:
    client.inference.Cancel(pb.CancelRequest(request_id=request_id), timeout=TIMEOUT_SECONDS)


def test_a_cancelled_request_ends_with_cancelled(client: Client) -> None:
    stream = client.open(greedy("cancel me", 200, request_id="c"))
    next(stream)
    cancel(client, "c")
    with pytest.raises(grpc.RpcError) as caught:
        list(stream)
    ending = details_of(caught.value)
    assert (ending.code, ending.info.reason) == (grpc.StatusCode.CANCELLED, "CANCELLED")


def test_a_cancelled_request_ends_with_all_its_answers(client: Client) -> None:
    request = greedy("cancel us", 200, request_id="several")
    request.sampling.n = 4
    stream = client.open(request)
    next(stream)
    cancel(client, "several")
    assert ending_of(stream) is grpc.StatusCode.CANCELLED
    wait_until(client.is_idle)


def test_only_a_request_that_is_there_can_be_cancelled(client: Client) -> None:
    client.generate(greedy("has ended", 1, request_id="ended"))
    for name in ("", "nobody", "ended"):
        with pytest.raises(grpc.RpcError) as caught:
            cancel(client, name)
        refusal = details_of(caught.value)
        assert (refusal.code, refusal.info.reason) == (grpc.StatusCode.NOT_FOUND, "UNKNOWN_REQUEST_ID")
        assert refusal.fields == ["request_id"]


def test_clients_that_leave_after_the_first_token_leave_nothing(client: Client) -> None:
    """Case 30: 300 requests, eight at a time."""

    def leave(number: int) -> None:
        stream = client.open(greedy(f"twenty tokens... {number:03d}", 200))
        next(stream)
        stream.cancel()

    before = client.books().counters
    with ThreadPoolExecutor(CONCURRENCY) as pool:
        list(pool.map(leave, range(300)))
    wait_until(client.is_idle)
    after = client.books().counters
    assert after.num_cancelled - before.num_cancelled == 300
    # In the engine a cancel takes effect between two passes. What a client's word takes on its way here is the rest.
    assert after.num_output_tokens - before.num_output_tokens < 300 * 20
    assert len(client.generate(greedy("an ordinary request.", 10)).tokens) == 10


def test_a_cancel_at_the_last_moment_ends_the_call_once(client: Client) -> None:
    """Case 31: 500 repetitions, eight at a time, cancelled within 2 ms of the last token."""
    delays = random.Random(31)
    offsets = [delays.uniform(-0.002, 0.002) for _ in range(500)]

    def race(offset: float) -> grpc.StatusCode:
        stream = client.open(greedy("eight...", 3))
        for _ in range(2):
            next(stream)
        time.sleep(max(0.0, 0.002 + offset))
        stream.cancel()
        return ending_of(stream)

    before = client.books().counters
    with ThreadPoolExecutor(CONCURRENCY) as pool:
        endings = list(pool.map(race, offsets))
    wait_until(client.is_idle)
    after = client.books().counters
    assert set(endings) <= {grpc.StatusCode.OK, grpc.StatusCode.CANCELLED}
    num_ended = after.num_finished - before.num_finished + after.num_cancelled - before.num_cancelled
    assert num_ended == after.num_accepted - before.num_accepted == 500
    assert after.num_failed == before.num_failed


def test_an_id_that_is_taken_is_refused_and_free_again_at_the_end(client: Client) -> None:
    """Case 32, while the first decodes."""
    expected = client.generate(greedy("the first", 40)).tokens
    stream = client.open(greedy("the first", 40, request_id="r1"))
    tokens = list(next(stream).delta.token_ids)
    refusal = client.refused(greedy("the second", 4, request_id="r1"))
    assert (refusal.code, refusal.info.reason) == (grpc.StatusCode.ALREADY_EXISTS, "DUPLICATE_REQUEST_ID")
    assert refusal.fields == ["request_id"]
    tokens += [token_id for response in stream for token_id in response.delta.token_ids]
    assert tokens == expected
    assert len(client.generate(greedy("the third", 4, request_id="r1")).tokens) == 4


def once_the_name_is_free(client: Client, request: pb.GenerateRequest) -> list[int]:
    """The tokens of a request that is refused as long as another has its name, and for no other reason."""
    while True:
        stream = client.inference.Generate(request, timeout=TIMEOUT_SECONDS)
        tokens = []
        try:
            for response in stream:
                tokens.extend(response.delta.token_ids)
        except grpc.RpcError as error:
            if details_of(error).info.reason != "DUPLICATE_REQUEST_ID":
                raise
        else:
            return tokens


@pytest.mark.parametrize("way", ["leaves", "cancels"])
def test_a_late_cancel_never_meets_the_next_request_of_that_name(client: Client, way: str) -> None:
    """Case 33: the next one is refused until the first is gone, and then it completes."""
    num_completed = 0
    for number in range(100):
        first = client.open(greedy(f"first {number}", 100, request_id="again"))
        next(first)
        if way == "leaves":
            first.cancel()
        else:
            cancel(client, "again")
        num_completed += len(once_the_name_is_free(client, greedy(f"second {number}", 2, request_id="again"))) == 2
    assert num_completed == 100


def test_who_leaves_holds_no_handler(client: Client) -> None:
    """Case 43: four leave after the first message, a fifth is served at once."""
    streams = [client.open(greedy(f"leaving {number}", 200)) for number in range(4)]
    for stream in streams:
        stream.cancel()
    assert len(client.generate(greedy("the fifth", 5)).tokens) == 5
    wait_until(lambda: not client.executor().requests.id)


def test_a_client_that_vanishes_with_its_connection_leaves_nothing(client: Client, executor) -> None:
    with connected(executor.address) as other:
        for number in range(4):
            next(other.open(greedy(f"vanishing {number}", 200)))
    wait_until(client.is_idle)


def test_a_client_that_vanishes_without_a_word_is_asked_whether_it_is_there(
    services_directory: Path, tiny_model_directory: Path
) -> None:
    """A cable that is pulled, or a NAT that forgot: nothing ends the connection, and its requests may wait for ever."""
    command = executor_command(tiny_model_directory, program=impatient("executor"))
    with started(services_directory, command) as executor:
        wait_until_healthy(executor)
        line = Line(int(executor.port))
        with connected(f"127.0.0.1:{line.port}") as vanishing, connected(executor.address) as other:
            stream = vanishing.open(greedy("waits for a scheduler", 9), timeout=600)
            time.sleep(1)  # longer than two pings and their answers: who is there stays
            assert not other.is_idle()
            line.vanish()
            wait_until(other.is_idle)
            line.close()
            stream.cancel()
