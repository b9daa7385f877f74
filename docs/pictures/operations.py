"""Draws the pictures of docs/operations.md from a real run of the local stack: `metronome top`, and a timeline.

Sends what `metronome run` sends, to an executor with a cache too small for all of it. `make pictures-live` runs it.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

from matplotlib import pyplot as plt
from rich.console import Console

from drawing import BLUE, GREEN, GREY, ORANGE, PINK, save, use_style
from metronome.executor.v1 import executor_pb2
from metronome_cli.run.workload import WorkloadRequest, build_workload, load_prompts
from metronome_cli.stack.local import StackSettings, start_stack
from metronome_cli.stack.services import ExecutorSettings
from metronome_cli.stack.start import Lifetime
from metronome_cli.timeline.from_watch import spans_of_watch
from metronome_cli.timeline.trace import write_trace
from metronome_cli.top.history import History
from metronome_cli.top.screen import draw
from metronome_client import InferenceClient

DIRECTORY = Path(__file__).parents[1] / "images"
PHASE_COLOURS = {"waiting": GREY, "prefill": PINK, "decode": GREEN, "swapped": ORANGE, "stalled": GREY}
TOP_WIDTH, TOP_HEIGHT = 110, 34


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="gemma3-270m")
    parser.add_argument("--profile", default="vllm")
    parser.add_argument("--num-blocks", type=int, default=156)
    args = parser.parse_args()
    os.environ["METRONOME_EXECUTOR_EXECUTOR_ID"] = "executor-1"  # else the picture shows the name of a machine
    executor = ExecutorSettings(model=args.model, num_blocks=args.num_blocks, profile=args.profile)
    with tempfile.TemporaryDirectory() as directory:
        stack = start_stack(
            StackSettings(executor=executor),
            Path(directory),
            Lifetime.WITH_PARENT,
            on_progress=print,
            on_launch=lambda services: None,
        )
        try:
            messages = list(_watched(stack.executor_address, build_workload(load_prompts(None), None, "picture")))
            with InferenceClient(stack.executor_address) as client:
                model = client.model_info()
        finally:
            stack.stop()
    _draw_top(messages, model)
    _draw_timeline(messages)


def _watched(address: str, workload: Sequence[WorkloadRequest]) -> Iterator[executor_pb2.WatchStateResponse]:
    """What an executor tells while it answers all of these at once."""

    def send(client: InferenceClient, request: WorkloadRequest) -> None:
        for _ in client.generate(request.prompt, request.options):
            pass

    with (
        InferenceClient(address) as client,
        ThreadPoolExecutor(len(workload)) as pool,
        closing(client.watch_state()) as changes,
    ):
        yield next(changes)
        for request in workload:
            pool.submit(send, client, request)
        num_finished = 0
        for change in changes:
            yield change
            num_finished += sum(one.num_finished for one in change.passes)
            if num_finished == len(workload):
                return


def _draw_top(messages: Sequence[executor_pb2.WatchStateResponse], model: Any) -> None:
    """As it was after three quarters of the run."""
    history = History()
    for message in messages[: len(messages) * 3 // 4]:
        history.add(message)
    console = Console(record=True, width=TOP_WIDTH, file=io.StringIO(), force_terminal=True, legacy_windows=False)
    console.print(draw(history, model, width=TOP_WIDTH, height=TOP_HEIGHT))
    svg = console.export_svg(title="metronome top", unique_id="metronome-top")
    (DIRECTORY / "top.svg").write_text(svg, encoding="utf-8")


def _draw_timeline(messages: Sequence[executor_pb2.WatchStateResponse]) -> None:
    """The trace that `metronome timeline` writes: tracks of the requests, and under them the counters."""
    file = io.StringIO()
    write_trace(spans_of_watch(messages), file)
    events = json.loads(file.getvalue())["traceEvents"]
    names = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
    tracks = [thread for thread in sorted(names) if names[thread].startswith("request")]
    use_style()
    _, panels = plt.subplots(
        3, 1, figsize=(10, 6), sharex=True, layout="constrained", height_ratios=(len(tracks), 4, 3)
    )
    requests, batch, blocks = panels
    labelled: set[str] = set()
    for event in events:
        if event.get("tid") in tracks and event["ph"] == "X":
            phase = event["cat"]
            requests.barh(
                len(tracks) - tracks.index(event["tid"]),
                max(event["dur"], 1000) / 1e6,
                left=event["ts"] / 1e6,
                height=0.3 if phase == "waiting" else 0.8,
                color=PHASE_COLOURS.get(phase, BLUE),
                edgecolor=PHASE_COLOURS.get(phase, BLUE),
                linewidth=0.5,  # or between two decodes the ground shows through
                label=None if phase in labelled else phase,
            )
            labelled.add(phase)
    requests.set_yticks(range(len(tracks), 0, -1), [_short(names[thread]) for thread in tracks])
    for panel, name, colours in (
        (batch, "batch", {"prefill tokens": PINK, "decode tokens": GREEN}),
        (blocks, "blocks", {"KV cache": BLUE, "swap space": ORANGE}),
    ):
        counts = [event for event in events if event["ph"] == "C" and event["name"] == name]
        times = [event["ts"] / 1e6 for event in counts]
        panel.stackplot(
            times,
            *([event["args"][label] for event in counts] for label in colours),
            colors=colours.values(),
            step="post",
            alpha=0.7,
            linewidth=0,
        )
        panel.set_ylabel(name if name == "blocks" else "tokens")
    blocks.set_xlabel("seconds")
    save(requests, DIRECTORY / "timeline.svg", num_columns=len(PHASE_COLOURS))


def _short(name: str) -> str:
    """`request 3: poem-picture` as `poem`."""
    return name.partition(": ")[2].removesuffix("-picture") or name


if __name__ == "__main__":
    main()
