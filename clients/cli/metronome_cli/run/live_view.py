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
from metronome_cli.bars import counted
from metronome_cli.notices import planning_failure_in_words
from metronome_cli.run.board import Board
from metronome_cli.run.progress import Phase, RequestProgress
from metronome_cli.run.tables import (
    BAR_HEADING,
    LEFT_ALIGNED,
    PASS_HEADINGS,
    PHASE_STYLES,
    pass_cells,
    pass_styles,
    text_so_far,
)

_NAME_WIDTH, _PHASE_WIDTH, _FIGURES_WIDTH = 12, 8, 15
_FRAME_WIDTH = 4 + 3 * 2  # borders of the panel and the gaps between the columns
_FEWEST_PASSES, _MIN_PASSES, _MAX_PASSES = 3, 8, 12  # beside one line an answer, beside more, in any case
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
    """Fit the board into a terminal: as many lines an answer as there is room for, and the rest for the passes.

    Where there is no room for all answers, those that go on are shown, and a few passes.
    """
    banner = planning_banner(board)
    room = height - _FRAME_HEIGHT - len(banner)
    answers = _fitting(board.requests, max(1, room - _FEWEST_PASSES))
    num_answers = max(1, len(answers))
    lines_per_answer = min(_MAX_ANSWER_LINES, max(1, (room - _MIN_PASSES) // num_answers))
    num_passes = max(1, min(_MAX_PASSES, room - lines_per_answer * num_answers))
    return Group(
        headline(board),
        *banner,
        Panel(_answers(answers, console, width, lines_per_answer), title="answers", box=box.ROUNDED, style=""),
        Panel(_passes(board, num_passes, width), title="iterations", box=box.ROUNDED),
    )


def planning_banner(board: Board) -> list[Text]:
    """Say in one line why there are no plans; nothing where there are."""
    failure = planning_failure_in_words(board.planning_failure)
    return [Text(f" {failure}", style="bold yellow", no_wrap=True, overflow="ellipsis")] if failure else []


def _fitting(requests: Sequence[RequestProgress], num_lines: int) -> list[RequestProgress]:
    """Choose the requests to show, in their own order: all where they fit, else those that go on before others."""
    by_interest = sorted(range(len(requests)), key=lambda index: (requests[index].has_ended, index))
    return [requests[index] for index in sorted(by_interest[:num_lines])]


def headline(board: Board) -> Text:
    """Say what runs, for how long, and how fast."""
    elapsed = (board.ended_at or time.monotonic()) - board.started_at
    num_output_tokens = sum(progress.num_output_tokens for progress in board.requests)
    num_done = sum(progress.phase is Phase.DONE for progress in board.requests)
    tokens = counted(num_output_tokens, "token")
    rate = num_output_tokens / elapsed if elapsed > 0 else 0.0
    return Text.assemble(
        (" metronome ", "bold reverse"),
        f" {board.model.model}, {board.model.dtype} on {board.model.device}",
        (f"   {num_done}/{len(board.requests)} done   {tokens}   {rate:.1f}/s   {elapsed:.1f} s", "dim"),
        no_wrap=True,
        overflow="ellipsis",
    )


def _answers(requests: Sequence[RequestProgress], console: Console, width: int, num_lines: int) -> RenderableType:
    text_width = max(1, width - _NAME_WIDTH - _PHASE_WIDTH - _FIGURES_WIDTH - _FRAME_WIDTH)
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(width=_NAME_WIDTH, no_wrap=True, style="bold")
    table.add_column(width=_PHASE_WIDTH, no_wrap=True)
    table.add_column(width=_FIGURES_WIDTH, no_wrap=True, justify="right", style="dim")
    table.add_column(width=text_width, no_wrap=num_lines == 1)
    for progress in requests:
        phase = Text(progress.phase.value, style=PHASE_STYLES[progress.phase])
        text = last_lines(text_so_far(progress), console, text_width, num_lines)
        table.add_row(progress.request.name, phase, figures(progress), text)
    return table


def figures(progress: RequestProgress) -> str:
    """Count what the phase counts: tokens computed ("in") until prefill is over, tokens generated ("out") from then on.

    After an eviction by recompute that is the prompt and the answer so far, anew.
    """
    if progress.phase is Phase.FAILED:
        return ""
    if progress.token_times and progress.phase is not Phase.PREFILL:
        return f"{progress.num_output_tokens}/{progress.max_tokens} out"
    if num_tokens := progress.num_tokens_to_compute or progress.num_prompt_tokens:
        return f"{progress.num_computed_tokens:,}/{num_tokens:,} in"
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
    """Draw the latest passes; where the bar of the blocks has no room, without it and closer together."""
    bar_width = min(_MAX_BAR_WIDTH, width - _PASS_FIGURES_WIDTH)
    has_bar = bar_width >= _MIN_BAR_WIDTH
    columns = [column for column, heading in enumerate(PASS_HEADINGS) if has_bar or heading != BAR_HEADING]
    table = Table(box=None, padding=(0, 2 if has_bar else 1, 0, 0), header_style="dim", pad_edge=False)
    for heading in (PASS_HEADINGS[column] for column in columns):
        table.add_column(heading, justify="left" if heading in LEFT_ALIGNED else "right", no_wrap=True)
    latest = board.passes[-num_passes:]
    for pass_ in latest:
        cells, styles = pass_cells(pass_, board.num_blocks, max(0, bar_width)), pass_styles(pass_)
        table.add_row(*(Text(cells[column], style=styles[column]) for column in columns))
    for _ in range(num_passes - len(latest)):
        table.add_row(*[""] * len(columns))
    return table
