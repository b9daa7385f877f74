"""The scheduler of vLLM beside figures of ours: timed in a process of the environment that has it."""

from __future__ import annotations

import json
import statistics
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeAlias

from harness.report import Figure

PROGRAM = Path(__file__).with_name("vllm_scheduler.py")
REFERENCE = "vLLM schedule(), first come first served"

# By (running, waiting): microseconds of each iteration, as `schedule_us` and `update_us`.
VllmTimes: TypeAlias = Mapping[tuple[object, object], Mapping[str, Sequence[float]]]


def vllm_times(python: Path, sizes: Sequence[tuple[int, int]], num_iterations: int) -> VllmTimes:
    """Time vLLM at these sizes. `python`: that of an environment with vLLM. Raises CalledProcessError."""
    arguments = [f"{num_running},{num_waiting}" for num_running, num_waiting in sizes]
    # Isolated: neither this directory nor PYTHONPATH is on the way to its packages.
    command = [str(python), "-I", str(PROGRAM), "--iterations", str(num_iterations), *arguments]
    lines = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True).stdout.splitlines()
    return {size: json.loads(line) for size, line in zip(sizes, lines, strict=True)}


def beside_vllm(figure: Figure, times: VllmTimes) -> Figure:
    """The figure, with what vLLM takes to schedule as many requests; as it is where that was not timed.

    What vLLM then takes to enter the sampled tokens into its books stands beside the ratio and not in it: in our case
    that is the executor's work.
    """
    size = (figure.sizes.get("num_running"), figure.sizes.get("num_waiting"))
    if size not in times:
        return figure
    update_us = round(statistics.median(times[size]["update_us"]), 2)
    return replace(
        figure,
        sizes={**figure.sizes, "reference_update_us": update_us},
        reference=REFERENCE,
        reference_samples=times[size]["schedule_us"],
    )
