"""The scheduler of vLLM beside figures of ours: timed in a process of the environment that has it."""

from __future__ import annotations

import json
import statistics
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from harness.report import Figure

PROGRAM = Path(__file__).with_name("vllm_scheduler.py")
REFERENCE = "vLLM schedule()"


def beside_vllm(figures: Sequence[Figure], python: Path) -> list[Figure]:
    """The figures, each with what vLLM takes to schedule as many requests, as often.

    `python`: that of an environment with vLLM. What vLLM then takes to enter the sampled tokens into its books stands
    beside the ratio and not in it: in our case that is the executor's work.
    """
    sizes = sorted({(int(str(f.sizes["num_running"])), int(str(f.sizes["num_waiting"]))) for f in figures})
    num_iterations = max(len(figure.samples) for figure in figures)
    arguments = [f"{running},{waiting}" for running, waiting in sizes]
    # Isolated: neither this directory nor PYTHONPATH is on the way to its packages.
    command = [str(python), "-I", str(PROGRAM), "--iterations", str(num_iterations), *arguments]
    lines = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True).stdout.splitlines()
    times = {size: json.loads(line) for size, line in zip(sizes, lines, strict=True)}
    return [_beside(figure, times[figure.sizes["num_running"], figure.sizes["num_waiting"]]) for figure in figures]


def _beside(figure: Figure, times: dict[str, list[float]]) -> Figure:
    update_us = round(statistics.median(times["update_us"]), 2)
    return replace(
        figure,
        sizes={**figure.sizes, "reference_update_us": update_us},
        reference=REFERENCE,
        reference_samples=times["schedule_us"][: len(figure.samples)],
    )
