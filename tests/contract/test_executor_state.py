"""What an executor shows of itself: its books, its passes, its health."""

from __future__ import annotations

import time
from collections.abc import Iterator

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from metronome.executor.v1 import executor_pb2
from metronome.inference.v1 import inference_pb2 as pb
from metronome.scheduler.v1 import state_pb2
from support.services import Service, is_healthy, wait_until
from support.wire import TIMEOUT_SECONDS, Client, greedy

SERVICES = ("metronome.inference.v1.InferenceService", "metronome.executor.v1.ExecutorService")


def watch(client: Client, **options: bool) -> grpc.CallIterator:
    return client.control.WatchState(executor_pb2.WatchStateRequest(**options), timeout=TIMEOUT_SECONDS)


def passes_until(messages: Iterator[executor_pb2.WatchStateResponse], num_finished: int) -> list[executor_pb2.Pass]:
    """The passes up to the one in which so many requests have finished in all."""
    passes: list[executor_pb2.Pass] = []
    while sum(one.num_finished for one in passes) < num_finished:
        passes.extend(next(messages).passes)
    return passes


def test_the_books_of_an_idle_executor_are_empty(client: Client, executor: Service) -> None:
    books = client.books()
    (state,) = books.state.executors
    assert state.executor_id.endswith(f":{executor.port}")
    assert not state.requests.id
    assert not books.request_names
    assert not state.draining
    assert (state.num_free_blocks, state.num_free_swap_blocks) == (16, 8)
    limits = state.limits
    assert (limits.num_blocks, limits.num_swap_blocks, limits.block_size, limits.max_num_seqs) == (16, 8, 16, 8)
    assert (limits.max_model_len, limits.max_num_batched_tokens) == (512, 512)
    assert not limits.HasField("max_num_waiting")
    assert abs(books.state.now_us - time.time() * 1e6) < 60e6


