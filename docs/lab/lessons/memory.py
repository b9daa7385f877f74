"""Lesson 3: wait for room, swap or compute again, as the cache shrinks."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from executor_service.kv.prefix_cache import PrefixScope
from lesson import write_lesson
from metronome_lab.figures import Figures, Targets, figures_of
from metronome_lab.hardware.profile import load_hardware
from metronome_lab.records import Records
from metronome_lab.report.charts import Chart, Panel, Series
from metronome_lab.simulation import Fleet, simulate
from metronome_lab.workload.generate import generate
from metronome_lab.workload.requests import Workload
from scheduler_service.core.policy import Admission, Eviction, Policy, Preemption

BLOCKS = (6000, 3000, 2000, 1500, 1000)
BOUND = 1500
SLOW_COPY_US = 3000.0
WORKLOAD = {
    "num_requests": 200,
    "streams": [
        {
            "arrivals": {"kind": "poisson", "rate": 4.0},
            "prompt_tokens": {"kind": "lognormal", "median": 400, "sigma": 0.6, "most": 4000},
            "output_tokens": {"kind": "lognormal", "median": 300, "sigma": 0.8, "most": BOUND},
        }
    ],
}
POLICIES = {
    "wait (RESERVE)": Policy(admission=Admission.RESERVE, preemption=Preemption.NEVER),
    "SWAP": Policy(eviction=Eviction.SWAP),
    "RECOMPUTE": Policy(eviction=Eviction.RECOMPUTE),
    "AUTO": Policy(eviction=Eviction.AUTO),
}
WORDS = """
A request may say that it wants up to 1,500 tokens and stop after 300. Who reserves room for the bound never evicts
anybody, and keeps most of the cache empty: requests wait. Who admits what fits now fills the cache, and evicts the
last to come when blocks run out: its KV is copied to the host, or computed again. Which is cheaper depends on the
bus. On the left a block is copied in 84 us, on the right in 3 ms; AUTO compares the two by the latency model and
takes the cheaper. The prefix cache is off, since it gives back much of what was dropped while nobody needs the
blocks.

Drawn requests (`docs/lab/lessons/memory.py`), 4 a second, on Llama 3.1 8B and one A100 whose cache is cut down.
"""


def main() -> None:
    workload = generate(WORKLOAD, name="memory", seed=1).bounded_by(BOUND)
    panels, rows = [], {}
    for bus, swap_block_us in (("fast bus", 84.0), ("slow bus", SLOW_COPY_US)):
        lines = []
        for name, policy in POLICIES.items():
            of = [figures_of(_play(workload, policy, size, swap_block_us), _NONE) for size in BLOCKS]
            lines.append(Series(name=name, x=np.array(BLOCKS), y=np.array([f.e2e.mean_ms / 1e3 for f in of])))
            rows[f"{name}, {bus}"] = [f"{figures.e2e.mean_ms / 1e3:.1f}" for figures in of] + _last(of[-1])
        panels.append(Panel(title=bus, x_label="KV blocks", y_label="mean answer, s", series=tuple(lines)))
    write_lesson(
        Chart(name="memory", title="When the cache is short", panels=tuple(panels)),
        words=WORDS,
        headings=(*(f"{size:,} blocks, s" for size in BLOCKS), "evictions at 1,000", "tokens computed again"),
        rows=rows,
    )


_NONE = Targets(ttft_us=1, itl_us=1)


def _last(figures: Figures) -> list[str]:
    """Of the smallest cache."""
    return [f"{figures.num_preemptions:,}", f"{figures.num_recomputed_tokens:,}"]


def _play(workload: Workload, policy: Policy, num_blocks: int, swap_block_us: float) -> Records:
    hardware = load_hardware("a100-80gb-llama3-8b")
    cut = replace(
        hardware,
        limits=replace(hardware.limits, num_blocks=num_blocks),
        latency=replace(hardware.latency, swap_block_us=swap_block_us),
        prefix_scope=PrefixScope.OFF,
    )
    return simulate(workload, Fleet(hardware=cut), policy)


if __name__ == "__main__":
    main()
