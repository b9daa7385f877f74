"""How far a request is, as its client sees it: a value, and the events that turn it into the next one.

    WAITING → PREFILL → DECODE → DONE      and at any point FAILED; from PREFILL and DECODE
                                           also SWAPPED or EVICTED, where an eviction sets it back

The stream of the answer says when the first token came; the executor's books say what happens before it.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, replace

from metronome.scheduler.v1 import state_pb2
from metronome_cli.run.workload import WorkloadRequest
from metronome_client import Delta, Event, Finished, Started, Usage, Waiting


class Phase(enum.Enum):
    """Where a request stands."""

    WAITING = "waiting"
    PREFILL = "prefill"
    DECODE = "decode"
    SWAPPED = "swapped"
    EVICTED = "evicted"
    DONE = "done"
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestProgress:
    """One request. Times are seconds of the monotonic clock; `token_times`: when each delta with tokens arrived.

    `num_tokens_to_compute`: what prefill has to store, which after an eviction is the answer so far too.
    """

    request: WorkloadRequest
    sent_at: float
    phase: Phase = Phase.WAITING
    num_prompt_tokens: int = 0
    num_computed_tokens: int = 0
    num_tokens_to_compute: int = 0
    num_output_tokens: int = 0
    max_tokens: int = 0
    text: str = ""
    token_times: tuple[float, ...] = ()
    usage: Usage | None = None
    error: str = ""

    @property
    def has_ended(self) -> bool:
        """Whether nothing more will come."""
        return self.phase in (Phase.DONE, Phase.FAILED)

    @property
    def time_to_first_token(self) -> float | None:
        """Seconds from sending the request to its first token; None before it."""
        return self.token_times[0] - self.sent_at if self.token_times else None

    @property
    def inter_token_latencies(self) -> tuple[float, ...]:
        """Seconds between tokens, as they arrived."""
        return tuple(later - earlier for earlier, later in zip(self.token_times, self.token_times[1:], strict=False))


def on_event(progress: RequestProgress, event: Event, now: float) -> RequestProgress:
    """Take in one event of the answer, which arrived at `now`."""
    match event:
        case Started():
            return replace(progress, num_prompt_tokens=event.num_prompt_tokens, max_tokens=event.max_tokens)
        case Delta():
            times = (*progress.token_times, now) if event.token_ids else progress.token_times
            return replace(
                progress,
                phase=Phase.DECODE if times else progress.phase,
                num_output_tokens=progress.num_output_tokens + len(event.token_ids),
                text=progress.text + event.text,
                token_times=times,
            )
        case Finished():
            return replace(progress, phase=Phase.DONE, usage=event.usage)
        case Waiting():  # the executor's books say the same for all requests
            return progress


def on_failure(progress: RequestProgress, error: str) -> RequestProgress:
    """Take in that the request failed, and why."""
    return replace(progress, phase=Phase.FAILED, error=error)


def on_row(
    progress: RequestProgress,
    *,
    status: int,
    num_computed_tokens: int,
    num_output_tokens: int,
    num_preemptions: int = 0,
) -> RequestProgress:
    """Take in the request's row of the executor's books, which may be older than the last event."""
    is_older = bool(progress.token_times) and num_output_tokens == 0
    if progress.has_ended or is_older:
        return progress
    num_tokens_to_compute = progress.num_prompt_tokens + max(0, num_output_tokens - 1)
    match status:
        case state_pb2.REQUEST_STATUS_RUNNING:
            phase = Phase.PREFILL if num_computed_tokens < num_tokens_to_compute else Phase.DECODE
        case state_pb2.REQUEST_STATUS_SWAPPED:
            phase = Phase.SWAPPED
        case _:
            phase = Phase.EVICTED if num_preemptions else Phase.WAITING
    return replace(
        progress,
        phase=phase,
        num_computed_tokens=num_computed_tokens,
        num_tokens_to_compute=num_tokens_to_compute,
    )
