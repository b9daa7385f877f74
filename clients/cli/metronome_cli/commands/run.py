"""`metronome run`: start a stack, send real prompts at once, show each pass, sum up, stop it."""

from __future__ import annotations

import asyncio
import secrets
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import click
from rich.console import Console

from metronome_cli.command_error import CommandError
from metronome_cli.consoles import table_console
from metronome_cli.errors import executor_errors, explain
from metronome_cli.options import ADDRESS, NAME, WholeNumber
from metronome_cli.progress_line import progress_line
from metronome_cli.run.board import Board
from metronome_cli.run.directory import run_directory
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
from metronome_cli.trust import Trust, trust_options

# A cache that the built-in prompts nearly fill (3,072 tokens), so that the blocks are something to watch.
DEFAULT_NUM_BLOCKS = 192
LOG_WIDTH = 110  # columns, where stdout is no terminal that has a width of its own


@click.command()
@click.option("--model", type=NAME, help="Model to run: gemma3-270m, a directory, a GGUF file or a Hugging Face id.")
@click.option(
    "--dtype", type=click.Choice(["auto", "float32", "bfloat16", "float16"]), help="Number type of the model."
)
@click.option("--num-blocks", type=WholeNumber(1), default=DEFAULT_NUM_BLOCKS, show_default=True, help="KV blocks.")
@click.option("--num-swap-blocks", type=WholeNumber(0), help="KV blocks of CPU swap space.")
@click.option("--num-requests", type=WholeNumber(1, 1000), help="Requests to send. Default: each prompt once.")
@click.option("--prompts-dir", type=click.Path(exists=True, file_okay=False, path_type=Path), help="Texts to continue.")
@click.option("--profile", type=NAME, help="Profile that the executor asks the scheduler to plan by.")
@click.option(
    "--executor", metavar="HOST:PORT", type=ADDRESS, help="Use an executor that runs already; nothing is started."
)
@trust_options
@click.option(
    "--scheduler",
    metavar="HOST:PORT",
    type=ADDRESS,
    help="Use a scheduler that runs already; only an executor is started.",
)
def run(
    model: str | None,
    dtype: str | None,
    num_blocks: int,
    num_swap_blocks: int | None,
    num_requests: int | None,
    prompts_dir: Path | None,
    profile: str | None,
    executor: str | None,
    scheduler: str | None,
    trust: Trust,
) -> None:
    """Send real prompts at once and show each iteration.

    Starts a scheduler and an executor, shows the answers as they stream and the batch of every iteration, sums up, and
    stops what it started.
    """
    workload = build_workload(load_prompts(prompts_dir), num_requests, run_id=secrets.token_hex(4))
    console = table_console(LOG_WIDTH)
    settings = StackSettings(
        executor=ExecutorSettings(
            model=model, dtype=dtype, num_blocks=num_blocks, num_swap_blocks=num_swap_blocks, profile=profile
        ),
        scheduler_address=scheduler,
        trust=trust,
    )
    board = None
    try:
        with (
            _terminating_in_order(),
            _executor(executor, settings, console) as (address, log),
            executor_errors(address, log),
        ):
            way = trust.towards(address) if executor is None else trust
            board = _run(address, way, workload, console)
            if board.watch_error is not None and not board.is_finished:
                raise explain(board.watch_error, "executor", address, log=log)  # which keeps the log
    finally:
        if board is not None:
            _report(board, console)
    _check_all_finished(board)


def _run(address: str, trust: Trust, workload: list[WorkloadRequest], console: Console) -> Board:
    if not console.is_terminal:
        return asyncio.run(run_session(address, trust, workload, PlainView(console)))
    with LiveView(console) as view:
        return asyncio.run(run_session(address, trust, workload, view))


def _report(board: Board, console: Console) -> None:
    summary = summarize(board)
    console.print(answers_in_full(board.requests))
    console.print(summary_panel(summary))


def _check_all_finished(board: Board) -> None:
    summary = summarize(board)
    if summary.num_finished < summary.num_requests:
        failed = summary.num_requests - summary.num_finished
        raise CommandError(f"{failed} of {summary.num_requests} requests did not finish")


@contextmanager
def _executor(address: str | None, settings: StackSettings, console: Console) -> Iterator[tuple[str, Path | None]]:
    """Give the address of the executor to use, started where none was named, and stop what was started.

    With it goes the executor's log, where it was started here.
    """
    if address is not None:
        yield address, None
        return
    with run_directory(stack_home().directory) as directory, _started_stack(settings, directory.path, console) as stack:
        yield stack.executor_address, directory.executor_log


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
    """Let SIGTERM, and SIGHUP of a terminal that closes, unwind as Ctrl-C does: what was started is stopped."""

    def unwind(number: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    previous = {number: signal.signal(number, unwind) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
