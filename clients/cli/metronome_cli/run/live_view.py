"""The board in a terminal: the answers as they grow, and under them the latest passes."""

from __future__ import annotations

import time
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from rich import box
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from metronome.executor.v1 import executor_pb2
from metronome_cli.run.board import Board
from metronome_cli.run.progress import Phase, RequestProgress
from metronome_cli.run.tables import LEFT_ALIGNED, PASS_HEADINGS, PHASE_STYLES, pass_cells, pass_styles, text_so_far

_NAME_WIDTH, _PHASE_WIDTH, _FIGURES_WIDTH = 12, 8, 11
_FRAME_WIDTH = 4 + 3 * 2  # borders of the panel and the gaps between the columns
_MIN_PASSES, _MAX_PASSES = 8, 12
_MIN_BAR_WIDTH, _MAX_BAR_WIDTH = 8, 40
_PASS_FIGURES_WIDTH = 70  # all columns of a pass but the bar
_MAX_ANSWER_LINES = 3
_FRAME_HEIGHT = 1 + 2 + 2 + 1  # headline, two borders each, headings of the passes


class LiveView:
    """Redraws in place; gone when left, so that what follows stands where it stood."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live = Live(console=console, auto_refresh=False, transient=True, vertical_overflow="crop")

    def __enter__(self) -> Self:
        self._live.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._live.__exit__(kind, error, traceback)

    def refresh(self, board: Board) -> None:
        """Draw the board at the terminal's present size."""
        width, height = self._console.size
        self._live.update(draw(board, self._console, width=width, height=height - 1), refresh=True)

    def passes_done(self, board: Board, passes: Sequence[executor_pb2.Pass]) -> None:
        """Wait for the next refresh."""

    def request_done(self, board: Board, progress: RequestProgress) -> None:
        """Wait for the next refresh."""


def draw(board: Board, console: Console, *, width: int, height: int) -> RenderableType:
    """Fit the board into a terminal: as many lines an answer as there is room for, and the rest for the passes."""
    num_answers = max(1, len(board.requests))
    room = height - _FRAME_HEIGHT
    lines_per_answer = min(_MAX_ANSWER_LINES, max(1, (room - _MIN_PASSES) // num_answers))
    num_passes = max(1, min(_MAX_PASSES, room - lines_per_answer * num_answers))
    return Group(
        headline(board),
        Panel(_answers(board.requests, console, width, lines_per_answer), title="answers", box=box.ROUNDED, style=""),
        Panel(_passes(board, num_passes, width), title="iterations", box=box.ROUNDED),
    )


def headline(board: Board) -> Text:
    """Say what runs, for how long, and how fast."""
    elapsed = (board.ended_at or time.monotonic()) - board.started_at
    num_output_tokens = sum(progress.num_output_tokens for progress in board.requests)
    num_done = sum(progress.phase is Phase.DONE for progress in board.requests)
    rate = num_output_tokens / elapsed if elapsed > 0 else 0.0
    return Text.assemble(
        (" metronome ", "bold reverse"),
        f" {board.model.model}, {board.model.dtype} on {board.model.device}",
        (
            f"   {num_done}/{len(board.requests)} done   {num_output_tokens:,} tokens   {rate:.1f}/s   {elapsed:.1f} s",
            "dim",
        ),
        no_wrap=True,
        overflow="ellipsis",
    )


def _answers(requests: Sequence[RequestProgress], console: Console, width: int, num_lines: int) -> RenderableType:
    text_width = max(20, width - _NAME_WIDTH - _PHASE_WIDTH - _FIGURES_WIDTH - _FRAME_WIDTH)
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(width=_NAME_WIDTH, no_wrap=True, style="bold")
    table.add_column(width=_PHASE_WIDTH, no_wrap=True)
    table.add_column(width=_FIGURES_WIDTH, no_wrap=True, justify="right", style="dim")
    table.add_column(width=text_width)
    for progress in requests:
        phase = Text(progress.phase.value, style=PHASE_STYLES[progress.phase])
        text = last_lines(text_so_far(progress), console, text_width, num_lines)
        table.add_row(progress.request.name, phase, figures(progress), text)
    return table


def figures(progress: RequestProgress) -> str:
    """Count what the phase counts: prompt tokens computed in prefill, tokens generated from then on."""
    if progress.phase is Phase.FAILED:
        return ""
    if progress.token_times:
        return f"{progress.num_output_tokens}/{progress.max_tokens}"
    if progress.num_prompt_tokens:
        return f"{progress.num_computed_tokens:,}/{progress.num_prompt_tokens:,}"
    return ""


def last_lines(text: Text, console: Console, width: int, num_lines: int) -> Text:
    """Give the end of a text in `num_lines` lines, filled up so that nothing below it moves.

    A single line is cut anywhere, since the end of a wrapped text jumps at each break.
    """
    if num_lines == 1:
        return text[max(0, len(text) - width) :]
    lines = list(text.wrap(console, width))[-num_lines:]
    return Text("\n").join([*lines, *[Text("")] * (num_lines - len(lines))])


def _passes(board: Board, num_passes: int, width: int) -> RenderableType:
    bar_width = max(_MIN_BAR_WIDTH, min(_MAX_BAR_WIDTH, width - _PASS_FIGURES_WIDTH))
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", pad_edge=False)
    for heading in PASS_HEADINGS:
        table.add_column(heading, justify="left" if heading in LEFT_ALIGNED else "right", no_wrap=True)
    latest = board.passes[-num_passes:]
    for pass_ in latest:
        cells = zip(pass_cells(pass_, board.num_blocks, bar_width), pass_styles(pass_), strict=True)
        table.add_row(*(Text(cell, style=style) for cell, style in cells))
    for _ in range(num_passes - len(latest)):
        table.add_row(*[""] * len(PASS_HEADINGS))
    return table
