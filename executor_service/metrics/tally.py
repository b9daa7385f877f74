"""What an executor has counted and timed since it started: an observer of the engine.

All is added up on the engine's thread, once a pass and once a request; another thread reads. A reader may see a pass
half added, and sees it whole the next time.
"""

from __future__ import annotations

from collections import Counter

from executor_service.engine.apply import PlanRefusedError, RefusalReason
from executor_service.engine.plan import EvictMode, EvictReason, PlanSource
from executor_service.engine.planner import FailureCause, PlanUnavailableError
from executor_service.engine.record import Ending, Measures, PassRecord
from executor_service.engine.request import EndCause, FinishReason
from executor_service.errors import Reason
from executor_service.metrics import buckets
from executor_service.metrics.histogram import Histogram
from executor_service.metrics.tenants import TenantLabels
from executor_service.observers import IgnoringObserver

PARTS = ("plan", "wait_for_plan", "build", "forward", "sample", "stream")
PHASES = ("prefill", "decode", "recomputed")
REASONS = tuple(reason.name for reason in (*FinishReason, *EndCause))
CALL_REASONS = tuple(name.removeprefix("ERROR_REASON_") for name in Reason.keys()[1:])  # the first is for none
_US = 1e-6


class Tally(IgnoringObserver):
    def __init__(self, tenants: TenantLabels) -> None:
        self.tenants = tenants
        self.iteration_time = Histogram(buckets.PASS_SECONDS)
        self.part_times = {part: Histogram(buckets.PASS_SECONDS) for part in PARTS}
        self.iteration_tokens = Histogram(buckets.PASS_TOKENS)
        self.first_token_time = Histogram(buckets.FIRST_TOKEN_SECONDS)
        self.token_gap = Histogram(buckets.TOKEN_GAP_SECONDS)
        self.queue_time = Histogram(buckets.REQUEST_SECONDS)
        self.prefill_time = Histogram(buckets.REQUEST_SECONDS)
        self.decode_time = Histogram(buckets.REQUEST_SECONDS)
        self.request_time = Histogram(buckets.REQUEST_SECONDS)
        self.prompt_tokens = Histogram(buckets.TOKENS)
        self.output_tokens = Histogram(buckets.TOKENS)
        self.preemptions = Histogram(buckets.PREEMPTIONS)
        self.predicted_us = 0
        self.predicted_passes_us = 0  # what the passes with a prediction took
        # Each label from the start, so that a rate has a zero to start from.
        self.tokens: Counter[str] = Counter(dict.fromkeys(PHASES, 0))
        self.plans: Counter[str] = Counter(dict.fromkeys((source.name for source in PlanSource), 0))
        self.plans_refused: Counter[str] = Counter(dict.fromkeys((reason.value for reason in RefusalReason), 0))
        self.plan_failures: Counter[str] = Counter(dict.fromkeys((cause.name for cause in FailureCause), 0))
        self.evictions: Counter[tuple[str, str]] = Counter(
            {(mode.name, reason.name): 0 for mode in EvictMode for reason in EvictReason}
        )
        self.requests_ended: Counter[str] = Counter(dict.fromkeys(REASONS, 0))
        self.requests_refused: Counter[str] = Counter(dict.fromkeys(CALL_REASONS, 0))
        self.tenant_requests: Counter[str] = Counter()
        self.tenant_prompt_tokens: Counter[str] = Counter()
        self.tenant_output_tokens: Counter[str] = Counter()
        self.tenant_queue_us: Counter[str] = Counter()
        self.num_book_errors = 0

    def request_refused(self, reason: str) -> None:
        """Called on the event loop, of calls that never reach the engine or end without an answer."""
        self.requests_refused[reason] += 1

    # What the engine tells

    def pass_done(self, record: PassRecord, measures: Measures) -> None:
        self.iteration_time.add(record.total_us * _US)
        parts_us = {
            "plan": record.plan_round_trip_us,
            "wait_for_plan": record.plan_wait_us,
            "build": record.build_us,
            "forward": record.forward_us - measures.sample_us,
            "sample": measures.sample_us,
            "stream": record.emit_us,
        }
        for part, time_us in parts_us.items():
            self.part_times[part].add(time_us * _US)
        self.iteration_tokens.add(record.num_prefill_tokens + record.num_decode_tokens)
        self.tokens["prefill"] += record.num_prefill_tokens - measures.num_recomputed_tokens
        self.tokens["recomputed"] += measures.num_recomputed_tokens
        self.tokens["decode"] += record.num_decode_tokens
        self.plans[record.plan_source.name] += 1
        if record.predicted_us:
            self.predicted_us += record.predicted_us
            self.predicted_passes_us += record.total_us - record.plan_wait_us
        self.queue_time.add_all(time_us * _US for time_us in measures.queue_times_us)
        self.first_token_time.add_all(time_us * _US for time_us in measures.first_token_times_us)
        self.token_gap.add_all(time_us * _US for time_us in measures.token_gaps_us)
        for (mode, reason), count in measures.evictions.items():
            self.evictions[mode.name, reason.name] += count

    def request_ended(self, ending: Ending) -> None:
        usage, tenant = ending.usage, self.tenants.of(ending.tenant)
        self.requests_ended[ending.reason] += 1
        self.tenant_requests[tenant] += 1
        self.tenant_prompt_tokens[tenant] += usage.num_prompt_tokens if usage.num_output_tokens else 0
        self.tenant_output_tokens[tenant] += usage.num_output_tokens
        self.tenant_queue_us[tenant] += usage.queue_time_us
        if not ending.is_answered:
            return
        self.request_time.add(usage.total_time_us * _US)
        self.prefill_time.add(ending.prefill_time_us * _US)
        self.decode_time.add(ending.decode_time_us * _US)
        self.prompt_tokens.add(usage.num_prompt_tokens)
        self.output_tokens.add(usage.num_output_tokens)
        self.preemptions.add(usage.num_preemptions)

    def plan_refused(self, iteration: int, refusal: PlanRefusedError) -> None:
        self.plans_refused[refusal.reason.value] += 1

    def plan_unavailable(self, iteration: int, failure: PlanUnavailableError) -> None:
        self.plan_failures[failure.cause.name] += 1

    def books_wrong(self, iteration: int, error: Exception) -> None:
        self.num_book_errors += 1
