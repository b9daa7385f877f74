"""A run in figures: what a report has in its table.

Goodput is the rate of requests that meet both targets: the first token in time, and the mean time between tokens no
longer than the target, as DistServe (arXiv 2401.09670) and vLLM's own benchmark count them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metronome_lab.fairness import Fairness, fairness_of
from metronome_lab.records import Outcome, Records


@dataclass(frozen=True, slots=True, kw_only=True)
class Targets:
    """What a request must meet to count, in microseconds."""

    ttft_us: int
    itl_us: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """A distribution in three figures, in milliseconds; all 0 where it is empty."""

    mean_ms: float
    p50_ms: float
    p99_ms: float

    @classmethod
    def of(cls, times_us: NDArray[Any]) -> Spread:
        if not len(times_us):
            return cls(mean_ms=0.0, p50_ms=0.0, p99_ms=0.0)
        p50, p99 = np.percentile(times_us, (50, 99))
        return cls(mean_ms=float(times_us.mean()) / 1e3, p50_ms=float(p50) / 1e3, p99_ms=float(p99) / 1e3)


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantFigures:
    """What the requests of one tenant met. `wait`: until they first ran, of those that did; the rest as in Figures."""

    name: str
    num_requests: int
    num_finished: int
    wait: Spread
    ttft: Spread
    e2e: Spread


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Rates are over `duration_s`, of virtual time, but for `offered_per_s`: over the time of arrivals. Latencies count
    from the arrival, of requests that finished.
    """

    num_requests: int
    num_finished: int
    num_refused: int
    num_rejected: int
    num_expired: int
    duration_s: float
    offered_per_s: float
    requests_per_s: float
    output_tokens_per_s: float
    prefill_tokens_per_s: float
    goodput_per_s: float
    share_good: float
    ttft: Spread
    itl: Spread
    e2e: Spread
    longest_gap_ms: float
    longest_wait_s: float
    num_preemptions: int
    num_recomputed_tokens: int
    num_cached_tokens: int
    num_iterations: int
    fairness: Fairness
    tenants: tuple[TenantFigures, ...]


def figures_of(records: Records, targets: Targets) -> Figures:
    requests, workload = records.requests, records.requests.workload
    finished = requests.outcome == Outcome.FINISHED
    arrival_us = workload.arrival_us
    ttft_us = (requests.first_token_us - arrival_us)[finished]
    duration_s = max(records.end_us, 1) / 1e6
    good = is_good(records, targets)
    num_output_tokens = int(requests.num_output_tokens.sum())
    ran = requests.first_run_us >= 0
    waited_us = (requests.first_run_us - arrival_us)[ran]
    return Figures(
        num_requests=len(workload),
        num_finished=int(finished.sum()),
        num_refused=int((requests.outcome == Outcome.REFUSED).sum()),
        num_rejected=int((requests.outcome == Outcome.REJECTED).sum()),
        num_expired=int((requests.outcome == Outcome.EXPIRED).sum()),
        duration_s=duration_s,
        offered_per_s=len(workload) / max(workload.duration_us / 1e6, 1e-6),
        requests_per_s=int(finished.sum()) / duration_s,
        output_tokens_per_s=num_output_tokens / duration_s,
        prefill_tokens_per_s=(int(requests.num_run_tokens.sum()) - records.gaps.count) / duration_s,
        goodput_per_s=int(good.sum()) / duration_s,
        share_good=float(good.mean()),
        ttft=Spread.of(ttft_us),
        itl=Spread(
            mean_ms=records.gaps.mean_us / 1e3,
            p50_ms=records.gaps.percentile_us(50) / 1e3,
            p99_ms=records.gaps.percentile_us(99) / 1e3,
        ),
        e2e=Spread.of((requests.end_us - arrival_us)[finished]),
        longest_gap_ms=float(requests.max_gap_us.max()) / 1e3,
        longest_wait_s=float(waited_us.max(initial=0)) / 1e6,
        num_preemptions=int(requests.num_preemptions.sum()),
        num_recomputed_tokens=int(requests.num_recomputed_tokens.sum()),
        num_cached_tokens=int(requests.num_cached_tokens.sum()),
        num_iterations=records.iterations.num_iterations,
        fairness=fairness_of(records),
        tenants=tuple(_of_tenant(records, number) for number in range(len(workload.tenants))),
    )


def _of_tenant(records: Records, tenant: int) -> TenantFigures:
    requests, workload = records.requests, records.requests.workload
    own = workload.tenant == tenant
    ran, finished = own & (requests.first_run_us >= 0), own & (requests.outcome == Outcome.FINISHED)
    return TenantFigures(
        name=workload.tenants[tenant],
        num_requests=int(own.sum()),
        num_finished=int(finished.sum()),
        wait=Spread.of((requests.first_run_us - workload.arrival_us)[ran]),
        ttft=Spread.of((requests.first_token_us - workload.arrival_us)[finished]),
        e2e=Spread.of((requests.end_us - workload.arrival_us)[finished]),
    )


def mean_itl_us(records: Records) -> NDArray[np.float64]:
    """[num_requests] mean time between two tokens of an answer; 0 where there are not two, or it did not finish."""
    requests = records.requests
    gaps = requests.num_output_tokens - 1
    has_gaps = (requests.outcome == Outcome.FINISHED) & (gaps > 0)
    times: NDArray[np.float64] = np.zeros(len(gaps))
    times[has_gaps] = (requests.end_us - requests.first_token_us)[has_gaps] / gaps[has_gaps]
    return times


def is_good(records: Records, targets: Targets) -> NDArray[np.bool_]:
    """[num_requests] which finished within both targets."""
    requests = records.requests
    ttft_us = requests.first_token_us - requests.workload.arrival_us
    good: NDArray[np.bool_] = (
        (requests.outcome == Outcome.FINISHED) & (ttft_us <= targets.ttft_us) & (mean_itl_us(records) <= targets.itl_us)
    )
    return good
