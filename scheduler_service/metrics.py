"""What Prometheus may know of a scheduler. docs/operations.md has the table.

A scheduler holds nothing: these are counts of what it decided, and the times that it took. How executors stand is for
them to say.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from prometheus_client import CollectorRegistry, Counter, Histogram, Info
from prometheus_client.metrics_core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from metronome.scheduler.v1 import scheduler_pb2
from metronome.scheduler.v1.error_reason_pb2 import ErrorReason
from scheduler_service.config import SchedulerConfig
from scheduler_service.core.executor_plan import EvictMode, ExecutorPlan, Reason
from scheduler_service.core.state import ClusterState
from scheduler_service.observers import ObserverThread
from scheduler_service.shadow import Difference, Shadow

PREFIX = "metronome_scheduler_"
# A plan takes from a tenth of a millisecond to some at thousands of requests.
CALL_SECONDS = (
    *(0.0001, 0.00025, 0.0005, 0.00075, 0.001, 0.0015, 0.0025, 0.005, 0.01, 0.025),
    *(0.05, 0.1, 0.25, 1.0),
)
REQUESTS = (0, 1, 4, 16, 64, 256, 1_024, 4_096, 16_384)
CRASHED = "CRASHED"  # where a call failed at a fault of ours
METHODS = [method.name for method in scheduler_pb2.DESCRIPTOR.services_by_name["SchedulerService"].methods]
_CALL_REASONS = [name.removeprefix("ERROR_REASON_") for name in ErrorReason.keys()[1:]]  # the first is for none
_ADMISSIONS = (Reason.ADMITTED, Reason.READMITTED, Reason.BACKFILLED, Reason.SKIPPED_AHEAD)


class SchedulerMetrics:
    """Told of each call, on the event loop; a few microseconds for each."""

    def __init__(self, registry: CollectorRegistry, config: SchedulerConfig) -> None:
        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(PREFIX + name, text, labels, registry=registry)

        info = Info("metronome_scheduler", "What this scheduler was started with.", registry=registry)
        info.info({"profile": config.profile, "shadow_profile": config.shadow_profile or ""})
        self._call_time = Histogram(
            PREFIX + "call_time_seconds",
            "From a parsed request to its answer, of calls that were answered.",
            ["method"],
            buckets=CALL_SECONDS,
            registry=registry,
        )
        self._requests = Histogram(
            PREFIX + "state_requests", "Requests of the states planned.", buckets=REQUESTS, registry=registry
        )
        self._refused = counter("calls_refused", "Calls that were refused, or at which we failed.", "method", "reason")
        self._plans = counter("plans", "Plans made, one for each executor of a state.", "profile")
        self._tokens = counter("scheduled_tokens", "Tokens that plans run.", "phase")
        self._admitted = counter("requests_admitted", "Requests admitted.", "reason")
        self._resumed = counter("requests_resumed", "Requests resumed from swap space.")
        self._evicted = counter("requests_evicted", "Requests evicted.", "mode", "reason")
        self._rejected = counter("requests_rejected", "Requests rejected.", "reason")
        self._shortfalls = counter("shortfalls", "Plans that leave a request waiting, by why the first does.", "reason")
        self._prefill, self._decode = (self._tokens.labels(phase) for phase in ("prefill", "decode"))
        self._begin_at_zero()

    def _begin_at_zero(self) -> None:
        """Each label is there from the start: of a counter that appears with its first event a rate shows nothing."""
        for method in METHODS:
            for reason in (*_CALL_REASONS, CRASHED):
                self._refused.labels(method, _word(reason))
        for counter, prefix in ((self._rejected, "REJECTED_"), (self._shortfalls, "WAITING_")):
            for word in _reasons(prefix):
                counter.labels(word)
        for admission in _ADMISSIONS:
            self._admitted.labels(_word(admission.name))
        for mode in EvictMode:
            for word in _reasons("EVICTED_"):
                self._evicted.labels(_word(mode.name), word)

    def answered(self, method: str, time_s: float) -> None:
        self._call_time.labels(method).observe(time_s)

    def refused(self, method: str, reason: str) -> None:
        self._refused.labels(method, _word(reason)).inc()

    def planned(self, profile: str, cluster: ClusterState, plans: Sequence[ExecutorPlan]) -> None:
        """``profile``: its name; ``inline`` where the policy came with the request."""
        self._plans.labels(profile).inc(len(plans))
        for executor, plan in zip(cluster.executors, plans, strict=True):
            self._requests.observe(len(executor.requests.id))
            self._prefill.inc(plan.composition.num_prefill_tokens)
            self._decode.inc(plan.composition.num_decode_tokens)
            if plan.shortfall is not None:
                self._shortfalls.labels(_word(plan.shortfall.reason.name, "WAITING_")).inc()
            self._count_transitions(plan)

    def _count_transitions(self, plan: ExecutorPlan) -> None:
        for reason in plan.admit.reason.tolist():
            self._admitted.labels(_word(Reason(reason).name)).inc()
        for mode, reason in zip(plan.evict.mode.tolist(), plan.evict.reason.tolist(), strict=True):
            self._evicted.labels(_word(EvictMode(mode).name), _word(Reason(reason).name, "EVICTED_")).inc()
        for reason in plan.reject.reason.tolist():
            self._rejected.labels(_word(Reason(reason).name, "REJECTED_")).inc()
        if len(plan.resume.id):
            self._resumed.inc(len(plan.resume.id))


class ObserverCollector(Collector):
    """What those that look at planned calls have missed, and what a shadow saw; read when somebody asks."""

    def __init__(self, observers: Sequence[ObserverThread]) -> None:
        self._observers = observers

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterator[Metric]:
        dropped = CounterMetricFamily(
            PREFIX + "observer_calls_dropped", "Calls that an observer had no time for.", labels=["observer"]
        )
        failed = CounterMetricFamily(
            PREFIX + "observer_calls_failed", "Calls at which an observer failed.", labels=["observer"]
        )
        for observer in self._observers:
            dropped.add_metric([observer.name], observer.num_dropped)
            failed.add_metric([observer.name], observer.num_failed)
        yield from (dropped, failed)
        for thread in self._observers:
            if isinstance(thread.observer, Shadow):
                yield from _shadow(thread.observer)


def _shadow(shadow: Shadow) -> Iterator[Metric]:
    totals = shadow.totals
    yield CounterMetricFamily(PREFIX + "shadow_plans", "Plans made a second time.", value=totals["num_plans"])
    yield CounterMetricFamily(
        PREFIX + "shadow_different_plans", "Of these, those that differ from the plan in use.", totals["num_different"]
    )
    kinds = CounterMetricFamily(PREFIX + "shadow_differences", "Plans that differ, by in what.", labels=["kind"])
    for kind in Difference:
        kinds.add_metric([kind.value], totals[kind.value])
    yield kinds


def _reasons(prefix: str) -> Iterator[str]:
    return (_word(reason.name, prefix) for reason in Reason if reason.name.startswith(prefix))


def _word(name: str, prefix: str = "") -> str:
    return name.removeprefix(prefix).lower()
