"""`metronome run`: start a stack, send real prompts at once, show each pass, sum up, stop it."""

from __future__ import annotations

import asyncio
import secrets
import shutil
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import mkdtemp
from types import FrameType

import click
from rich.console import Console

from metronome_cli.errors import CommandError, executor_errors
from metronome_cli.progress_line import progress_line
from metronome_cli.run.board import Board
from metronome_cli.run.live_view import LiveView
from metronome_cli.run.plain_view import PlainView
from metronome_cli.run.session import run_session
from metronome_cli.run.summary import summarize
from metronome_cli.run.tables import answers_in_full, summary_panel
from metronome_cli.run.workload import WorkloadRequest, build_workload, load_prompts
from metronome_cli.stack.home import stack_home
from metronome_cli.stack.local import Stack, StackSettings, start_stack
from metronome_cli.stack.services import ExecutorSettings
from metronome_cli.stack.start import Lifetime

# A cache that the built-in prompts nearly fill (3,072 tokens), so that the blocks are something to watch.
DEFAULT_NUM_BLOCKS = 192
LOG_WIDTH = 110  # columns, where stdout is no terminal that has a width of its own
EXIT_TERMINATED = 128 + signal.SIGTERM


@click.command()
@click.option("--model", help="Model to run: gemma3-270m, a directory, a GGUF file or a Hugging Face id.")
@click.option(
    "--dtype", type=click.Choice(["auto", "float32", "bfloat16", "float16"]), help="Number type of the model."
)
@click.option("--num-blocks", type=click.IntRange(1), default=DEFAULT_NUM_BLOCKS, show_default=True, help="KV blocks.")
@click.option("--num-swap-blocks", type=click.IntRange(0), help="KV blocks of CPU swap space.")
@click.option("--num-requests", type=click.IntRange(1, 1000), help="Requests to send. Default: each prompt once.")
@click.option("--prompts-dir", type=click.Path(exists=True, file_okay=False, path_type=Path), help="Texts to continue.")
@click.option("--executor", metavar="HOST:PORT", help="Use an executor that runs already; nothing is started.")
@click.option(
    "--scheduler", metavar="HOST:PORT", help="Use a scheduler that runs already; only an executor is started."
)
def run(
    model: str | None,
    dtype: str | None,
    num_blocks: int,
    num_swap_blocks: int | None,
    num_requests: int | None,
    prompts_dir: Path | None,
    executor: str | None,
    scheduler: str | None,
) -> None:
    """Send real prompts at once and show each iteration.

    Starts a scheduler and an executor, shows the answers as they stream and the batch of every iteration, sums up, and
    stops what it started.
    """
    workload = build_workload(load_prompts(prompts_dir), num_requests, run_id=secrets.token_hex(4))
    console = Console(highlight=False, width=None if sys.stdout.isatty() else LOG_WIDTH)
    settings = StackSettings(
        executor=ExecutorSettings(model=model, dtype=dtype, num_blocks=num_blocks, num_swap_blocks=num_swap_blocks),
        scheduler_address=scheduler,
    )
    with _terminating_in_order(), _executor(executor, settings, console) as address, executor_errors(address):
        board = _run(address, workload, console)
    _report(board, console)


def _run(address: str, workload: list[WorkloadRequest], console: Console) -> Board:
    if not console.is_terminal:
        return asyncio.run(run_session(address, workload, PlainView(console)))
    with LiveView(console) as view:
        return asyncio.run(run_session(address, workload, view))


def _report(board: Board, console: Console) -> None:
    summary = summarize(board)
    console.print(answers_in_full(board.requests))
    console.print(summary_panel(summary))
    if summary.num_finished < summary.num_requests:
        failed = summary.num_requests - summary.num_finished
        raise CommandError(f"{failed} of {summary.num_requests} requests did not finish")


@contextmanager
def _executor(address: str | None, settings: StackSettings, console: Console) -> Iterator[str]:
    """Give the address of the executor to use, started where none was named, and stop what was started."""
    if address is not None:
        yield address
        return
    home = stack_home().directory
    home.mkdir(parents=True, exist_ok=True)
    directory = Path(mkdtemp(prefix="run-", dir=home))
    try:
        with _started_stack(settings, directory, console) as stack:
            yield stack.executor_address
    except CommandError:
        raise  # the logs in the directory say more about it
    except BaseException:
        shutil.rmtree(directory, ignore_errors=True)
        raise
    shutil.rmtree(directory, ignore_errors=True)


@contextmanager
def _started_stack(settings: StackSettings, directory: Path, console: Console) -> Iterator[Stack]:
    with progress_line(console) as show:
        stack = start_stack(
            settings, directory, Lifetime.WITH_PARENT, on_progress=show, on_launch=lambda services: None
        )
    try:
        yield stack
    finally:
        with progress_line(console) as show:
            show("stopping")
            stack.stop()


@contextmanager
def _terminating_in_order() -> Iterator[None]:
    """Let SIGTERM unwind as Ctrl-C does, so that what was started is stopped."""

    def unwind(number: int, frame: FrameType | None) -> None:
        raise SystemExit(EXIT_TERMINATED)

    previous = signal.signal(signal.SIGTERM, unwind)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)
