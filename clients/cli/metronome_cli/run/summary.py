"""The figures at the end of a run. Latencies are measured at the client, as a user would feel them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from metronome.executor.v1 import executor_pb2
from metronome_cli.run.board import Board
from metronome_cli.run.progress import Phase


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """One run. Times in seconds; a latency is None where nothing was measured."""

    num_requests: int
    num_finished: int
    num_prompt_tokens: int
    num_cached_tokens: int
    num_output_tokens: int
    elapsed: float
    ttft_p50: float | None
    ttft_p99: float | None
    itl_p50: float | None
    itl_p99: float | None
    num_iterations: int
    num_chunks: int
    num_draft_tokens: int
    num_accepted_draft_tokens: int
    num_evicted_swap: int
    num_evicted_recompute: int
    num_safe_plans: int
    planning_share: float
    plan_round_trip_p50: float | None

    @property
    def output_tokens_per_second(self) -> float:
        """Tokens of all answers over the time from the first request to the last token."""
        return self.num_output_tokens / self.elapsed if self.elapsed > 0 else 0.0


def percentile(values: Iterable[float], share: float) -> float | None:
    """Give the value that a share (0 to 1) of the values do not exceed, by nearest rank: one that was measured.

    None where there are no values.
    """
    ordered = sorted(values)
    if not ordered:
        return None
    rank = max(1, math.ceil(share * len(ordered)))
    return ordered[rank - 1]


def planning_share(passes: Sequence[executor_pb2.Pass]) -> float:
    """Give the share of the passes' time in which the device waited for a plan, 0 to 1."""
    total_us = sum(pass_.total_us for pass_ in passes)
    return sum(pass_.plan_wait_us for pass_ in passes) / total_us if total_us else 0.0


def summarize(board: Board) -> Summary:
    """Add up a run that has ended."""
    requests, passes = board.requests, board.passes
    first_tokens = [ttft for progress in requests if (ttft := progress.time_to_first_token) is not None]
    gaps = [gap for progress in requests for gap in progress.inter_token_latencies]
    planned = [pass_ for pass_ in passes if pass_.plan_source != executor_pb2.PLAN_SOURCE_SAFE]
    round_trips = [pass_.plan_round_trip_us / 1e6 for pass_ in planned]
    return Summary(
        num_requests=len(requests),
        num_finished=sum(progress.phase is Phase.DONE for progress in requests),
        num_prompt_tokens=sum(progress.num_prompt_tokens for progress in requests),
        num_cached_tokens=sum(progress.usage.num_cached_tokens for progress in requests if progress.usage),
        num_output_tokens=sum(progress.num_output_tokens for progress in requests),
        elapsed=(board.ended_at or board.started_at) - board.started_at,
        ttft_p50=percentile(first_tokens, 0.5),
        ttft_p99=percentile(first_tokens, 0.99),
        itl_p50=percentile(gaps, 0.5),
        itl_p99=percentile(gaps, 0.99),
        num_iterations=len(passes),
        num_chunks=sum(pass_.num_prefill_requests for pass_ in passes),
        num_draft_tokens=sum(pass_.num_draft_tokens for pass_ in passes),
        num_accepted_draft_tokens=sum(pass_.num_accepted_draft_tokens for pass_ in passes),
        num_evicted_swap=sum(pass_.num_evicted_swap for pass_ in passes),
        num_evicted_recompute=sum(pass_.num_evicted_recompute for pass_ in passes),
        num_safe_plans=len(passes) - len(planned),
        planning_share=planning_share(passes),
        plan_round_trip_p50=percentile(round_trips, 0.5),
    )
