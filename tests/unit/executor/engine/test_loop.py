"""The whole loop, on a thread: it serves, rests, refuses and closes."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import pytest

from executor_service.engine.inbox import EngineClosedError, QueueFullError
from executor_service.engine.plan import Plan
from executor_service.engine.planner import PlanUnavailableError
from executor_service.engine.request import EndCause
from executor_service.engine.snapshot import Snapshot
from support.engine import EngineUnderTest, Spelling, engine_on_tokens, limits_of
from support.planners import RECOMPUTE, LocalPlanner
from support.three_requests import NEW, PROMPT_OF, assert_served, submit_all
from support.token_runner import true_tokens


def started(served: EngineUnderTest) -> threading.Thread:
    thread = threading.Thread(target=served.engine.run)
    thread.start()
    return thread


def test_the_loop_serves_rests_serves_again_and_stops() -> None:
    served = engine_on_tokens(limits_of())
    thread = started(served)
    for _ in range(2):
        done = threading.Event()
        served.submit(PROMPT_OF[1], NEW, detokenizer=Announcing(done, after=NEW))
        assert done.wait(timeout=30)
    served.engine.inbox.close()
    thread.join(timeout=30)
    assert not thread.is_alive()
    assert served.is_empty
    assert served.tokens(1) == served.tokens(2) == true_tokens(PROMPT_OF[1], NEW)
    with pytest.raises(EngineClosedError):
        served.submit([1], 1)


def test_closing_ends_what_is_left() -> None:
    def never(snapshot: Snapshot, plan: Plan) -> Plan:
        raise PlanUnavailableError("nobody")

    served = engine_on_tokens(limits_of(), planner=LocalPlanner(RECOMPUTE, never))
    thread = started(served)
    submit_all(served)
    served.engine.inbox.close()
    thread.join(timeout=30)
    assert not thread.is_alive()
    assert [served.end(request_id).cause for request_id in PROMPT_OF] == [EndCause.SHUT_DOWN] * 3
    assert served.is_empty


def test_a_full_queue_refuses_and_keeps_no_trace() -> None:
    served = engine_on_tokens(limits_of(max_num_seqs=1, max_num_waiting=1))
    served.submit(PROMPT_OF[1], NEW)
    served.step()
    served.submit(PROMPT_OF[2], NEW)
    with pytest.raises(QueueFullError):
        served.submit(PROMPT_OF[3], NEW)
    served.run()
    assert_served(served, 1, 2)
    assert 3 not in served.events
    assert served.engine.counters.num_accepted == 2
    served.submit(PROMPT_OF[1], NEW)
    served.run()
    assert served.tokens(4) == true_tokens(PROMPT_OF[1], NEW)


class Announcing(Spelling):
    """Tells when it has seen so many tokens."""

    def __init__(self, done: threading.Event, after: int) -> None:
        super().__init__()
        self._done, self._left = done, after

    def push(self, token_ids: Sequence[int]) -> str:
        self._left -= len(token_ids)
        if self._left == 0:
            self._done.set()
        return super().push(token_ids)