def test_the_books_name_who_is_in_the_executor(client: Client) -> None:
    stream = client.open(greedy("a prompt of twenty-two", 200, request_id="named"))
    next(stream)  # its first token: the prompt is computed
    books = client.books()
    stream.cancel()
    (state,) = books.state.executors
    table = state.requests
    (name,) = books.request_names
    assert name.request_id == "named"
    assert [name.id] == list(table.id)
    assert list(table.status) == [state_pb2.REQUEST_STATUS_RUNNING]
    assert list(table.num_prompt_tokens) == [22]
    assert list(table.max_output_tokens) == [200]
    assert table.num_output_tokens[0] >= 1
    stored = 22 + table.num_output_tokens[0] - 1
    assert list(table.num_computed_tokens) == [stored]
    assert table.num_blocks[0] >= -(-stored // 16)
    assert state.num_free_blocks == 16 - table.num_blocks[0]
    wait_until(client.is_idle)


def test_the_counters_count(client: Client) -> None:
    wait_until(client.is_idle)
    before = client.books().counters
    client.generate(greedy("not seen before: 22 ..", 10))
    stream = client.open(greedy("another", 200))
    stream.cancel()
    wait_until(lambda: client.books().counters.num_cancelled > before.num_cancelled)
    after = client.books().counters
    assert after.num_accepted - before.num_accepted == 2
    assert after.num_finished - before.num_finished == 1
    assert after.num_cancelled - before.num_cancelled == 1
    assert after.num_iterations - before.num_iterations >= 10
    assert after.num_prefill_tokens - before.num_prefill_tokens >= 22
    assert after.num_output_tokens - before.num_output_tokens >= 10
    assert (after.num_failed, after.num_refused_plans) == (before.num_failed, before.num_refused_plans)


def test_a_beginning_that_was_computed_before_is_not_computed_again(client: Client) -> None:
    """A block has 16 tokens, and each letter is one."""
    wait_until(client.is_idle)
    first = client.generate(greedy("sixteen letters. And then some", 4))
    before = client.books().counters
    second = client.generate(greedy("sixteen letters. And others", 4))
    after = client.books().counters
    assert (first.finished.usage.num_cached_tokens, second.finished.usage.num_cached_tokens) == (0, 16)
    assert after.num_prefill_tokens - before.num_prefill_tokens == len(" And others")
    assert after.num_prefix_query_tokens - before.num_prefix_query_tokens == len("sixteen letters. And others")
    assert after.num_prefix_hit_tokens - before.num_prefix_hit_tokens == 16


def test_a_tenant_does_not_find_what_was_computed_for_another(client: Client) -> None:
    def num_cached(tenant: str) -> int:
        request = greedy("a secret of many letters, and the rest", 2)
        request.tenant = tenant
        return client.generate(request).finished.usage.num_cached_tokens

    assert [num_cached(tenant) for tenant in ("a", "b", "a", "b")] == [0, 0, 32, 32]


def test_a_watch_opens_with_the_present_state(client: Client) -> None:
    wait_until(client.is_idle)
    messages = watch(client)
    first = next(messages)
    messages.cancel()
    assert not first.passes
    assert first.state.state.executors[0].num_free_blocks == 16
    assert first.state.counters == client.books().counters


def test_a_watch_has_every_pass_once(client: Client) -> None:
    messages = watch(client)
    next(messages)
    client.generate(greedy("one that nobody sent ..", 30))
    passes = passes_until(messages, 1)
    messages.cancel()
    iterations = [one.iteration for one in passes]
    assert iterations == list(range(iterations[0], iterations[0] + 30))
    assert [one.num_prefill_tokens for one in passes] == [23] + [0] * 29
    assert [one.num_decode_tokens for one in passes] == [0] + [1] * 29
    assert [one.num_prefill_requests + one.num_decode_requests for one in passes] == [1] * 30
    assert [one.num_admitted for one in passes] == [1] + [0] * 29
    assert [one.num_running for one in passes] == [1] * 30
    assert all(one.plan_source != executor_pb2.PLAN_SOURCE_UNSPECIFIED for one in passes)
    assert all(one.total_us >= one.forward_us > 0 for one in passes)


def test_a_slow_reader_gets_fewer_messages_and_every_pass(client: Client) -> None:
    messages = watch(client)
    next(messages)
    for number in range(5):
        client.generate(greedy(f"prompt {number}", 60))
    iterations = [one.iteration for one in passes_until(messages, 5)]
    messages.cancel()
    assert iterations == sorted(set(iterations))
    assert len(iterations) == 5 * 60


def test_an_interval_gathers_passes(client: Client) -> None:
    request = executor_pb2.WatchStateRequest()
    request.min_interval.FromMilliseconds(200)
    messages = client.control.WatchState(request, timeout=TIMEOUT_SECONDS)
    next(messages)
    client.generate(greedy("gathered", 60))
    received: list[executor_pb2.WatchStateResponse] = []
    while sum(one.num_finished for message in received for one in message.passes) < 1:
        received.append(next(messages))
    messages.cancel()
    assert sum(len(message.passes) for message in received) == 60
    assert len(received) < 30


def test_the_table_of_requests_can_be_left_out(client: Client) -> None:
    stream = client.open(greedy("shown or not", 200))
    messages = watch(client, omit_requests=True)
    shown = [next(messages) for _ in range(3)]
    messages.cancel()
    stream.cancel()
    wait_until(client.is_idle)
    assert all(not message.state.request_names for message in shown)
    assert all(not message.state.state.executors[0].HasField("requests") for message in shown)
    assert shown[-1].passes


def test_nothing_of_a_prompt_or_an_answer_is_in_the_log(client: Client, executor: Service) -> None:
    text = client.generate(greedy("a secret of mine", 40, request_id="r")).text
    client.refused(pb.GenerateRequest(text="another secret", stopping=pb.StoppingCriteria(max_tokens=-1)))
    assert "pass_done" in executor.log
    assert "secret" not in executor.log
    assert text[:8] not in executor.log


@pytest.mark.parametrize("name", ["", *SERVICES])
def test_health_is_serving(executor: Service, name: str) -> None:
    assert is_healthy(executor.address, name)


def test_health_of_a_service_that_nobody_knows_is_not_found(client: Client) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        health_pb2_grpc.HealthStub(client.channel).Check(
            health_pb2.HealthCheckRequest(service="x"), timeout=TIMEOUT_SECONDS
        )
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND


def test_reflection_lists_the_services(client: Client) -> None:
    request = reflection_pb2.ServerReflectionRequest(list_services="")
    stub = reflection_pb2_grpc.ServerReflectionStub(client.channel)
    (answer,) = stub.ServerReflectionInfo(iter([request]), timeout=TIMEOUT_SECONDS)
    listed = {service.name for service in answer.list_services_response.service}
    assert {*SERVICES, "grpc.health.v1.Health", "grpc.reflection.v1alpha.ServerReflection"} <= listed
