"""The records of the files that a command names, one after another, with a progress bar over their bytes."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from metronome.scheduler.v1 import record_pb2
from metronome_cli.errors import CommandError
from metronome_client import RecordingError, TruncatedRecordingError, read_recording


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """A record, and where it stands: "recording-000001.pb.gz, record 3"."""

    place: str
    record: record_pb2.PlanRecord


def read_recordings(paths: Sequence[Path]) -> Iterator[Recorded]:
    """Give the records of all files in turn, showing on stderr how far it is.

    Says so on stderr where a file ends too early, and goes on. Raises `CommandError` for a file that cannot be read, is
    no recording, or is damaged.
    """
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        for path in paths:
            yield from _read(path, progress)


def _read(path: Path, progress: Progress) -> Iterator[Recorded]:
    try:
        content = path.read_bytes()  # as it is now: a scheduler that replays may be adding to it
        with progress.wrap_file(io.BytesIO(content), total=len(content), description=path.name) as file:
            for number, record in enumerate(read_recording(file), start=1):
                yield Recorded(place=f"{path.name}, record {number}", record=record)
    except TruncatedRecordingError as error:
        click.echo(f"warning: {path} {error}", err=True)
    except RecordingError as error:
        raise CommandError(f"{path} is {error}", "name files that --record-dir of a service made") from None
    except OSError as error:
        raise CommandError(f"cannot read {path}: {error.strerror}", "name a recording") from None
