"""Lesson 5: what batches are made of over time, with and without chunks, the phases together and apart."""

from __future__ import annotations

from dataclasses import replace

from lesson import DOCS, write_lesson
from metronome_lab.figures import Targets, figures_of
from metronome_lab.hardware.profile import load_hardware
from metronome_lab.records import Records
from metronome_lab.report.charts import batch_composition
from metronome_lab.simulation import Fleet, simulate
from metronome_lab.workload.traces import read_workload
from scheduler_service.core.policy import BatchComposition, Policy

TRACE = DOCS.parent / "tests" / "data" / "traces" / "azure_2023_conv_code.csv"
NUM_REQUESTS, RATE = 300, 0.15
WHOLE = 2**31 - 1
WORDS = """
A pass may hold prefills and decodes together, or one phase alone. Where prefills go first, or whole prompts join the
decodes, tokens come in fits: nobody gets one while prompts are computed. With one chunk a pass both phases go on side
by side, and a prompt takes longer. Decodes first leave the prompts of newcomers until all that run are complete, and
the device half empty.

The workload is the first 300 requests of the excerpt of the Azure trace in `tests/data/traces`, conversations and
code completion, at 0.15 times its rate, on Llama 3.1 8B and one A100 with a token budget of 8,192.
"""


def main() -> None:
    workload = read_workload(TRACE).part(0, NUM_REQUESTS).at_rate(RATE)
    hardware = load_hardware("a100-80gb-llama3-8b")
    fleet = Fleet(hardware=replace(hardware, limits=replace(hardware.limits, max_num_batched_tokens=8192)))
    runs = {
        name: simulate(workload, fleet, policy)
        for name, policy in (
            ("mixed, a chunk of 512", Policy(chunk_size_tokens=512, max_num_partial_prefills=1)),
            ("mixed, whole prompts", Policy(chunk_size_tokens=WHOLE)),
            ("prefills first", Policy(chunk_size_tokens=WHOLE, batch_composition=BatchComposition.SEPARATE)),
            ("decodes first", Policy(chunk_size_tokens=WHOLE, batch_composition=BatchComposition.DECODE_FIRST)),
        )
    }
    write_lesson(
        replace(batch_composition(runs), name="phases", title="What batches are made of"),
        words=WORDS,
        headings=("requests/s", "TTFT mean, s", "TTFT p99, s", "ITL mean, ms", "ITL p99, ms"),
        rows={name: _cells(records) for name, records in runs.items()},
    )


def _cells(records: Records) -> list[str]:
    figures = figures_of(records, Targets(ttft_us=1, itl_us=1))
    ttft = [f"{time / 1e3:,.2f}" for time in (figures.ttft.mean_ms, figures.ttft.p99_ms)]
    return [f"{figures.requests_per_s:.2f}", *ttft, f"{figures.itl.mean_ms:,.1f}", f"{figures.itl.p99_ms:,.1f}"]


if __name__ == "__main__":
    main()
