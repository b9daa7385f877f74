"""What a timeline consists of, wherever it comes from. Times are Unix times in microseconds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from metronome.scheduler.v1 import state_pb2


class Phase(Enum):
    """What a request does while a pass runs."""

    WAITING = "waiting"
    PREFILL = "prefill"
    DECODE = "decode"
    SWAPPED = "swapped"
    LOADING = "loading"
    STALLED = "stalled"  # it is on the device, and the pass runs without it


@dataclass(frozen=True, slots=True, kw_only=True)
class PassSpan:
    """One pass. `facts` are shown with it."""

    executor_id: str
    iteration: int
    start_us: int
    end_us: int
    num_prefill_tokens: int
    num_decode_tokens: int
    num_used_blocks: int
    num_used_swap_blocks: int
    facts: Mapping[str, int | str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestSpan:
    """What one request did for a while. `num_tokens`: that it ran; 0 where it did not."""

    executor_id: str
    request_id: int
    name: str  # the client's, where it is known
    start_us: int
    end_us: int
    phase: Phase
    num_tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """What happened to a request at a moment: "evicted: blocks ran out"."""

    executor_id: str
    request_id: int
    time_us: int
    text: str


Span = PassSpan | RequestSpan | Mark

_RESTING: Mapping[int, Phase] = {
    state_pb2.REQUEST_STATUS_WAITING: Phase.WAITING,
    state_pb2.REQUEST_STATUS_RUNNING: Phase.STALLED,
    state_pb2.REQUEST_STATUS_SWAPPED: Phase.SWAPPED,
    state_pb2.REQUEST_STATUS_LOADING: Phase.LOADING,
}


def resting_phase(status: int) -> Phase:
    """What a request of this status does in a pass that it is not in."""
    return _RESTING.get(status, Phase.WAITING)  # a status of a later contract: it does not run


def running_phase(*, num_output_tokens: int, num_lacking_tokens: int) -> Phase:
    """What it does in a pass that it is in, by what it has, and lacks, before."""
    return Phase.DECODE if num_output_tokens > 0 and num_lacking_tokens <= 1 else Phase.PREFILL
