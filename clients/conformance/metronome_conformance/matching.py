"""Compares what came back with what a scenario says must come back; each difference is a sentence.

code: INVALID_ARGUMENT        the status; OK unless said; a list: one of these
reason, domain, message       of the refusal
fields: [a, b]                paths that BadRequest names, all of them
retry: true                   RetryInfo is there with a delay above 0 (false: it is not)
over_quota: [tenant:x]        subjects of QuotaFailure
response: {...}               part of the last message: what is named must be so
answer: {...}                 of a generated answer: text, num_tokens, reason, stop, same_as, starts_as, differs_from
plan: {...}                   of a plan: scheduled, admit, resume, evict, reject
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from metronome_conformance.wire import Outcome, answer_facts, deltas

Answers = Mapping[str, Mapping[str, Any]]


def differences(outcome: Outcome, expected: Mapping[str, Any], answers: Answers) -> Iterator[str]:
    """`answers`: the facts of earlier answers by name."""
    codes = expected.get("code", "OK")
    codes = [codes] if isinstance(codes, str) else codes
    if outcome.code not in codes:
        said = f" ({outcome.refusal.reason or 'no reason'}: {outcome.refusal.message})" if outcome.code != "OK" else ""
        yield f"the status is {outcome.code}{said}, it must be {' or '.join(codes)}"
        return
    yield from _refusal_differences(outcome, expected)
    if "response" in expected:
        last = outcome.messages[-1] if outcome.messages else {}
        yield from part_differences(last, expected["response"], "the answer")
    if "answer" in expected:
        yield from _answer_differences(outcome, expected["answer"], answers)


def part_differences(actual: Any, expected: Any, where: str) -> Iterator[str]:
    """Where `actual` is not what `expected` says of it. A field that is not there has its zero value."""
    if isinstance(expected, dict):
        for key, value in expected.items():
            inner = actual.get(key) if isinstance(actual, Mapping) else None
            yield from part_differences(inner, value, f"{where}.{key}")
    elif isinstance(expected, list) and isinstance(actual, list) and len(actual) == len(expected):
        for i, (one, other) in enumerate(zip(actual, expected, strict=True)):
            yield from part_differences(one, other, f"{where}[{i}]")
    elif not _alike(actual, expected):
        yield f"{where} is {actual!r}, it must be {expected!r}"


def _alike(actual: Any, expected: Any) -> bool:
    """As protobuf's JSON writes things: int64 are strings, zero values are left out."""
    if actual is None:
        return not expected
    if isinstance(expected, float):
        return abs(float(actual) - expected) < 1e-6
    if isinstance(expected, int) and not isinstance(expected, bool) and not isinstance(actual, bool):
        return str(actual) == str(expected) or actual == expected
    return bool(actual == expected)


def _refusal_differences(outcome: Outcome, expected: Mapping[str, Any]) -> Iterator[str]:
    refusal = outcome.refusal
    for name in ("reason", "domain"):
        if name in expected and getattr(refusal, name) != expected[name]:
            yield f"the {name} is {getattr(refusal, name)!r}, it must be {expected[name]!r}"
    for name in ("fields", "over_quota"):
        if name in expected and list(getattr(refusal, name)) != expected[name]:
            yield f"{name} are {list(getattr(refusal, name))}, they must be {expected[name]}"
    yield from part_differences(refusal.metadata, expected.get("metadata", {}), "metadata")
    if "retry" in expected:
        told = refusal.retry_delay_s is not None and refusal.retry_delay_s > 0
        if told != expected["retry"]:
            yield f"RetryInfo is {'there' if told else 'not there'}, and must {'' if expected['retry'] else 'not '}be"


def _answer_differences(outcome: Outcome, expected: Mapping[str, Any], answers: Answers) -> Iterator[str]:
    yield from stream_faults(outcome)
    facts = answer_facts(outcome)
    finished = facts.get("finished", {})
    for key, value in expected.items():
        match key:
            case "text" if facts["text"] != value:
                yield f"the text is {facts['text']!r}, it must be {value!r}"
            case "num_tokens" if len(facts["token_ids"]) != value:
                yield f"{len(facts['token_ids'])} tokens came, {value} were due"
            case "reason" if finished.get("finish_reason") != f"FINISH_REASON_{value}":
                yield f"it ended for {finished.get('finish_reason')}, it must be {value}"
            case "stop" if finished.get("matched_stop", "") != value:
                yield f"the stop that ended it is {finished.get('matched_stop', '')!r}, it must be {value!r}"
            case "same_as" if facts["token_ids"] != answers[value]["token_ids"]:
                yield f"its tokens are not those of {value}: {facts['token_ids']}, {answers[value]['token_ids']}"
            case "starts_as" if not answers[value]["text"].startswith(facts["text"]):
                yield f"its text {facts['text']!r} is not how {value} begins"
            case "started" | "finished":
                yield from part_differences(facts.get(key), value, key)


def stream_faults(outcome: Outcome) -> Iterator[str]:
    """What every stream of `Generate` that ended with OK must be: numbered, `started` first, `finished` last."""
    messages = outcome.messages
    sequence = [int(message.get("sequence", 0)) for message in messages]
    if sequence != list(range(len(messages))):
        yield f"the messages are numbered {sequence}, they must be from 0 without a gap"
    if not messages or "started" not in messages[0]:
        yield "the first message is not `started`"
    if outcome.code != "OK":
        return
    if not messages or "finished" not in messages[-1]:
        yield "the last message is not `finished`"
        return
    starts = sum("started" in message for message in messages)
    ends = sum("finished" in message for message in messages)
    if starts != 1:
        yield f"`started` came {starts} times"
    num_answers = len({delta.get("index", 0) for delta in deltas(messages)}) or 1
    if ends != num_answers:
        yield f"`finished` came {ends} times for {num_answers} answers"
    if num_answers == 1:
        usage = messages[-1]["finished"].get("usage", {})
        # With a stop the tokens of the stop count as generated, and need not be sent.
        num_tokens = sum(len(delta.get("token_ids", ())) for delta in deltas(messages))
        stopped = messages[-1]["finished"].get("finish_reason") == "FINISH_REASON_STOP"
        counted = usage.get("num_output_tokens", 0)
        if counted != num_tokens and not (stopped and counted > num_tokens):
            yield f"usage counts {counted} tokens, {num_tokens} came"
