"""`metronome top`: a live view of an executor."""

from __future__ import annotations

import asyncio
import os
import sys
import termios
import tty
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import aclosing, contextmanager, suppress

import click
from rich.console import Console
from rich.live import Live

from metronome.executor.v1 import executor_pb2
from metronome.inference.v1 import inference_pb2
from metronome_cli.consoles import table_console
from metronome_cli.errors import executor_errors
from metronome_cli.options import executor_option
from metronome_cli.top.history import History
from metronome_cli.top.screen import draw
from metronome_cli.trust import Trust, trust_options
from metronome_client import AsyncInferenceClient

INTERVAL_S = 0.25
_SNAPSHOT_WIDTH, _SNAPSHOT_HEIGHT = 100, 40


@click.command()
@executor_option
@trust_options
@click.option("--once", is_flag=True, help="Print what there is to see and end, as where stdout is no terminal.")
def top(executor: str, trust: Trust, once: bool) -> None:
    """Show an executor live: its batch pass by pass, its blocks, its requests. `q` or Ctrl-C ends it."""
    console = table_console()
    with executor_errors(executor), suppress(KeyboardInterrupt):
        asyncio.run(_top(executor, trust, console, is_live=console.is_terminal and not once))


async def _top(address: str, trust: Trust, console: Console, *, is_live: bool) -> None:
    async with AsyncInferenceClient(address, tls=trust.tls, token=trust.token) as client:
        model = await client.model_info()
        async with aclosing(client.watch_state(min_interval_s=INTERVAL_S)) as changes:
            if is_live:
                await _show(changes, model, console)
            else:
                history = await _glance(changes)
                console.print(draw(history, model, width=_SNAPSHOT_WIDTH, height=_SNAPSHOT_HEIGHT))


async def _glance(changes: AsyncIterator[executor_pb2.WatchStateResponse]) -> History:
    """The books; and the passes of a moment, where somebody is there for whom passes run."""
    history = History()
    async for change in changes:
        history.add(change)
        if history.passes or not history.executor.requests.id:
            break
    return history


async def _show(
    changes: AsyncIterator[executor_pb2.WatchStateResponse],
    model: inference_pb2.GetModelInfoResponse,
    console: Console,
) -> None:
    """Draw until the executor goes or `q` is pressed."""
    history = History()

    async def follow(live: Live) -> None:
        async for change in changes:
            history.add(change)
            width, height = console.size
            live.update(draw(history, model, width=width, height=height), refresh=True)

    with Live(console=console, auto_refresh=False, screen=True, vertical_overflow="crop") as live:
        following = asyncio.ensure_future(follow(live))
        with _keys(lambda key: key in ("q", "Q") and following.cancel()), suppress(asyncio.CancelledError):
            await following


@contextmanager
def _keys(pressed: Callable[[str], object]) -> Iterator[None]:
    """Hear keys as they are pressed, where stdin is a terminal."""
    if not sys.stdin.isatty():
        yield
        return
    loop, descriptor = asyncio.get_running_loop(), sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    tty.setcbreak(descriptor)  # Ctrl-C stays what it is
    loop.add_reader(descriptor, lambda: pressed(os.read(descriptor, 1).decode(errors="replace")))
    try:
        yield
    finally:
        loop.remove_reader(descriptor)
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)
