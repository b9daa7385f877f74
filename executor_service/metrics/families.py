"""Families of samples under this project's prefix, in the least words."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
)

from executor_service.metrics.histogram import Histogram

PREFIX = "metronome_"


def gauge(name: str, text: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(PREFIX + name, text, value=value)


def gauges(name: str, text: str, label: str, values: Mapping[str, float]) -> GaugeMetricFamily:
    family = GaugeMetricFamily(PREFIX + name, text, labels=[label])
    for value_of_label, value in values.items():
        family.add_metric([value_of_label], value)
    return family


def counter(name: str, text: str, value: float) -> CounterMetricFamily:
    return CounterMetricFamily(PREFIX + name, text, value=value)


def counters(
    name: str, text: str, labels: str | tuple[str, ...], values: Iterable[tuple[str | tuple[str, ...], float]]
) -> CounterMetricFamily:
    """``values``: the labels' values, and the count."""
    family = CounterMetricFamily(PREFIX + name, text, labels=[labels] if isinstance(labels, str) else labels)
    for values_of_labels, value in values:
        family.add_metric([values_of_labels] if isinstance(values_of_labels, str) else values_of_labels, value)
    return family


def histogram(name: str, text: str, values: Histogram) -> HistogramMetricFamily:
    return HistogramMetricFamily(PREFIX + name, text, buckets=values.buckets, sum_value=values.sum)


def histograms(name: str, text: str, label: str, values: Mapping[str, Histogram]) -> HistogramMetricFamily:
    family = HistogramMetricFamily(PREFIX + name, text, labels=[label])
    for value_of_label, of_label in values.items():
        family.add_metric([value_of_label], of_label.buckets, of_label.sum)
    return family


def info(name: str, text: str, values: Mapping[str, str]) -> InfoMetricFamily:
    return InfoMetricFamily(PREFIX + name, text, value=dict(values))
