"""Lesson 4: what a long prompt does to those that decode, by the size of its chunks, and what it pays itself."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from lesson import write_lesson
from metronome_lab.hardware.profile import load_hardware
from metronome_lab.records import Records
from metronome_lab.report.charts import Chart, Panel, Series
from metronome_lab.simulation import Fleet, simulate
from metronome_lab.workload.requests import Workload
from scheduler_service.core.policy import Policy

NUM_DECODING, NUM_LONG = 32, 20
LONG_PROMPT = 4000
CHUNKS = (8192, 2048, 1024, 512, 256, 128)
WORDS = """
Thirty-two requests decode while a prompt of 4,000 tokens arrives every second. In one piece it holds everybody up for
the time of its pass, more than a third of a second; cut into chunks that share passes with the decodes it holds
nobody up for longer than a chunk takes (Agrawal et al., Sarathi-Serve, OSDI 2024). The price is paid by the prompt:
each chunk pays for a pass of its own, and waits for the decodes in it. Below some size the passes cost more than the
chunks.

Llama 3.1 8B on one A100, a token budget of 8,192. The default profile bounds prefills by what the decodes beside them
take, which needs no size (docs/adr/0014); here that is off.
"""


def main() -> None:
    decoding = [(0, 64, 1500)] * NUM_DECODING
    long = [(2_000_000 + 1_000_000 * number, LONG_PROMPT, 1) for number in range(NUM_LONG)]
    arrivals, prompts, outputs = np.array(decoding + long).T
    workload = Workload.of(name="chunks", arrival_us=arrivals, num_prompt_tokens=prompts, num_output_tokens=outputs)
    hardware = load_hardware("a100-80gb-llama3-8b")
    fleet = Fleet(hardware=replace(hardware, limits=replace(hardware.limits, max_num_batched_tokens=8192)))
    runs = {size: simulate(workload, fleet, Policy(chunk_size_tokens=size)) for size in CHUNKS}
    sizes = np.array(CHUNKS)
    panels = (
        _panel("Those that decode", "ms between tokens", sizes, runs, {"p99": _p99_gap_ms, "longest": _longest_gap_ms}),
        _panel("The long prompt", "s to the first token", sizes, runs, {"mean": _ttft_s}),
    )
    write_lesson(
        Chart(name="chunks", title="A long prompt, in one piece and in chunks", panels=panels),
        words=WORDS,
        headings=("ITL mean, ms", "ITL p99, ms", "longest gap, ms", "long prompt's TTFT, s"),
        rows={_name(size): _cells(records) for size, records in runs.items()},
    )


def _panel(title: str, y_label: str, sizes: np.ndarray, runs: dict[int, Records], of: dict) -> Panel:
    lines = (Series(name=name, x=sizes, y=np.array([get(r) for r in runs.values()])) for name, get in of.items())
    return Panel(title=title, x_label="chunk, tokens", y_label=y_label, series=tuple(lines), log_x=True)


def _p99_gap_ms(records: Records) -> float:
    return records.gaps.percentile_us(99) / 1e3


def _longest_gap_ms(records: Records) -> float:
    return float(records.requests.max_gap_us.max()) / 1e3


def _ttft_s(records: Records) -> float:
    requests = records.requests
    long = requests.workload.num_prompt_tokens == LONG_PROMPT
    return float((requests.first_token_us - requests.workload.arrival_us)[long].mean()) / 1e6


def _name(size: int) -> str:
    return "one piece" if size > LONG_PROMPT else f"chunks of {size:,}"


def _cells(records: Records) -> list[str]:
    figures = (records.gaps.mean_us / 1e3, _p99_gap_ms(records), _longest_gap_ms(records))
    return [f"{value:,.1f}" for value in figures] + [f"{_ttft_s(records):.2f}"]


if __name__ == "__main__":
    main()
