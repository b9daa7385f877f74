"""The executor that the servicers speak for: a model, its tokenizer, and the engine on its thread."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field

import structlog
import torch

from executor_service.convert.generate import Call, ModelFacts, parse_generate
from executor_service.engine.books import Status
from executor_service.engine.loop import Engine
from executor_service.engine.request import Request
from executor_service.engine.sequence import Detokenizer, Sequence
from executor_service.model.loaded import LoadedModel
from executor_service.parallel.workers import Workers
from executor_service.scheduler_client import SchedulerClient
from executor_service.text.detokenizer import IncrementalDetokenizer, NoDetokenizer
from executor_service.text.stop import StopMatcher
from executor_service.text.tokenizer import Tokenizer
from metronome.inference.v1 import inference_pb2 as pb

log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a request stands in the queue; without one, ``num_ahead`` is 0."""

    num_ahead: int
    planning_failure: str  # what keeps it from its first run besides its turn; empty: nothing, or it ran before


@dataclass(frozen=True, slots=True, kw_only=True)
class Executor:
    executor_id: str
    loaded: LoadedModel
    facts: ModelFacts
    engine: Engine
    planner: SchedulerClient
    workers: Workers  # none, where one process has the whole model
    _ids: itertools.count[int] = field(default_factory=lambda: itertools.count(1))

    @property
    def tokenizer(self) -> Tokenizer:
        return self.facts.tokenizer

    def prepare(self, message: pb.GenerateRequest, *, time_remaining_s: float | None) -> tuple[Call, list[Sequence]]:
        """Check a call, give each of its answers an id, and make what they need. Raises ServiceError.

        Tokenises and compiles: not for the event loop.
        """
        now_us = time.time_ns() // 1000
        deadline_us = 0 if time_remaining_s is None else now_us + int(time_remaining_s * 1e6)
        call = parse_generate(message, self.facts, ids=self._ids, now_us=now_us, deadline_us=deadline_us)
        return call, [self._sequence(request) for request in call.requests]

    def _sequence(self, request: Request) -> Sequence:
        stop_strings = StopMatcher(request.stopping.stop_strings)
        return Sequence(request, detokenizer=self._detokenizer(request), stop_strings=stop_strings)

    def _detokenizer(self, request: Request) -> Detokenizer:
        """Text that is not sent is read only where a stop string may be in it."""
        if request.output.omits_text and not request.stopping.stop_strings:
            return NoDetokenizer()
        return IncrementalDetokenizer(self.tokenizer, request.prompt_token_ids.tolist())

    def place(self, request_id: int) -> Future[Place]:
        """Look, between two passes, who waits and arrived before a request, and whether anyone plans for it."""

        def look() -> Place:
            books = self.engine.books
            (row,) = books.rows_of([request_id])
            if row < 0 or books["status"][row] != Status.WAITING:
                return Place(num_ahead=0, planning_failure="")
            arrived = books["arrival_time_us"]
            never_ran = books["num_preemptions"][row] == 0
            return Place(
                num_ahead=int((arrived[books.rows_with(Status.WAITING)] < arrived[row]).sum()),
                planning_failure=self.engine.planning_failure if never_ran else "",
            )

        return self.engine.inbox.call(look)

    def start(self, on_death: Callable[[], None], *, threads: int) -> threading.Thread:
        """Run the engine on a thread of its own.

        ``on_death`` is called, on any thread, if the loop ends by an error, or if a process with a part of the model is
        lost.
        """

        def run() -> None:
            torch.set_num_threads(threads)  # of the calling thread: OpenMP keeps the number per thread
            try:
                self.engine.run()
            except Exception:
                log.exception("engine_died", executor_id=self.executor_id)
                on_death()

        self.workers.watch(on_death)
        thread = threading.Thread(target=run, name="engine", daemon=True)
        thread.start()
        return thread
