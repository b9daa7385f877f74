"""Observers of an engine: several as one, and one that makes traces."""

from __future__ import annotations

from executor_service.engine.apply import PlanRefusedError
from executor_service.engine.planner import PlanUnavailableError
from executor_service.engine.record import Ending, Measures, Observer, PassRecord
from executor_service.traces import Traces


class IgnoringObserver:
    """Hears nothing: for those that care for some of what is told."""

    def pass_done(self, record: PassRecord, measures: Measures) -> None: ...

    def request_ended(self, ending: Ending) -> None: ...

    def plan_refused(self, iteration: int, refusal: PlanRefusedError) -> None: ...

    def plan_unavailable(self, iteration: int, failure: PlanUnavailableError) -> None: ...

    def copies_failed(self, iteration: int, request_ids: list[str], error: Exception) -> None: ...

    def requests_failed(self, iteration: int, request_ids: list[str], error: Exception) -> None: ...

    def books_wrong(self, iteration: int, error: Exception) -> None: ...


class PassTraces(IgnoringObserver):
    """Makes each pass a span."""

    def __init__(self, traces: Traces, executor_id: str) -> None:
        self._traces = traces
        self._executor_id = executor_id

    def pass_done(self, record: PassRecord, measures: Measures) -> None:
        self._traces.pass_done(self._executor_id, record)


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

    def copies_failed(self, iteration: int, request_ids: list[str], error: Exception) -> None:
        for observer in self._observers:
            observer.copies_failed(iteration, request_ids, error)

    def requests_failed(self, iteration: int, request_ids: list[str], error: Exception) -> None:
        for observer in self._observers:
            observer.requests_failed(iteration, request_ids, error)

    def books_wrong(self, iteration: int, error: Exception) -> None:
        for observer in self._observers:
            observer.books_wrong(iteration, error)
