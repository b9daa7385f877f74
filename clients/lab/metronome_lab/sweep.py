"""Many runs, several at a time, each in a process of its own."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor, as_completed
from typing import TypeVar

from metronome_lab.records import Records
from metronome_lab.runs import Run

_Key = TypeVar("_Key")
_Result = TypeVar("_Result")


def num_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def play(run: Run) -> Records:
    """One run, all of its records."""
    return run.play()


def play_all(
    runs: Mapping[_Key, Run],
    summarize: Callable[[Run], _Result],
    *,
    jobs: int,
    on_progress: Callable[[int], None] = lambda num_done: None,
) -> dict[_Key, _Result]:
    """What `summarize`, a function of a module, makes of each, in the order of `runs`. Raises what it raises."""
    if jobs <= 1 or len(runs) <= 1:
        return _one_by_one(runs, summarize, on_progress)
    # Not forked: the planning core's machine code and open channels do not survive that.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(max_workers=min(jobs, len(runs)), mp_context=context) as pool:
        pending = {pool.submit(summarize, run): key for key, run in runs.items()}
        results: dict[_Key, _Result] = {}
        try:
            for number, done in enumerate(as_completed(pending), 1):
                results[pending[done]] = done.result()
                on_progress(number)
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    return {key: results[key] for key in runs}


def _one_by_one(
    runs: Mapping[_Key, Run], summarize: Callable[[Run], _Result], on_progress: Callable[[int], None]
) -> dict[_Key, _Result]:
    results = {}
    for number, (key, run) in enumerate(runs.items(), 1):
        results[key] = summarize(run)
        on_progress(number)
    return results
