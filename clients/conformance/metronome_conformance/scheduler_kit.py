"""Runs the scenarios of a scheduler: states out, plans in, judged by `plan_rules.py`.

Steps:
    call: METHOD    with `request` (JSON of protobuf) or `bytes` (hexadecimal), `expect` (see matching.py)
    pings: {...}    `times` keepalive pings, one each `every_s` seconds, none of which the server takes amiss
    play: {...}     `limits`, `policy`, `requests`: an executor of integers asks for plans until all is done
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from google.protobuf import json_format

from metronome.scheduler.v1 import plan_pb2, policy_pb2, scheduler_pb2, state_pb2
from metronome_conformance.books import Books, row_from
from metronome_conformance.matching import differences
from metronome_conformance.pings import ping_fault
from metronome_conformance.plan_rules import plan_faults
from metronome_conformance.report import Result, Verdict
from metronome_conformance.rows import Row
from metronome_conformance.scenario import Scenario, ScenarioError, expanded
from metronome_conformance.wire import Driver, Json, Outcome, Secured

MAX_PASSES = 2_000
PLAN = "SchedulerService/Plan"
PLAN_STREAM = "SchedulerService/PlanStream"


def run_scheduler_scenarios(
    driver: Driver, scenarios: Sequence[Scenario], secured: Secured | None = None
) -> Iterator[Result]:
    """One result after the other. `secured`: of the connections that are not the driver's."""
    for scenario in scenarios:
        began = time.monotonic()
        findings = tuple(_findings(driver, scenario, secured))
        verdict = Verdict.BROKEN if findings else Verdict.HOLDS
        yield Result(scenario=scenario, verdict=verdict, findings=findings, seconds=time.monotonic() - began)


def _findings(driver: Driver, scenario: Scenario, secured: Secured | None) -> Iterator[str]:
    """Up to the first step that finds something: what comes after it would only follow."""
    answers: dict[str, Mapping[str, Any]] = {}
    for number, step in enumerate(scenario.steps, start=1):
        if "play" in step:
            found = list(_play(driver, expanded(step["play"], {}), step.get("expect", {})))
        elif "call" in step:
            found = list(_call(driver, step, answers))
        elif "pings" in step:
            fault = ping_fault(driver.address, secured, **step["pings"])
            found = [fault] if fault is not None else []
        else:
            raise ScenarioError(f"{scenario.name}: step {number} neither calls, plays nor pings")
        yield from (f"step {number}: {finding}" for finding in found)
        if found:
            return


def _call(driver: Driver, step: Mapping[str, Any], answers: dict[str, Mapping[str, Any]]) -> Iterator[str]:
    method, expected = step["call"], step.get("expect", {})
    request: Any = bytes.fromhex(step["bytes"]) if "bytes" in step else expanded(step.get("request", {}), answers)
    outcome = driver.start(method, request).outcome()
    yield from differences(outcome, expected, answers)
    if outcome.code != "OK" or method not in (PLAN, PLAN_STREAM):
        return
    yield from _plan_findings(request if isinstance(request, list) else [request], outcome, expected)
    answers[step.get("as", "")] = {"plans": outcome.messages}
    if "same_plans_as" in expected and answers[expected["same_plans_as"]]["plans"] != outcome.messages:
        yield f"8: the plans are not those of {expected['same_plans_as']}"


def _plan_findings(requests: Sequence[Json], outcome: Outcome, expected: Mapping[str, Any]) -> Iterator[str]:
    if len(outcome.messages) != len(requests):
        yield f"{len(requests)} requests got {len(outcome.messages)} answers"
        return
    for request, message in zip(requests, outcome.messages, strict=True):
        asked = json_format.ParseDict(request, scheduler_pb2.PlanRequest())
        answer = json_format.ParseDict(message, scheduler_pb2.PlanResponse())
        if len(answer.plans) != len(asked.state.executors):
            yield f"{len(asked.state.executors)} executors got {len(answer.plans)} plans"
            return
        for executor, plan in zip(asked.state.executors, answer.plans, strict=True):
            yield from plan_faults(executor, asked.policy, plan)
            if asked.explain:
                yield from _explanation_faults(executor, plan)
    if "plan" in expected:
        yield from _list_differences(
            json_format.ParseDict(outcome.messages[-1], scheduler_pb2.PlanResponse()), expected
        )


def _explanation_faults(executor: state_pb2.ExecutorState, plan: plan_pb2.ExecutorPlan) -> Iterator[str]:
    if list(plan.explanations.id) != sorted(executor.requests.id):
        yield f"explanations are of {list(plan.explanations.id)}, they must be of every request, ascending"
    elif plan_pb2.REASON_UNSPECIFIED in plan.explanations.reason:
        yield "an explanation gives no reason"


