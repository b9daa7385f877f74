"""Runs the scenarios of a client: the kit is the servers, and a driver in the client's language makes the calls.

The settings of the client are the scenario's `client`: `retry` (max_attempts, initial_backoff_s, max_backoff_s),
`timeout_s`, `tls` (true: it trusts the kit's authority), `token`, `addresses` (instead of those of the servers).

Steps:
    use: VERB               `with`: its arguments; `leave_after`: the messages after which to leave it; `expect`;
                            `within_s`: how long it may take before it is taken to hang, 10 unless said;
                            `until_heard: true`: made again until a server has heard it, for calls that may meet the
                            end of a connection that their client has not noticed yet
    client: {...}           make the client anew, with other settings; `expect: {refused: true}`: it must not be made
    health: NOT_SERVING     what server `of` (0 unless said) says of itself from now on
    calls: [1, 0]           how many calls each server has had since the scenario began; a list for one: any of these
    left: 1                 how many silent calls of server 0 were left by their client

`expect` of a verb:
    error: QueueFullError   the class of the error, or a list of those that are right; not there: there must be none
    is_a: UnavailableError  a class that it is one of, too
    code, reason, domain, message, metadata, fields, over_quota
    retry_delay_s: 0.01     what RetryInfo says; null: there is none
    events: [started, ...]  the kinds of the messages that came before the end; a list of lists: any of these
    text: one two           that of the deltas
    result: ...             what a verb that answers once gives
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

from metronome_conformance.certificates import NoCertificatesError, certificates
from metronome_conformance.driver import DriverError, ProcessCall, ProcessDriver
from metronome_conformance.fault_server import FaultServer
from metronome_conformance.matching import part_differences
from metronome_conformance.report import Result, Verdict
from metronome_conformance.scenario import Scenario, ScenarioError, expanded
from metronome_conformance.wire import Json

# No step takes so long: a call that has not ended then hangs.
HANG_S = 10.0
WAIT_S = 10.0
_AGAIN_S = 0.02


def run_client_scenarios(driver: ProcessDriver, scenarios: Sequence[Scenario]) -> Iterator[Result]:
    """One result after the other."""
    for scenario in scenarios:
        began = time.monotonic()
        try:
            with ExitStack() as stack:
                servers = [FaultServer(expanded(spec, {})) for spec in scenario.servers]
                for server in servers:
                    stack.callback(server.close)
                findings = tuple(_Run(driver, servers).findings(scenario))
            verdict = Verdict.BROKEN if findings else Verdict.HOLDS
        except NoCertificatesError as error:
            verdict, findings = Verdict.SKIPPED, (str(error),)
        yield Result(scenario=scenario, verdict=verdict, findings=findings, seconds=time.monotonic() - began)


class _Run:
    """One scenario under way."""

    def __init__(self, driver: ProcessDriver, servers: Sequence[FaultServer]) -> None:
        self._driver, self._servers = driver, servers

    def findings(self, scenario: Scenario) -> Iterator[str]:
        """Up to the first step that finds something."""
        settings = {"addresses": [server.address for server in self._servers], **scenario.client}
        steps = scenario.steps
        if "client" not in steps[0]:
            steps = ({"client": {}}, *steps)
        for number, step in enumerate(steps, start=1 - (len(steps) - len(scenario.steps))):
            try:
                found = [f"step {number}: {finding}" for finding in self._step(scenario, settings, step)]
            except DriverError as error:
                found = [f"step {number}: {error}"]
            yield from found
            if found:
                return

    def _step(self, scenario: Scenario, settings: Json, step: Mapping[str, Any]) -> Iterator[str]:
        match step:
            case {"client": changes}:
                yield from self._make(_written({**settings, **changes}), step.get("expect", {}))
            case {"use": verb}:
                order = {"use": verb, "with": expanded(step.get("with", {}), {})}
                order |= {"leave_after": step["leave_after"]} if "leave_after" in step else {}
                yield from _differences(self._use(order, step), step.get("expect", {}))
            case {"health": status}:
                self._servers[step.get("of", 0)].say(status)
            case {"calls": wanted}:
                found = [len(server.calls) for server in self._servers]
                if not all(
                    n in due if isinstance(due, list) else n == due for n, due in zip(found, wanted, strict=True)
                ):
                    yield f"the servers had {found} calls, it must be {wanted}"
            case {"left": wanted}:
                if not self._waits_for(lambda: self._servers[0].num_left == wanted):
                    yield f"{self._servers[0].num_left} calls were left, it must be {wanted}"
            case _:
                raise ScenarioError(f"{scenario.name}: no such step: {step}")

    def _use(self, order: Json, step: Mapping[str, Any]) -> ProcessCall:
        heard_before, deadline = self._num_calls(), time.monotonic() + WAIT_S
        while True:
            call = self._driver.ask(order, timeout_s=step.get("within_s", HANG_S))
            is_unheard = _end(call)["code"] == "UNAVAILABLE" and self._num_calls() == heard_before
            if not (is_unheard and step.get("until_heard")) or time.monotonic() > deadline:
                return call
            time.sleep(_AGAIN_S)

    def _num_calls(self) -> int:
        return sum(len(server.calls) for server in self._servers)

    def _make(self, settings: Json, expected: Mapping[str, Any]) -> Iterator[str]:
        end = _end(self._driver.ask({"client": settings}, timeout_s=HANG_S))
        is_refused = end["code"] == "REFUSED"
        if is_refused != expected.get("refused", False):
            yield f"the client was {'refused' if is_refused else 'made'}: {end.get('message', '')}"

    def _waits_for(self, condition: Any) -> bool:
        deadline = time.monotonic() + WAIT_S
        while not condition():
            if time.monotonic() > deadline:
                return False
            time.sleep(0.01)
        return True


def _written(settings: Json) -> Json:
    """Settings as a driver takes them."""
    tls = settings.get("tls")
    return settings if tls is None else settings | {"tls": {"root_certificates": certificates().root}}


def _end(call: ProcessCall) -> Json:
    while call.next_message() is not None:
        pass
    assert call.end is not None
    return call.end


def _differences(call: ProcessCall, expected: Mapping[str, Any]) -> Iterator[str]:
    end = _end(call)
    error, due = end.get("error", ""), expected.get("error", "")
    if error not in (due if isinstance(due, list) else [due]):
        said = (
            f"{error} ({end.get('code')}, {end.get('reason') or 'no reason'}: {end.get('message')})"
            if error
            else "none"
        )
        yield f"the error is {said}, it must be {due or 'none'}"
        return
    messages = call.messages
    for key, value in expected.items():
        match key:
            case "error":
                pass
            case "is_a" if value not in end.get("classes", ()):
                yield f"{error} is no {value}"
            case "retry_delay_s" if not _is_close(end.get("retry_delay_s"), value):
                yield f"the time to come again is {end.get('retry_delay_s')}, it must be {value}"
            case "events":
                kinds = [message.get("kind") for message in messages]
                if kinds not in (value if value and isinstance(value[0], list) else [value]):
                    yield f"the events are {kinds}, they must be {value}"
            case "text" if (text := "".join(message.get("text", "") for message in messages)) != value:
                yield f"the text is {text!r}, it must be {value!r}"
            case "result":
                yield from part_differences(messages[-1].get("result") if messages else None, value, "the result")
            case "code" | "reason" | "domain" | "message" | "metadata" | "fields" | "over_quota":
                yield from part_differences(end.get(key), value, key)
            case "is_a" | "retry_delay_s" | "text":
                pass
            case _:
                raise ScenarioError(f"no such expectation: {key}")


def _is_close(told: float | None, due: float | None) -> bool:
    return told is due if told is None or due is None else abs(told - due) < 1e-3
