"""The figures of runs as the rows of a table, a run a column."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from metronome_lab.figures import Figures, Spread, TenantFigures
from metronome_lab.order_promise import OrderPromise
from metronome_lab.planning import FLEETS, PlanningTimes

Rows = Mapping[str, Sequence[str]]
_Row = tuple[str, Callable[[Figures], str]]


def rows_of(figures: Sequence[Figures], promises: Sequence[OrderPromise]) -> dict[str, list[str]]:
    """The cells of each row by its label; of a run, one of several on the same workload, the figures and the promise of
    its policy.
    """
    rows = {label: [cell(of_run) for of_run in figures] for label, cell in _ROWS}
    for number, tenant in enumerate(figures[0].tenants if len(figures[0].tenants) > 1 else ()):
        for label, of_tenant in _TENANT_ROWS:
            rows[f"{tenant.name}: {label}"] = [of_tenant(of_run.tenants[number]) for of_run in figures]
    return rows | {"bound on waiting": [_kept(promise) for promise in promises]}


def planning_rows(times: Mapping[str, PlanningTimes]) -> dict[str, list[str]]:
    """One for each size of a fleet: plans of all its executors, and one request placed over them."""
    return {
        f"planning {count:,} executors, ms": [
            f"{of_run.plan_ms[number]:,.3g}, Place {of_run.place_ms[number]:,.3g}" for of_run in times.values()
        ]
        for number, count in enumerate(FLEETS)
        if times
    }


_Of = TypeVar("_Of")


def _spread(of: Callable[[_Of], Spread]) -> Callable[[_Of], str]:
    return lambda figures: " / ".join(f"{t:,.0f}" if t >= 100 else f"{t:.3g}" for t in _times(of(figures)))


def _times(spread: Spread) -> tuple[float, float, float]:
    return spread.mean_ms, spread.p50_ms, spread.p99_ms


def _kept(promise: OrderPromise) -> str:
    if promise.num_broken is None:
        return "none of order"
    return "kept" if promise.is_kept else f"broken {promise.num_broken:,} times"


_ROWS: tuple[_Row, ...] = (
    ("requests finished", lambda f: f"{f.num_finished:,} of {f.num_requests:,}"),
    ("refused, rejected, expired", lambda f: f"{f.num_refused:,}, {f.num_rejected:,}, {f.num_expired:,}"),
    ("virtual time, s", lambda f: f"{f.duration_s:,.1f}"),
    ("requests/s", lambda f: f"{f.requests_per_s:.3f}"),
    ("output tokens/s", lambda f: f"{f.output_tokens_per_s:,.1f}"),
    ("goodput, requests/s", lambda f: f"{f.goodput_per_s:.3f} ({f.share_good:.1%})"),
    ("TTFT mean / p50 / p99, ms", _spread(lambda f: f.ttft)),
    ("ITL mean / p50 / p99, ms", _spread(lambda f: f.itl)),
    ("longest between tokens, ms", lambda f: f"{f.longest_gap_ms:,.0f}"),
    ("E2E mean / p50 / p99, ms", _spread(lambda f: f.e2e)),
    ("longest wait, s", lambda f: f"{f.longest_wait_s:,.2f}"),
    ("evictions", lambda f: f"{f.num_preemptions:,}"),
    ("recomputed tokens", lambda f: f"{f.num_recomputed_tokens:,}"),
    ("cached tokens", lambda f: f"{f.num_cached_tokens:,}"),
    ("Jain's index of tenants", lambda f: f"{f.fairness.jain:.4f} over {f.fairness.contended_s:,.0f} s"),
    ("largest service gap, tokens", lambda f: f"{f.fairness.largest_gap_tokens:,}"),
    ("iterations", lambda f: f"{f.num_iterations:,}"),
)
# Where there is more than one tenant, for each.
_TENANT_ROWS: tuple[tuple[str, Callable[[TenantFigures], str]], ...] = (
    ("finished", lambda f: f"{f.num_finished:,} of {f.num_requests:,}"),
    ("wait mean / p50 / p99, ms", _spread(lambda f: f.wait)),
    ("TTFT mean / p50 / p99, ms", _spread(lambda f: f.ttft)),
    ("E2E mean / p50 / p99, ms", _spread(lambda f: f.e2e)),
)
