"""Lesson 1: requests one at a time, in batches of requests, and in iterations, on answers of very unequal length."""

from __future__ import annotations

from dataclasses import replace

from lesson import WORKLOADS, write_lesson
from metronome_lab.figures import Figures, Targets, figures_of
from metronome_lab.hardware.profile import load_hardware
from metronome_lab.policies import named_policy
from metronome_lab.records import Records
from metronome_lab.report.charts import Chart, latency_distributions
from metronome_lab.simulation import Fleet, simulate
from metronome_lab.workload.traces import read_workload

NUM_REQUESTS, RATE = 400, 2.0
PLACES = 32
WORDS = """
Answers differ by a hundredfold, and nobody knows beforehand which is long. A server that takes requests one at a time
keeps the device waiting for memory; one that takes a batch and decodes it to its end keeps the places of short
answers empty until the longest of the batch is complete. Scheduling by iterations gives a place to the next request
in the pass after it is free (Yu et al., Orca, OSDI 2022), which is why every engine does it. Chunks do not change
that, but for who pays for a long prompt.

The workload is `docs/lab/workloads/heavy_tail.toml`, 400 requests at twice its rate, on Llama 3.1 8B and one A100
with 32 places and a token budget that holds the prompts of a whole batch.
"""


def main() -> None:
    workload = read_workload(WORKLOADS / "heavy_tail.toml").part(0, NUM_REQUESTS).at_rate(RATE)
    limits = {"max_num_batched_tokens": 32_768, "max_num_seqs": PLACES}
    hardware = load_hardware("a100-80gb-llama3-8b")
    batches = replace(hardware, limits=replace(hardware.limits, **limits))
    alone = replace(hardware, limits=replace(hardware.limits, **limits | {"max_num_seqs": 1}))
    runs: dict[str, Records] = {}
    for name, fleet, profile in (
        ("one at a time", Fleet(hardware=alone), "orca"),
        ("batches of requests", Fleet(hardware=batches), "static-batching"),
        ("iterations", Fleet(hardware=batches), "orca"),
        ("iterations, chunks of 512", Fleet(hardware=batches), "sarathi"),
    ):
        runs[name] = simulate(workload, fleet, named_policy(profile))
    distributions = latency_distributions(runs)
    panels = (distributions.panels[0], distributions.panels[2])
    write_lesson(
        Chart(name="batching", title="Batches of requests, and iterations", panels=panels),
        words=WORDS,
        headings=("requests/s", "output tokens/s", "TTFT mean, s", "TTFT p99, s", "answer mean, s", "answer p99, s"),
        rows={name: _cells(figures_of(records, Targets(ttft_us=1, itl_us=1))) for name, records in runs.items()},
    )


def _cells(figures: Figures) -> list[str]:
    times = (figures.ttft.mean_ms, figures.ttft.p99_ms, figures.e2e.mean_ms, figures.e2e.p99_ms)
    rates = [f"{figures.requests_per_s:.2f}", f"{figures.output_tokens_per_s:,.0f}"]
    return rates + [f"{time / 1e3:,.1f}" for time in times]


if __name__ == "__main__":
    main()
