"""Several observers of one engine."""

from __future__ import annotations

from executor_service.engine.apply import PlanRefusedError
from executor_service.engine.planner import PlanUnavailableError
from executor_service.engine.record import Ending, Measures, Observer, PassRecord


class Observers:
    """Tells each of them what the engine tells."""

    def __init__(self, *observers: Observer) -> None:
        self._observers = observers

    def pass_done(self, record: PassRecord, measures: Measures) -> None:
        for observer in self._observers:
            observer.pass_done(record, measures)

    def request_ended(self, ending: Ending) -> None:
        for observer in self._observers:
            observer.request_ended(ending)

    def plan_refused(self, iteration: int, refusal: PlanRefusedError) -> None:
        for observer in self._observers:
            observer.plan_refused(iteration, refusal)

    def plan_unavailable(self, iteration: int, failure: PlanUnavailableError) -> None:
        for observer in self._observers:
            observer.plan_unavailable(iteration, failure)

    def copies_failed(self, request_ids: list[int], error: Exception) -> None:
        for observer in self._observers:
            observer.copies_failed(request_ids, error)

    def requests_failed(self, request_ids: list[int], error: Exception) -> None:
        for observer in self._observers:
            observer.requests_failed(request_ids, error)

    def books_wrong(self, error: Exception) -> None:
        for observer in self._observers:
            observer.books_wrong(error)
