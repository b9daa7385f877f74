"""`metronome timeline`: what each request did, pass by pass, as a trace for Perfetto."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing, suppress
from itertools import chain
from pathlib import Path

import click

from metronome.executor.v1 import executor_pb2
from metronome_cli.bars import counted
from metronome_cli.errors import CommandError, executor_errors
from metronome_cli.options import POSITIVE, executor_option
from metronome_cli.recordings import read_recordings
from metronome_cli.timeline.from_recording import spans_of_recording
from metronome_cli.timeline.from_watch import spans_of_watch
from metronome_cli.timeline.spans import Span
from metronome_cli.timeline.trace import Summary, write_trace
from metronome_cli.trust import Trust, trust_options
from metronome_client import InferenceClient


@click.command()
@click.argument("files", metavar="[FILE...]", nargs=-1, type=click.Path(path_type=Path))
@executor_option
@trust_options
@click.option("--seconds", type=POSITIVE, default=10, show_default=True, help="Without files: how long to watch.")
@click.option("-o", "--output", type=click.Path(path_type=Path), default="trace.json", show_default=True)
def timeline(files: tuple[Path, ...], executor: str, trust: Trust, seconds: int, output: Path) -> None:
    """Write what every request did, pass by pass, as a trace.

    From recordings, or without FILEs from a live executor, for --seconds or until Ctrl-C. https://ui.perfetto.dev opens
    the trace: a track for the passes, one for each request, counters for the batch and the blocks.
    """
    if files:
        summary = _write(output, spans_of_recording(item.record for item in read_recordings(files)))
    else:
        with executor_errors(executor), InferenceClient(executor, tls=trust.tls, token=trust.token) as client:
            summary = _write(output, spans_of_watch(_watched(client, seconds)))
    click.echo(
        f"{output}: {counted(summary.num_passes, 'iteration')} of "
        f"{counted(len(summary.executors), 'executor')}, {counted(len(summary.requests), 'request')}; "
        "open it in https://ui.perfetto.dev"
    )


def _write(output: Path, spans: Iterator[Span]) -> Summary:
    """Write what there is; where there is nothing, no file."""
    first = next(spans, None)
    if first is None:
        raise CommandError("no pass was to be seen", "send requests meanwhile, or name other recordings")
    try:
        with output.open("w", encoding="utf-8") as file:
            return write_trace(chain([first], spans), file)
    except OSError as error:
        raise CommandError(f"cannot write {output}: {error.strerror}", "name another file with -o") from None


def _watched(client: InferenceClient, seconds: float) -> Iterator[executor_pb2.WatchStateResponse]:
    """What the executor tells for so long, or until Ctrl-C. An idle one tells something every few seconds."""
    end = time.monotonic() + seconds
    with closing(client.watch_state()) as changes, suppress(KeyboardInterrupt):
        for change in changes:
            yield change
            if time.monotonic() >= end:
                return
