"""Lesson 2: who waits in a surge, under each ordering; and the long job that was submitted in the middle of it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from lesson import WORKLOADS, waits_by_arrival, waits_s, write_lesson
from metronome_lab.hardware.profile import load_hardware
from metronome_lab.records import Records
from metronome_lab.simulation import Fleet, simulate
from metronome_lab.workload.requests import Workload
from metronome_lab.workload.traces import read_workload
from scheduler_service.core.policy import Ordering, Policy

NUM_REQUESTS = 500
LONG_PROMPT, LONG_ANSWER = 8000, 1500
PLACES = 24
WORDS = """
Conversations come at a steady rate, and every minute or so a batch service sends a burst of long prompts. FIFO makes
conversations wait behind the burst. SHORTEST_JOB_FIRST lets the short pass, PRIORITY those that are marked, FAIR
gives each service its half whatever it sends. What the one gains the other pays; aging bounds how much. The long job
(a prompt of 8,000 tokens and an answer of 1,500, of the conversations) arrives in the middle of a burst: under
SHORTEST_JOB_FIRST it is passed by all that come soon after it.

The workload is the first 500 requests of `docs/lab/workloads/surge.toml`, with priority 1 for conversations, on Llama
3.1 8B and one A100 with 24 places.
"""


def main() -> None:
    workload, long_job = _with_long_job(read_workload(WORKLOADS / "surge.toml").part(0, NUM_REQUESTS))
    hardware = load_hardware("a100-80gb-llama3-8b")
    fleet = Fleet(hardware=replace(hardware, limits=replace(hardware.limits, max_num_seqs=PLACES)))
    orderings = (Ordering.FIFO, Ordering.SHORTEST_JOB_FIRST, Ordering.PRIORITY, Ordering.FAIR)
    runs = {o.name: simulate(workload, fleet, Policy(ordering=o)) for o in orderings}
    write_lesson(
        replace(waits_by_arrival("Who waits in a surge", runs), name="surge"),
        words=WORDS,
        headings=("chat, mean s", "chat, p99 s", "batch, mean s", "batch, p99 s", "longest, s", "the long job, s"),
        rows={name: _cells(records, long_job) for name, records in runs.items()},
    )


def _with_long_job(workload: Workload) -> tuple[Workload, int]:
    """One request of the conversations in the thick of a burst is long."""
    chat, batch = (np.flatnonzero(workload.tenant == workload.tenants.index(name)) for name in ("chat", "batch"))
    middle = workload.arrival_us[batch[len(batch) // 2]]
    long_job = int(chat[np.searchsorted(workload.arrival_us[chat], middle)])
    columns = {
        name: getattr(workload, name).copy()
        for name in ("num_prompt_tokens", "num_output_tokens", "max_output_tokens", "expected_output_tokens")
    }
    for name, column in columns.items():
        column[long_job] = LONG_PROMPT if name == "num_prompt_tokens" else LONG_ANSWER
    return replace(workload, **columns), long_job


def _cells(records: Records, long_job: int) -> list[str]:
    chat, batch = waits_s(records, "chat"), waits_s(records, "batch")
    requests, arrival_us = records.requests, records.requests.workload.arrival_us
    long_s = (requests.first_run_us - arrival_us)[long_job] / 1e6
    figures = (chat.mean(), np.percentile(chat, 99), batch.mean(), np.percentile(batch, 99))
    return [f"{value:,.2f}" for value in (*figures, max(chat.max(), batch.max()), long_s)]


if __name__ == "__main__":
    main()
