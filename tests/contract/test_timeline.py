"""`metronome timeline` of a live executor: its trace has what was computed, once, and nothing that overlaps."""

from __future__ import annotations

import json
from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from threading import Event, Thread

import pytest

from metronome.executor.v1 import executor_pb2
from metronome_cli.main import run_command
from metronome_cli.timeline.from_watch import spans_of_watch
from metronome_cli.timeline.spans import PassSpan, Phase, RequestSpan
from support.services import Service, wait_until
from support.wire import TIMEOUT_SECONDS, Client, greedy


def watched(client: Client, requests: dict[str, int]) -> list[executor_pb2.WatchStateResponse]:
    """All that an executor tells while it answers these prompts at once."""
    watch = client.control.WatchState(executor_pb2.WatchStateRequest(), timeout=TIMEOUT_SECONDS)
    messages = [next(watch)]
    senders = [
        Thread(target=client.generate, args=[greedy(prompt, num_tokens, request_id=prompt)])
        for prompt, num_tokens in requests.items()
    ]
    for sender in senders:
        sender.start()
    while sum(one.num_finished for message in messages for one in message.passes) < len(requests):
        messages.append(next(watch))
    watch.cancel()
    for sender in senders:
        sender.join()
    return messages


def test_spans_of_a_live_executor_have_every_token_that_was_computed(client: Client) -> None:
    wait_until(client.is_idle)
    before = client.books().counters
    messages = watched(client, {"a timeline of one": 20, "and one of another": 30})
    after = client.books().counters
    spans = list(spans_of_watch(messages))
    passes = [span for span in spans if isinstance(span, PassSpan)]
    assert len(passes) == after.num_iterations - before.num_iterations
    assert sum(span.num_prefill_tokens for span in passes) == after.num_prefill_tokens - before.num_prefill_tokens
    by_request = defaultdict(list)
    for span in spans:
        if isinstance(span, RequestSpan):
            by_request[span.request_id].append(span)
    tokens = sorted(sum(span.num_tokens for span in of_request) for of_request in by_request.values())
    # Of a request that ends between two looks at the books, passes apart, nobody hears in how many of these it was.
    iterations = [message.state.state.executors[0].iteration for message in messages]
    num_unseen = max(later - earlier for earlier, later in pairwise(iterations)) - 1
    for seen, computed in zip(tokens, (len("a timeline of one") + 19, len("and one of another") + 29), strict=True):
        assert computed - num_unseen <= seen <= computed
    for of_request in by_request.values():
        assert all(first.end_us <= last.start_us for first, last in pairwise(of_request))
        assert next(span.phase for span in of_request if span.num_tokens) is Phase.PREFILL
        assert of_request[-1].phase is Phase.DECODE


def test_the_command_writes_a_trace_of_a_live_executor(
    client: Client, executor: Service, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    done = Event()

    def keep_busy() -> None:
        while not done.is_set():
            client.generate(greedy("busy", 50))

    sender = Thread(target=keep_busy)
    sender.start()
    try:
        file = tmp_path / "live.json"
        assert run_command(["timeline", "--executor", executor.address, "--seconds", "1", "-o", str(file)]) == 0
    finally:
        done.set()
        sender.join()
    events = json.loads(file.read_text())["traceEvents"]
    assert {event["ph"] for event in events} == {"M", "X", "C"}
    assert any(event["name"] == "decode" for event in events)
    assert min(event["ts"] for event in events if "ts" in event) == 0
    assert f"{file}: " in capsys.readouterr().out