def _list_differences(answer: scheduler_pb2.PlanResponse, expected: Mapping[str, Any]) -> Iterator[str]:
    plan = answer.plans[0]
    found: dict[str, Any] = {
        "scheduled": dict(zip(plan.scheduled.id, plan.scheduled.num_tokens, strict=True)),
        "admit": sorted(plan.admit.id),
        "resume": sorted(plan.resume.id),
        "evict": {id: plan_pb2.EvictMode.Name(m)[11:] for id, m in zip(plan.evict.id, plan.evict.mode, strict=True)},
        "reject": {id: plan_pb2.Reason.Name(r)[7:] for id, r in zip(plan.reject.id, plan.reject.reason, strict=True)},
    }
    for name, value in expected["plan"].items():
        if found[name] != value:
            yield f"{name} is {found[name]}, it must be {value}"


def _play(driver: Driver, content: Mapping[str, Any], expected: Mapping[str, Any]) -> Iterator[str]:
    """Ask for plans, check each, carry them out, until all have ended. `at`: the pass before which a request comes."""
    limits = json_format.ParseDict(content["limits"], state_pb2.ExecutorLimits())
    policy = json_format.ParseDict(content.get("policy", {}), policy_pb2.Policy())
    books = Books(limits, {})
    coming: dict[int, list[Row]] = {}
    for row in content["requests"]:
        columns = {name: value for name, value in row.items() if name != "at"}
        coming.setdefault(row.get("at", 1), []).append(row_from(columns))
    num_passes = 0
    while books.rows or coming:
        for row in coming.pop(books.iteration, ()):
            books.rows[row.id] = row
        request = scheduler_pb2.PlanRequest(state=books.state(), policy=policy)
        as_json = json_format.MessageToDict(request, preserving_proto_field_name=True)
        outcome = driver.start(PLAN, as_json).outcome()
        found = [*differences(outcome, {}, {})] or [*_plan_findings([as_json], outcome, {})]
        if found:
            yield from (f"pass {books.iteration}: {finding}" for finding in found)
            return
        plan = json_format.ParseDict(outcome.messages[0], scheduler_pb2.PlanResponse()).plans[0]
        num_passes += 1
        if not plan.scheduled.id and not plan.reject.id and books.rows and not coming:
            yield f"5: pass {books.iteration} runs nothing, and {sorted(books.rows)} are there"
            return
        books.apply(plan)
        if num_passes > MAX_PASSES:
            yield f"after {MAX_PASSES} passes {sorted(books.rows)} have not ended"
            return
    yield from _play_differences(books, num_passes, expected)


def _play_differences(books: Books, num_passes: int, expected: Mapping[str, Any]) -> Iterator[str]:
    rejected = {id: plan_pb2.Reason.Name(reason)[7:] for id, reason in books.rejected.items()}
    for key, value in expected.items():
        match key:
            case "finished" if sorted(books.finished) != sorted(value):
                yield f"{sorted(books.finished)} finished, it must be {sorted(value)}"
            case "finished_in_order" if books.finished != value:
                yield f"they finished in the order {books.finished}, it must be {value}"
            case "rejected" if rejected != value:
                yield f"rejected are {rejected}, it must be {value}"
            case "never_evicted" if hit := sorted(set(value) & set(books.num_evictions)):
                yield f"{hit[0]} is evicted {books.num_evictions[hit[0]]} times, it must never be"
            case "most_evictions" if (most := max(books.num_evictions.values(), default=0)) > value:
                yield f"a request is evicted {most} times, allowed are {value}"
            case "least_evictions" if (num := sum(books.num_evictions.values())) < value:
                yield f"there were {num} evictions, the case needs {value} to show anything"
            case "most_passes" if num_passes > value:
                yield f"it took {num_passes} passes, allowed are {value}"
            case "tokens":
                for id, due in value.items():
                    ran = [tokens.get(id, 0) for tokens in books.tokens][: len(due)]
                    if ran != due:
                        yield f"{id} ran {ran} tokens in the first passes, it must be {due}"
            case "longest_pause":
                yield from _pauses(books, value)


def _pauses(books: Books, allowed: Mapping[int, int]) -> Iterator[str]:
    """Passes without a token, between the first and the last that a request ran in."""
    for id, most in allowed.items():
        ran = [i for i, tokens in enumerate(books.tokens) if id in tokens]
        longest = max((later - earlier - 1 for earlier, later in itertools.pairwise(ran)), default=0)
        if longest > most:
            yield f"{id} pauses for {longest} passes, allowed are {most}"
