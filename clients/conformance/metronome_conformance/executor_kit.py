"""Runs the scenarios of an executor: the kit is its client and its scheduler.

Steps, beside those that matching.py judges:
    call: METHOD            `request` or `bytes`, `timeout_s`, `as`, `expect`: from start to end
    open: METHOD, as: x     begin a call, and go on once its first message is there
    end: x                  read the call to its end; `expect`
    fill_queue: METHOD      open as many calls as may wait
    leave: x                leave the call, as a client that goes away
    planner: {...}          what the kit's scheduler does from now on: see planner.py
    until: {...}            wait until the books are so: idle, waiting, running (numbers of requests), bent (plans)
    counters: {...}         how much the executor's counters rose at least, since the scenario began
    health: NAMES           each is SERVING; `serving: false`: none is
    pings: {...}            `times` keepalive pings, one each `every_s` seconds, which the server must not take amiss
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from metronome.executor.v1 import executor_pb2, executor_pb2_grpc
from metronome.inference.v1 import inference_pb2, inference_pb2_grpc
from metronome.scheduler.v1 import state_pb2
from metronome_conformance.matching import differences
from metronome_conformance.pings import ping_fault
from metronome_conformance.planner import Planner
from metronome_conformance.report import Result, Verdict
from metronome_conformance.scenario import Scenario, ScenarioError, expanded
from metronome_conformance.state_rules import obedience_faults, state_faults
from metronome_conformance.wire import DEFAULT_TIMEOUT_S, Call, Driver, Secured, answer_facts, open_channel

WAIT_S = 20.0
MAX_TRIES = 3
_DISTURBANCES = ("num_safe_plans", "num_refused_plans", "num_plan_failures")
_STATUSES = {"waiting": state_pb2.REQUEST_STATUS_WAITING, "running": state_pb2.REQUEST_STATUS_RUNNING}


class UnreadyError(Exception):
    """The executor does not answer, or does not ask the kit for plans."""


class ExecutorUnderTest:
    """What the kit itself asks the executor: its books and health; and whether it answers pings."""

    def __init__(self, address: str, secured: Secured | None = None) -> None:
        self._address, self._secured = address, secured
        self._channel = open_channel(address, secured)
        self._control = executor_pb2_grpc.ExecutorServiceStub(self._channel)
        self._health = health_pb2_grpc.HealthStub(self._channel)
        self._inference = inference_pb2_grpc.InferenceServiceStub(self._channel)

    def books(self) -> executor_pb2.GetStateResponse:
        """Raises grpc.RpcError."""
        return self._control.GetState(executor_pb2.GetStateRequest(), timeout=DEFAULT_TIMEOUT_S)

    def is_serving(self, service: str) -> bool:
        """Raises grpc.RpcError."""
        request = health_pb2.HealthCheckRequest(service=service)
        status = self._health.Check(request, timeout=DEFAULT_TIMEOUT_S).status
        return bool(status == health_pb2.HealthCheckResponse.SERVING)

    def ping_fault(self, *, every_s: float, times: int) -> str | None:
        """What it has against pings, in a sentence; None: nothing."""
        return ping_fault(self._address, self._secured, every_s=every_s, times=times)

    def wait_until_ready(self, planner: Planner, wait_s: float = WAIT_S) -> None:
        """Raises UnreadyError unless it serves, and asks the kit for plans, within that time each."""
        if not _until(lambda: _succeeds(self.books), wait_s):
            raise UnreadyError("the executor does not answer")
        request = inference_pb2.GenerateRequest(text="Hello", stopping=inference_pb2.StoppingCriteria(max_tokens=1))
        call = self._inference.Generate(request, timeout=2 * wait_s)
        asks = _until(lambda: bool(planner.planned), wait_s)
        call.cancel()  # type: ignore[no-untyped-call]
        if not asks:
            raise UnreadyError("the executor does not ask for plans here: start it with this kit as its only scheduler")

    def close(self) -> None:
        """Close the channel."""
        self._channel.close()


def run_executor_scenarios(
    driver: Driver, executor: ExecutorUnderTest, planner: Planner, scenarios: Sequence[Scenario]
) -> Iterator[Result]:
    """One result after the other; an executor that goes away breaks the rest."""
    for scenario in scenarios:
        began = time.monotonic()
        try:
            verdict, findings = _judged(driver, executor, planner, scenario)
        except grpc.RpcError as error:
            verdict, findings = Verdict.BROKEN, (f"its books cannot be had: {error.code().name}",)
        yield Result(scenario=scenario, verdict=verdict, findings=findings, seconds=time.monotonic() - began)


def _judged(
    driver: Driver, executor: ExecutorUnderTest, planner: Planner, scenario: Scenario
) -> tuple[Verdict, tuple[str, ...]]:
    """Tries again where a plan came too late: an executor goes on by itself then, as it must, and shows nothing."""
    missing = _missing(scenario, executor.books().state.executors[0].limits)
    if missing:
        return Verdict.SKIPPED, (f"the executor has no {missing}",)
    findings: tuple[str, ...] = ()
    for _ in range(MAX_TRIES):
        run = _Run(driver, executor, planner)
        findings = tuple(run.findings(scenario))
        planner.forget()
        if not findings or not run.was_disturbed or scenario.destructive:
            break
    return (Verdict.BROKEN if findings else Verdict.HOLDS), findings


def _missing(scenario: Scenario, limits: state_pb2.ExecutorLimits) -> str:
    """What a scenario needs and the executor lacks; empty: nothing."""
    has = {
        "swap space": limits.num_swap_blocks > 0,
        "queue limit up to 64": limits.HasField("max_num_waiting") and limits.max_num_waiting <= 64,
    }
    return next((need for need in scenario.needs if not has[need]), "")


@dataclass(slots=True)
class _Run:
    """One scenario under way."""

    driver: Driver
    executor: ExecutorUnderTest
    planner: Planner
    calls: dict[str, Call] = field(default_factory=dict)
    answers: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    was_disturbed: bool = False

    def findings(self, scenario: Scenario) -> Iterator[str]:
        """Up to the first step that finds something; the executor is idle again afterwards."""
        self.planner.forget()
        before = self.executor.books().counters
        for number, step in enumerate(scenario.steps, start=1):
            found = [f"step {number}: {finding}" for finding in self._step(scenario, step, before)]
            yield from found
            if found:
                break
        for call in self.calls.values():
            call.cancel()
        self.planner.order({})
        if not scenario.destructive:
            after = self.executor.books().counters
            rose = [getattr(after, name) - getattr(before, name) for name in _DISTURBANCES]
            orders = {key for step in scenario.steps for key in step.get("planner", {})}
            self.was_disturbed = any(rose)
            yield from self.planner.faults
            yield from _first(fault for planned in self.planner.planned for fault in state_faults(planned.state))
            if not self.was_disturbed or not orders & {"bend", "mode"}:
                yield from _first(obedience_faults(self.planner.planned))
            if not _until(lambda: self._is_idle()):
                yield "afterwards requests or blocks are left in the executor"

    def _step(self, scenario: Scenario, step: Mapping[str, Any], before: executor_pb2.Counters) -> Iterator[str]:
        match step:
            case {"call": method}:
                call = self._start(method, step)
                yield from self._end(call, step)
            case {"open": method, "as": name}:
                self.calls[name] = self._start(method, step)
                if self.calls[name].next_message() is None:
                    yield from self._end(self.calls.pop(name), step)
            case {"fill_queue": method}:
                most = self.executor.books().state.executors[0].limits.max_num_waiting
                for number in range(most):
                    self.calls[f"queued {number}"] = self._start(method, step)
                    if self.calls[f"queued {number}"].next_message() is None:
                        yield f"{most} may wait, and call {number + 1} was not taken"
            case {"end": name}:
                yield from self._end(self.calls.pop(name), {"as": name, **step})
            case {"leave": name}:
                self.calls.pop(name).cancel()
            case {"planner": orders}:
                self.planner.order(orders)
            case {"until": wanted}:
                yield from self._wait(wanted)
            case {"counters": wanted}:
                yield from self._counter_differences(wanted, before)
            case {"pings": pings}:
                fault = self.executor.ping_fault(**pings)
                yield from () if fault is None else (fault,)
            case {"health": names}:
                due = step.get("serving", True)
                yield from (
                    f"health of {name!r} is {'not ' if due else ''}SERVING"
                    for name in names
                    if self.executor.is_serving(name) != due
                )
            case _:
                raise ScenarioError(f"{scenario.name}: no such step: {step}")

    def _start(self, method: str, step: Mapping[str, Any]) -> Call:
        request: Any = expanded(step.get("request", {}), self.answers)
        if "bytes" in step:
            request = bytes.fromhex(expanded(step["bytes"], self.answers))
        return self.driver.start(method, request, timeout_s=step.get("timeout_s", DEFAULT_TIMEOUT_S))

    def _end(self, call: Call, step: Mapping[str, Any]) -> Iterator[str]:
        outcome = call.outcome()
        self.answers[step.get("as", "")] = answer_facts(outcome)
        yield from differences(outcome, expanded(step.get("expect", {}), self.answers), self.answers)

    def _wait(self, wanted: Mapping[str, Any]) -> Iterator[str]:
        def is_so() -> bool:
            statuses = list(self.executor.books().state.executors[0].requests.status)
            found = {name: statuses.count(status) for name, status in _STATUSES.items()}
            found |= {"bent": self.planner.num_bent, "idle": self._is_idle()}
            return all(found[name] == value for name, value in wanted.items())

        if not _until(is_so):
            yield f"waited in vain for {dict(wanted)}"

    def _is_idle(self) -> bool:
        state = self.executor.books().state.executors[0]
        return state.num_free_blocks == state.limits.num_blocks and not state.requests.id

    def _counter_differences(self, wanted: Mapping[str, int], before: executor_pb2.Counters) -> Iterator[str]:
        """A name may be several, joined by +, whose sum counts."""
        for names, least in wanted.items():

            def rose(names: str = names) -> int:
                now = self.executor.books().counters
                return sum(getattr(now, name) - getattr(before, name) for name in names.split("+"))

            if not _until(lambda least=least, rose=rose: rose() >= least):
                yield f"{names} rose by {rose()}, it must be {least} at least"


def _first(findings: Iterator[str]) -> Iterator[str]:
    """One is enough: the others follow from it as a rule."""
    first = next(findings, None)
    if first is not None:
        yield first


def _until(condition: Any, wait_s: float = WAIT_S) -> bool:
    """Poll until it holds, or the time is over."""
    deadline = time.monotonic() + wait_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def _succeeds(call: Any) -> bool:
    try:
        call()
    except grpc.RpcError:
        return False
    return True
