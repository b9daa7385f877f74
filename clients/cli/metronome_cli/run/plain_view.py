"""The board as lines, for a pipe or a log: one for each pass, one for each answer that ends, one where plans fail."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console

from metronome.executor.v1 import executor_pb2
from metronome_cli.notices import planning_failure_in_words
from metronome_cli.run.board import Board
from metronome_cli.run.progress import Phase, RequestProgress
from metronome_cli.run.tables import LEFT_ALIGNED, PASS_HEADINGS, answer_facts, pass_cells

_WIDTHS = (5, 9, 6, 4, 4, 4, 9, 16, 7, 5)
_BAR_WIDTH = 16
_HEADING_EVERY = 40
PLANNING_AGAIN = "a scheduler gives plans again"


class PlainView:
    """Prints lines as things happen."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._num_lines = 0
        self._planning_failure = ""

    def refresh(self, board: Board) -> None:
        """Print why there are no plans, where that is new; other lines come when something happens."""
        if board.planning_failure != self._planning_failure:
            self._planning_failure = board.planning_failure
            self._print(f"  {planning_failure_in_words(board.planning_failure) or PLANNING_AGAIN}")

    def passes_done(self, board: Board, passes: Sequence[executor_pb2.Pass]) -> None:
        """Print a line a pass."""
        for pass_ in passes:
            if self._num_lines % _HEADING_EVERY == 0:
                self._print(_aligned(PASS_HEADINGS))
            self._num_lines += 1
            self._print(_aligned(pass_cells(pass_, board.num_blocks, _BAR_WIDTH)))

    def request_done(self, board: Board, progress: RequestProgress) -> None:
        """Print what the request took; the answers stand in full at the end."""
        mark = "done" if progress.phase is Phase.DONE else "FAILED"
        self._print(f"  {mark} {progress.request.name}: {answer_facts(progress)}")

    def _print(self, line: str) -> None:
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)


def _aligned(cells: Sequence[str]) -> str:
    """Right-align the figures; the bar and the plan's source stand left."""
    return "  ".join(
        cell.ljust(width) if heading in LEFT_ALIGNED else cell.rjust(width)
        for cell, width, heading in zip(cells, _WIDTHS, PASS_HEADINGS, strict=True)
    )
