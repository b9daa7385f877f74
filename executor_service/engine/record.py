"""What the engine tells of itself: one record a pass, and counters since the start."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Protocol

from executor_service.engine.plan import EvictMode, EvictReason, PlanSource
from executor_service.engine.planner import PlanUnavailableError

if TYPE_CHECKING:  # settings and logs need this module before torch is imported
    from executor_service.engine.apply import PlanRefusedError
    from executor_service.engine.request import Usage


@dataclass(frozen=True, slots=True, kw_only=True)
class PassRecord:
    """One pass; the fields are those of metronome.executor.v1.Pass."""

    iteration: int
    start_time_us: int
    num_prefill_tokens: int
    num_decode_tokens: int
    num_prefill_requests: int
    num_decode_requests: int
    num_running: int
    num_waiting: int
    num_swapped: int
    num_free_blocks: int
    num_free_swap_blocks: int
    num_admitted: int
    num_resumed: int
    num_evicted_swap: int
    num_evicted_recompute: int
    num_rejected: int
    num_finished: int
    plan_source: PlanSource
    plan_wait_us: int
    plan_round_trip_us: int
    build_us: int
    forward_us: int
    emit_us: int
    total_us: int
    predicted_us: int
    num_draft_tokens: int
    num_accepted_draft_tokens: int
    num_kv_tokens: int
    num_chunk_kv_tokens: int
    num_logits_rows: int


@dataclass(slots=True, kw_only=True)
class Counters:
    """Since the start; the fields are those of metronome.executor.v1.Counters."""

    num_iterations: int = 0
    num_accepted: int = 0
    num_finished: int = 0
    num_cancelled: int = 0
    num_expired: int = 0
    num_rejected: int = 0
    num_failed: int = 0
    num_prefill_tokens: int = 0
    num_output_tokens: int = 0
    num_evicted_swap: int = 0
    num_evicted_recompute: int = 0
    num_safe_plans: int = 0
    num_refused_plans: int = 0
    num_plan_failures: int = 0
    num_swap_failures: int = 0
    num_prefix_query_tokens: int = 0
    num_prefix_hit_tokens: int = 0
    num_draft_tokens: int = 0
    num_accepted_draft_tokens: int = 0

    def copy(self) -> Counters:
        return replace(self)


@dataclass(slots=True, kw_only=True)
class Measures:
    """What happened between the end of the pass before and that of this one, beside what the contract's Pass tells.

    Lists have an entry for each request that it happened to, in microseconds.
    """

    queue_times_us: list[int] = field(default_factory=list)  # arrival to first run
    first_token_times_us: list[int] = field(default_factory=list)  # arrival to first token
    token_gaps_us: list[int] = field(default_factory=list)  # a token to the next
    evictions: Counter[tuple[EvictMode, EvictReason]] = field(default_factory=Counter)
    num_recomputed_tokens: int = 0  # of the prefill tokens: their KV was there before, and lost
    sample_us: int = 0  # of the pass's forward_us


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """How a request ended: ``reason`` is the name of a FinishReason or of an EndCause.

    ``request_id``: what the client calls it. ``iteration``: the one that it ended in.
    """

    request_id: str
    iteration: int
    tenant: str
    reason: str
    is_answered: bool
    usage: Usage
    prefill_time_us: int  # first run to first token; 0: there was none
    decode_time_us: int  # first token to the end


class Observer(Protocol):
    """Hears what happens, on the engine's thread; must be quick and must not raise."""

    def pass_done(self, record: PassRecord, measures: Measures) -> None: ...

    def request_ended(self, ending: Ending) -> None: ...

    def plan_refused(self, iteration: int, refusal: PlanRefusedError) -> None: ...

    def plan_unavailable(self, iteration: int, failure: PlanUnavailableError) -> None: ...

    def copies_failed(self, iteration: int, request_ids: list[str], error: Exception) -> None: ...

    def requests_failed(self, iteration: int, request_ids: list[str], error: Exception) -> None: ...

    def books_wrong(self, iteration: int, error: Exception) -> None: ...
