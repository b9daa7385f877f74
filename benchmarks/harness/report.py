"""Figures on their way out: a table for people, or one JSON object a line for programs."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from rich.console import Console
from rich.table import Table

_RESAMPLES = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One measured quantity. ``samples``: one a repetition; the median is quoted, with the spread beside it.

    ``reference``: what it is compared with, and that one's samples, taken in the same run, pair by pair.
    """

    name: str
    unit: str
    samples: Sequence[float]
    sizes: dict[str, object] = field(default_factory=dict)
    reference: str = ""
    reference_samples: Sequence[float] = ()

    @property
    def value(self) -> float:
        return statistics.median(self.samples)

    @property
    def ratios(self) -> list[float]:
        return [ours / theirs for ours, theirs in zip(self.samples, self.reference_samples, strict=True)]

    @property
    def ratio(self) -> float:
        """The median of the ratios of the pairs: what drifts between pairs cancels out."""
        return statistics.median(self.ratios)

    @property
    def ratio_interval(self) -> tuple[float, float]:
        """Where that median is with 95 % of certainty. Source: the percentile bootstrap, Efron 1979."""
        drawn = np.random.default_rng(0).choice(self.ratios, (_RESAMPLES, len(self.ratios)))
        low, high = np.percentile(np.median(drawn, axis=1), (2.5, 97.5))
        return float(low), float(high)


def print_json(figures: Sequence[Figure]) -> None:
    for figure in figures:
        line: dict[str, object] = {
            "name": figure.name,
            "value": round(figure.value, 4),
            "unit": figure.unit,
            "min": round(min(figure.samples), 4),
            "max": round(max(figure.samples), 4),
            **figure.sizes,
        }
        if figure.reference:
            line |= {
                "reference": figure.reference,
                "reference_value": round(statistics.median(figure.reference_samples), 4),
                "ratio": round(figure.ratio, 4),
                "ratio_min": round(min(figure.ratios), 4),
                "ratio_max": round(max(figure.ratios), 4),
                "ratio_interval": [round(bound, 4) for bound in figure.ratio_interval],
            }
        print(json.dumps(line), flush=True)


def print_table(title: str, figures: Sequence[Figure]) -> None:
    table = Table(title=title, title_justify="left", caption="median (least to most)", caption_justify="left")
    for heading in ("", "value", "reference", "ratio"):
        table.add_column(heading, justify="left" if heading in ("", "reference") else "right")
    for figure in figures:
        against, ratio = "", ""
        if figure.reference:
            against = f"{figure.reference}: {_spread(figure.reference_samples)} {figure.unit}"
            ratio = _spread(figure.ratios)
        table.add_row(figure.name, f"{_spread(figure.samples)} {figure.unit}", against, ratio)
    Console().print(table)


def _spread(samples: Sequence[float]) -> str:
    median = f"{statistics.median(samples):.4g}"
    return median if len(samples) == 1 else f"{median} ({min(samples):.4g} to {max(samples):.4g})"
