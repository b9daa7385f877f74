"""Every metric of an executor: its name, its help, and where its value comes from. docs/operations.md has the table.

Names are those of vLLM behind another prefix where the thing is the same, so that whoever knows them knows these.
Called by the metrics endpoint, on its threads, when somebody asks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from executor_service.engine.books import Status
from executor_service.engine.gauges import Gauges
from executor_service.engine.limits import Limits
from executor_service.engine.record import Counters
from executor_service.executor import Executor
from executor_service.metrics.families import counter, counters, gauge, gauges, histogram, histograms, info
from executor_service.metrics.tally import Tally

# Why requests wait that never ran: what the contract says of the first of them, without REASON_WAITING_ and FOR_.
SHORTFALLS = (
    *("blocks", "seqs", "token_budget", "behind", "after_eviction", "kv", "draining", "shared_prefix"),
    *("prefill_slot", "phase"),
)
# And where no plan says it: none came, or none was made since they arrived; or a scheduler has a reason of its own.
NO_PLAN, NEW, UNKNOWN = "no_plan", "new", "unknown"
EVICTED = "evicted"  # those that ran, lost their KV and are computed again
WAITING_REASONS = (NEW, NO_PLAN, *SHORTFALLS, UNKNOWN, EVICTED)


class ExecutorCollector(Collector):
    def __init__(self, executor: Executor, tally: Tally) -> None:
        self._executor = executor
        self._tally = tally

    def describe(self) -> Iterable[Metric]:
        """Nothing: names are looked at by a test, not at the start."""
        return ()

    def collect(self) -> Iterator[Metric]:
        engine = self._executor.engine
        yield from _infos(self._executor)
        yield from _books(engine.gauges, self._executor.facts.limits, self._tally)
        yield from _counted(engine.counters)
        yield from _tallied(self._tally)
        yield from _times(self._tally)
        yield from _tenants(self._tally)


def _infos(executor: Executor) -> Iterator[Metric]:
    loaded, limits = executor.loaded, executor.facts.limits
    yield info(
        "executor",
        "What this executor is.",
        {
            "executor_id": executor.executor_id,
            "model": loaded.name,
            "device": str(loaded.device),
            "dtype": str(loaded.dtype).removeprefix("torch."),
        },
    )
    yield info(
        "cache_config",
        "Sizes of the executor.",
        {
            "block_size": str(limits.block_size),
            "num_blocks": str(limits.num_blocks),
            "num_swap_blocks": str(limits.num_swap_blocks),
            "max_num_batched_tokens": str(limits.max_num_batched_tokens),
            "max_num_seqs": str(limits.max_num_seqs),
            "max_model_len": str(limits.max_model_len),
        },
    )


def _books(now: Gauges, limits: Limits, tally: Tally) -> Iterator[Metric]:
    num_waiting = now.num_requests(Status.WAITING)
    yield gauge("num_requests_running", "Requests in the running set.", now.num_requests(Status.RUNNING))
    yield gauge("num_requests_waiting", "Requests that wait, evicted ones that lost their KV included.", num_waiting)
    yield gauges("num_requests_waiting_by_reason", "The same by why they wait.", "reason", waiting_by_reason(now))
    yield gauge("num_requests_swapped", "Requests whose KV is in swap space.", now.num_requests(Status.SWAPPED))
    num_used, num_used_swap = limits.num_blocks - now.num_free_blocks, limits.num_swap_blocks - now.num_free_swap_blocks
    yield gauge("kv_cache_usage_perc", "Share of the KV blocks in use, 0 to 1.", num_used / limits.num_blocks)
    swap_usage = num_used_swap / max(1, limits.num_swap_blocks)
    yield gauge("swap_usage_perc", "Share of the swap blocks in use, 0 to 1.", swap_usage)
    yield gauge("num_blocks", "KV blocks.", limits.num_blocks)
    yield gauge("num_free_blocks", "KV blocks that nobody holds; cached text may be in them.", now.num_free_blocks)
    yield gauge("num_swap_blocks", "Swap blocks.", limits.num_swap_blocks)
    yield gauge("num_free_swap_blocks", "Swap blocks that nobody holds.", now.num_free_swap_blocks)
    yield gauge(
        "planning_failing", "1: no scheduler gave a plan when one was last asked for.", bool(now.planning_failure)
    )
    yield gauge(
        "engine_step_timestamp_seconds", "When the engine last came round, as Unix time.", round(now.time_us / 1e6, 6)
    )
    for status in (Status.RUNNING, Status.WAITING, Status.SWAPPED):
        by_label: Counter[str] = Counter()
        for tenant, count in now.num_requests_by_tenant(status).items():
            by_label[tally.tenants.of(tenant)] += count
        name, text = status.name.lower(), f"Requests of tenants that are {status.name}."
        yield gauges(f"tenant_num_requests_{name}", text, "tenant", by_label)


def waiting_by_reason(now: Gauges) -> dict[str, int]:
    """How many wait why. Of those that never ran all have the reason of the first: the others stand behind it."""
    counts = dict.fromkeys(WAITING_REASONS, 0)
    counts[EVICTED] = now.num_evicted
    if now.planning_failure:
        reason = NO_PLAN
    elif now.shortfall_reason:
        name = now.shortfall_reason.removeprefix("WAITING_").removeprefix("FOR_").lower()
        reason = name if name in SHORTFALLS else UNKNOWN
    else:
        reason = NEW
    counts[reason] += now.num_requests(Status.WAITING) - now.num_evicted
    return counts


def _counted(count: Counters) -> Iterator[Metric]:
    yield counter("requests_accepted", "Requests accepted.", count.num_accepted)
    yield counter("prompt_tokens", "Prompt tokens computed, those computed again included.", count.num_prefill_tokens)
    yield counter("generation_tokens", "Tokens generated.", count.num_output_tokens)
    yield counter(
        "prefix_cache_queries", "Tokens that were looked up in the prefix cache.", count.num_prefix_query_tokens
    )
    yield counter("prefix_cache_hits", "Of these, tokens that were found.", count.num_prefix_hit_tokens)
    yield counter("spec_decode_num_draft_tokens", "Speculated tokens verified.", count.num_draft_tokens)
    yield counter("spec_decode_num_accepted_tokens", "Of these, right ones.", count.num_accepted_draft_tokens)
    evicted = count.num_evicted_swap + count.num_evicted_recompute
    yield counter("num_preemptions", "Evictions of both modes.", evicted)
    yield counter("swap_failures", "Copies between device and swap space that failed.", count.num_swap_failures)


def _tallied(tally: Tally) -> Iterator[Metric]:
    yield counters("computed_tokens", "Tokens of passes, each in one phase.", "phase", dict(tally.tokens).items())
    yield counters("evictions", "Evictions.", ("mode", "reason"), _lower(dict(tally.evictions)))
    yield counters("requests_finished", "Requests that ended, by how.", "reason", _lower(dict(tally.requests_ended)))
    yield counters(
        "requests_refused", "Calls that ended with an error.", "reason", _lower(dict(tally.requests_refused))
    )
    yield counters("plans", "Passes by where their plan came from.", "source", _lower(dict(tally.plans)))
    yield counters("plans_refused", "Plans refused.", "reason", dict(tally.plans_refused).items())
    yield counters("plan_failures", "Times that no plan came.", "cause", _lower(dict(tally.plan_failures)))
    yield counter(
        "book_errors", "Integrity checks of the books that failed: a fault of this program.", tally.num_book_errors
    )


def _times(tally: Tally) -> Iterator[Metric]:
    yield histogram("iteration_time_seconds", "From one pass to the next, while something runs.", tally.iteration_time)
    yield histograms(
        "iteration_part_time_seconds",
        "Parts of an iteration; plan is what wait_for_plan is of.",
        "part",
        tally.part_times,
    )
    yield histogram("iteration_tokens", "Tokens of a pass.", tally.iteration_tokens)
    yield counter("predicted_time_seconds", "Sum of what passes were predicted to take.", tally.predicted_us / 1e6)
    yield counter("predicted_passes_time_seconds", "What these passes took.", tally.predicted_passes_us / 1e6)
    yield histogram("time_to_first_token_seconds", "From arrival.", tally.first_token_time)
    yield histogram("inter_token_latency_seconds", "From a token to the next of its request.", tally.token_gap)
    yield histogram("request_queue_time_seconds", "From arrival to the first run.", tally.queue_time)
    yield histogram("request_prefill_time_seconds", "From the first run to the first token.", tally.prefill_time)
    yield histogram("request_decode_time_seconds", "From the first token to the last.", tally.decode_time)
    yield histogram("e2e_request_latency_seconds", "From arrival to the last token.", tally.request_time)
    yield histogram("request_prompt_tokens", "Prompt tokens of a request with an answer.", tally.prompt_tokens)
    yield histogram("request_generation_tokens", "Tokens of an answer.", tally.output_tokens)
    yield histogram("request_num_preemptions", "Evictions of a request with an answer.", tally.preemptions)


def _tenants(tally: Tally) -> Iterator[Metric]:
    def by_tenant(name: str, text: str, counts: Counter[str], unit: float = 1) -> Metric:
        return counters(name, text, "tenant", [(tenant, count * unit) for tenant, count in dict(counts).items()])

    yield by_tenant("tenant_requests_finished", "Requests that ended.", tally.tenant_requests)
    yield by_tenant("tenant_prompt_tokens", "Prompt tokens of requests that ended.", tally.tenant_prompt_tokens)
    yield by_tenant("tenant_generation_tokens", "Tokens generated for requests that ended.", tally.tenant_output_tokens)
    yield by_tenant("tenant_queue_time_seconds", "Sum of their queue times.", tally.tenant_queue_us, 1e-6)


def _lower(counts: dict[str, int] | dict[tuple[str, str], int]) -> Iterator[tuple[str | tuple[str, ...], float]]:
    for labels, count in counts.items():
        yield labels.lower() if isinstance(labels, str) else tuple(label.lower() for label in labels), count
