"""Reads what a service tells Prometheus, as Prometheus does: over HTTP, by the text format."""

from __future__ import annotations

import re
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass

from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

from support.services import Service, wait_until

TIMEOUT_SECONDS = 30

# What a process and its interpreter tell of themselves.
COMMON_PREFIXES = ("process_", "python_")


@dataclass(frozen=True, slots=True, kw_only=True)
class Scrape:
    """One answer of a metrics endpoint."""

    text: str
    families: Mapping[str, Metric]  # by the name without _total

    def value(self, sample: str, **labels: str) -> float:
        """The value of one series. Fails where there is none, or more than one has these labels."""
        (value,) = (
            one.value
            for family in self.families.values()
            for one in family.samples
            if one.name == sample and labels.items() <= one.labels.items()
        )
        return value

    def by_label(self, sample: str, label: str) -> dict[str, float]:
        """The values of the series of one name, by one of their labels."""
        samples = (one for family in self.families.values() for one in family.samples if one.name == sample)
        return {one.labels[label]: one.value for one in samples}

    @property
    def own(self) -> dict[str, Metric]:
        return {name: family for name, family in self.families.items() if not name.startswith(COMMON_PREFIXES)}


def metrics_address(service: Service) -> str:
    """Where a service that was started with `--metrics-address 0` serves its metrics: its log says so."""
    found: list[str] = []

    def is_listening() -> bool:
        plain = re.sub(r"\x1b\[[0-9;]*m", "", service.log)
        found[:] = re.findall(r"metrics_listening.*?(127\.0\.0\.1:\d+)", plain) + re.findall(
            r"(127\.0\.0\.1:\d+)[^\n]*metrics_listening", plain
        )
        return bool(found)

    wait_until(is_listening)
    return found[0]


def scrape(address: str) -> Scrape:
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=TIMEOUT_SECONDS) as answer:
        text = answer.read().decode()
    return Scrape(text=text, families={family.name: family for family in text_string_to_metric_families(text)})
