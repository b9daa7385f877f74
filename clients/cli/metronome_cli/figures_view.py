"""The figures of runs as a table, a run a column."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from rich.box import SIMPLE
from rich.table import Table

if TYPE_CHECKING:
    from metronome_lab.figures import Figures, Spread

_Row = tuple[str, Callable[["Figures"], str]]


def _spread(of: Callable[[Figures], Spread]) -> Callable[[Figures], str]:
    return lambda figures: " / ".join(f"{t:,.0f}" if t >= 100 else f"{t:.3g}" for t in _times(of(figures)))


def _times(spread: Spread) -> tuple[float, float, float]:
    return spread.mean_ms, spread.p50_ms, spread.p99_ms


_ROWS: tuple[_Row, ...] = (
    ("requests finished", lambda f: f"{f.num_finished:,} of {f.num_requests:,}"),
    ("refused, rejected", lambda f: f"{f.num_refused:,}, {f.num_rejected:,}"),
    ("virtual time, s", lambda f: f"{f.duration_s:,.1f}"),
    ("requests/s", lambda f: f"{f.requests_per_s:.3f}"),
    ("output tokens/s", lambda f: f"{f.output_tokens_per_s:,.1f}"),
    ("goodput, requests/s", lambda f: f"{f.goodput_per_s:.3f} ({f.share_good:.1%})"),
    ("TTFT mean / p50 / p99, ms", _spread(lambda f: f.ttft)),
    ("ITL mean / p50 / p99, ms", _spread(lambda f: f.itl)),
    ("E2E mean / p50 / p99, ms", _spread(lambda f: f.e2e)),
    ("longest wait, s", lambda f: f"{f.longest_wait_s:,.2f}"),
    ("evictions", lambda f: f"{f.num_preemptions:,}"),
    ("recomputed tokens", lambda f: f"{f.num_recomputed_tokens:,}"),
    ("cached tokens", lambda f: f"{f.num_cached_tokens:,}"),
    ("Jain's index of tenants", lambda f: f"{f.fairness.jain:.4f} over {f.fairness.contended_s:,.0f} s"),
    ("largest service gap, tokens", lambda f: f"{f.fairness.largest_gap_tokens:,}"),
    ("iterations", lambda f: f"{f.num_iterations:,}"),
)


def figures_view(figures: Mapping[str, Figures]) -> Table:
    """`figures`: by the name of the run."""
    table = Table(box=SIMPLE)
    table.add_column("")
    for name in figures:
        table.add_column(name, justify="right")
    for label, cell in _ROWS:
        table.add_row(label, *(cell(of_run) for of_run in figures.values()))
    return table
