"""Commands run between two passes, in order; and only so many requests may wait."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from executor_service.engine.inbox import EngineClosedError, Inbox, QueueFullError


def inbox_of(max_num_waiting: int | None, max_num_seqs: int = 1) -> Inbox:
    return Inbox(max_num_waiting=max_num_waiting, max_num_seqs=max_num_seqs)


def noting(done: list[Any], thing: object) -> Callable[[], None]:
    """A command that leaves a trace."""
    return lambda: done.append(thing)


def test_commands_run_in_order_when_the_engine_says_so() -> None:
    inbox, done = inbox_of(None), list[int]()
    for number in range(3):
        inbox.put(noting(done, number))
    assert done == []
    inbox.run_commands()
    assert done == [0, 1, 2]


def test_case_7_the_fifth_of_four_places_is_refused_and_leaves_no_state() -> None:
    inbox, accepted = inbox_of(4), list[str]()
    inbox.submit(noting(accepted, "A"))
    inbox.run_commands()
    inbox.publish(num_waiting=0, num_requests=1)  # A runs
    for name in "BCDE":
        inbox.submit(noting(accepted, name))
    with pytest.raises(QueueFullError, match="4 requests wait, 4 may") as raised:
        inbox.submit(noting(accepted, "F"))
    assert (raised.value.num_waiting, raised.value.max_num_waiting) == (4, 4)
    inbox.run_commands()
    with pytest.raises(QueueFullError):
        inbox.submit(noting(accepted, "F"))
    inbox.publish(num_waiting=3, num_requests=4)  # A ended, B runs
    inbox.submit(noting(accepted, "G"))
    inbox.run_commands()
    assert accepted == list("ABCDEG")


def test_case_7_requests_that_come_together_are_taken_together_or_not_at_all() -> None:
    inbox, accepted = inbox_of(4), list[str]()
    inbox.submit(noting(accepted, "A"), num_requests=2)
    with pytest.raises(QueueFullError, match=r"2 requests wait, 4 may .*, and 3 are asked for"):
        inbox.submit(noting(accepted, "B"), num_requests=3)
    inbox.submit(noting(accepted, "C"), num_requests=2)
    inbox.run_commands()
    assert accepted == ["A", "C"]
    with pytest.raises(QueueFullError):
        inbox.submit(noting(accepted, "D"))


def test_a_queue_of_no_places_takes_together_what_can_run_at_once() -> None:
    inbox = inbox_of(0, max_num_seqs=3)
    with pytest.raises(QueueFullError):
        inbox.submit(lambda: None, num_requests=4)
    inbox.submit(lambda: None, num_requests=3)
    inbox.run_commands()
    inbox.publish(num_waiting=0, num_requests=3)
    with pytest.raises(QueueFullError):
        inbox.submit(lambda: None)


def test_a_queue_of_no_places_takes_what_what_can_run_at_once() -> None:
    inbox = inbox_of(0, max_num_seqs=2)
    inbox.submit(lambda: None)
    with pytest.raises(QueueFullError):
        inbox.submit(lambda: None)  # the first may still have to wait
    inbox.run_commands()
    inbox.publish(num_waiting=0, num_requests=1)
    inbox.submit(lambda: None)
    inbox.run_commands()
    inbox.publish(num_waiting=0, num_requests=2)
    with pytest.raises(QueueFullError):
        inbox.submit(lambda: None)
    inbox.publish(num_waiting=0, num_requests=1)
    inbox.submit(lambda: None)


def test_without_a_bound_all_may_wait() -> None:
    inbox, accepted = inbox_of(None), list[int]()
    for number in range(1000):
        inbox.submit(noting(accepted, number))
    inbox.run_commands()
    assert len(accepted) == 1000


def test_a_call_gives_its_result_or_its_error() -> None:
    inbox = inbox_of(None)
    result, failure = inbox.call(lambda: 42), inbox.call(lambda: 1 // 0)
    assert not result.done()
    inbox.run_commands()
    assert result.result(timeout=0) == 42
    with pytest.raises(ZeroDivisionError):
        failure.result(timeout=0)


def test_a_call_that_nobody_waits_for_any_more_does_not_run() -> None:
    inbox, done = inbox_of(None), list[int]()
    call = inbox.call(noting(done, 1))
    assert call.cancel()
    inbox.run_commands()
    assert done == []


def test_a_closed_inbox_takes_nothing_and_runs_what_it_has() -> None:
    inbox, done = inbox_of(None), list[int]()
    inbox.submit(noting(done, 1))
    inbox.close()
    assert inbox.closed
    with pytest.raises(EngineClosedError):
        inbox.submit(noting(done, 2))
    with pytest.raises(EngineClosedError):
        inbox.call(noting(done, 3))
    inbox.run_commands()
    assert done == [1]


def test_an_engine_at_rest_wakes_up_for_a_command() -> None:
    inbox, done = inbox_of(None), list[int]()
    engine = threading.Thread(target=lambda: inbox.wait(timeout_s=60))
    engine.start()
    inbox.put(noting(done, 1))
    engine.join(timeout=30)
    assert done == [1]


def test_an_engine_at_rest_wakes_up_when_it_is_closed() -> None:
    inbox = inbox_of(None)
    engine = threading.Thread(target=lambda: inbox.wait(timeout_s=None))
    engine.start()
    inbox.close()
    engine.join(timeout=30)
    assert not engine.is_alive()


def test_rest_ends_after_its_time() -> None:
    inbox_of(None).wait(timeout_s=0.001)
