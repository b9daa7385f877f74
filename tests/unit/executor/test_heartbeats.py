"""When a silent stream gets a heartbeat, and what it says: at every interval, and at once where planning fails."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from concurrent.futures import Future
from typing import Any

import pytest

from executor_service import servicer
from executor_service.convert.answers import EachAsItComes
from executor_service.engine.inbox import EngineClosedError
from executor_service.engine.request import FinishedEvent, FinishReason, Usage
from executor_service.executor import Place
from executor_service.gate import Gate
from executor_service.streams import Stream
from executor_service.traces import Traces

DOWN = "no scheduler answers: 127.0.0.1:1: UNAVAILABLE: Connection refused (111)"
END = FinishedEvent(
    request_id=1,
    finish_reason=FinishReason.STOP,
    matched_stop="",
    usage=Usage(
        num_prompt_tokens=1,
        num_output_tokens=1,
        num_cached_tokens=0,
        num_preemptions=0,
        queue_time_us=0,
        time_to_first_token_us=0,
        total_time_us=0,
    ),
)


class Queue:
    """An executor in which a request stands at one place after another, and then ends."""

    def __init__(self, stream: Stream, places: Iterable[Place | None]) -> None:
        self._stream = stream
        self._places = list(places)

    def place(self, request_id: int) -> Future[Place]:
        place = self._places.pop(0)
        if not self._places:
            self._stream.events.put_nowait(END)
        if place is None:
            raise EngineClosedError
        future: Future[Place] = Future()
        future.set_result(place)
        return future


def heartbeats(monkeypatch: pytest.MonkeyPatch, *places: Place | None, interval_s: float) -> list[tuple[int, str]]:
    """(num_ahead, detail) of each heartbeat, when every look finds the next of these places."""
    monkeypatch.setattr(servicer, "LOOK_INTERVAL_S", 0.001)
    monkeypatch.setattr(servicer, "HEARTBEAT_INTERVAL_S", interval_s)

    async def listen() -> list[tuple[int, str]]:
        stream = Stream(request_ids=(1,), name="x", tenant="")
        gate = Gate(max_num_calls=None, quota_file=None)
        queue: Any = Queue(stream, places)
        with Traces().call(()) as trace:
            responses = servicer._responses(queue, stream, EachAsItComes((1,)), gate, trace, with_text=True)
            heard = [response async for response in responses]
        assert heard.pop().HasField("finished")
        return [(response.heartbeat.num_ahead, response.heartbeat.detail) for response in heard]

    return asyncio.run(listen())


def at(num_ahead: int, planning_failure: str = "") -> Place:
    return Place(num_ahead=num_ahead, planning_failure=planning_failure)


def test_that_planning_fails_is_told_at_the_first_look_and_not_at_every_one(monkeypatch: pytest.MonkeyPatch) -> None:
    assert heartbeats(monkeypatch, at(2, DOWN), at(2, DOWN), at(2, DOWN), interval_s=600) == [(2, DOWN)]


def test_an_outage_in_the_midst_of_waiting_is_told_and_so_is_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    places = [at(3), at(3), at(3, DOWN), at(3, DOWN), at(3), at(2)]
    assert heartbeats(monkeypatch, *places, interval_s=600) == [(3, DOWN), (3, "")]


def test_while_it_stands_every_heartbeat_tells_it(monkeypatch: pytest.MonkeyPatch) -> None:
    assert heartbeats(monkeypatch, at(1), at(1, DOWN), at(0, DOWN), interval_s=0) == [(1, ""), (1, DOWN), (0, DOWN)]


def test_an_engine_that_has_stopped_is_no_failure_of_the_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    assert heartbeats(monkeypatch, at(1), None, interval_s=600) == []


def test_a_failure_is_told_after_3_seconds_and_again_every_15() -> None:
    assert (servicer.LOOK_INTERVAL_S, servicer.HEARTBEAT_INTERVAL_S) == (3.0, 15.0)
