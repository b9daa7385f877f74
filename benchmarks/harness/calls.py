"""Calls with bytes in and bytes out, so that the time of the client is that of gRPC and no more."""

from __future__ import annotations

import queue
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import cycle, islice

import grpc

PLAN_METHOD = "/metronome.scheduler.v1.SchedulerService/Plan"
PLAN_STREAM_METHOD = "/metronome.scheduler.v1.SchedulerService/PlanStream"

_OPTIONS = (
    ("grpc.max_receive_message_length", 64 * 1024 * 1024),
    ("grpc.max_send_message_length", 64 * 1024 * 1024),
    ("grpc.enable_http_proxy", 0),
    # A connection of its own, even to an address that another channel is connected to.
    ("grpc.use_local_subchannel_pool", 1),
)


class Stream:
    """An open stream of bytes."""

    def __init__(self, channel: grpc.Channel, method: str) -> None:
        self._requests: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._responses = channel.stream_stream(method)(iter(self._requests.get, None))

    def send(self, request: bytes) -> None:
        self._requests.put(request)

    def receive(self) -> bytes:
        return next(self._responses)

    def close(self) -> None:
        """Send no more, and wait for the end. Raises grpc.RpcError where it is not OK."""
        self._requests.put(None)
        for _ in self._responses:
            pass


@contextmanager
def open_channel(address: str) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(address, options=_OPTIONS) as channel:
        yield channel


@contextmanager
def open_stream(address: str, method: str) -> Iterator[Stream]:
    with open_channel(address) as channel:
        stream = Stream(channel, method)
        yield stream
        stream.close()


def stream_seconds(channel: grpc.Channel, requests: Sequence[bytes], count: int, num_in_flight: int) -> float:
    """Seconds for `count` plans on one stream, of these requests in turn."""
    stream = Stream(channel, PLAN_STREAM_METHOD)
    rest = islice(cycle(requests), count)
    started = time.perf_counter()
    for request in islice(rest, num_in_flight):
        stream.send(request)
    for request in rest:
        stream.receive()
        stream.send(request)
    stream.close()  # receives those that are on their way
    return time.perf_counter() - started


def unary_seconds(channel: grpc.Channel, requests: Sequence[bytes], count: int, num_in_flight: int) -> float:
    """The same, a call for each."""
    plan = channel.unary_unary(PLAN_METHOD)
    rest = islice(cycle(requests), count)
    started = time.perf_counter()
    calls = [plan.future(request) for request in islice(rest, num_in_flight)]
    for index, request in enumerate(rest):
        calls[index % num_in_flight].result()
        calls[index % num_in_flight] = plan.future(request)
    for call in calls:
        call.result()
    return time.perf_counter() - started
