"""All that there is to see of a run. The session writes it, a view draws it; both live on one event loop."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from metronome.executor.v1 import executor_pb2
from metronome.inference.v1 import inference_pb2
from metronome_cli.run.progress import Phase, RequestProgress
from metronome_client import MetronomeError


@dataclass(slots=True, kw_only=True)
class Board:
    """The requests in the order of the workload, the passes in the order of their iterations.

    Times are seconds of the monotonic clock; `ended_at` is that of the last answer's end. `planning_failure`: why no
    scheduler gives plans, or empty. `watch_error`: what ended the watch of the books before its time.
    """

    model: inference_pb2.GetModelInfoResponse
    started_at: float
    num_blocks: int = 0
    ended_at: float | None = None
    requests: list[RequestProgress] = field(default_factory=list)
    passes: list[executor_pb2.Pass] = field(default_factory=list)
    planning_failure: str = ""
    watch_error: MetronomeError | None = None

    @property
    def is_finished(self) -> bool:
        """Whether every request got its whole answer."""
        return all(progress.phase is Phase.DONE for progress in self.requests)


class View(Protocol):
    """Shows a board while it changes."""

    def refresh(self, board: Board) -> None:
        """Draw the board; called several times a second."""

    def passes_done(self, board: Board, passes: Sequence[executor_pb2.Pass]) -> None:
        """Take note of new passes; the board has them already."""

    def request_done(self, board: Board, progress: RequestProgress) -> None:
        """Take note of a request that ended; the board has it already."""
