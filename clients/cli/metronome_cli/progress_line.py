"""What goes on while something starts: a spinner with the latest message in a terminal, a line a message elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.markup import escape


@contextmanager
def progress_line(console: Console) -> Iterator[Callable[[str], None]]:
    """Give the function that shows a message. What was shown before stays above, with the time that it took."""
    if console.is_terminal:
        with _spinner(console) as show:
            yield show
    else:
        yield lambda message: console.print(f"==> {message}", markup=False)


@contextmanager
def _spinner(console: Console) -> Iterator[Callable[[str], None]]:
    message, since = "", time.monotonic()

    def close_message() -> None:
        if message:
            console.print(f"[green]✓[/] {escape(message)} [dim]{time.monotonic() - since:.1f} s[/]")

    def show(next_message: str) -> None:
        nonlocal message, since
        close_message()
        message, since = next_message, time.monotonic()
        spinner.update(escape(message))

    with console.status("") as spinner:
        yield show
        close_message()
