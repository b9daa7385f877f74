"""Compiles the core, or loads what was compiled, before anybody asks: `python -m scheduler_service.warm_up`.

The service does so when it starts, and an image when it is built. It calls each function that Python calls in the core
once; what they are called with later is of the same types, so nothing compiles while somebody waits.
"""

from __future__ import annotations

import shutil
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
import structlog

from scheduler_service.core import compiled
from scheduler_service.core.explain import explain
from scheduler_service.core.placement import Placement, place
from scheduler_service.core.plan import plan
from scheduler_service.core.policy import Policy
from scheduler_service.core.state import (
    CachedPrefixes,
    ClusterState,
    ExecutorLimits,
    ExecutorState,
    Requests,
    RequestStatus,
)
from scheduler_service.core.validate import validate

UNUSED_SECONDS = 7 * 24 * 3600

log = structlog.get_logger(__name__)


def warm_up() -> None:
    """Check, plan, explain and place a small state. Takes a second, and half a minute where nothing is kept yet."""
    started = time.perf_counter()
    executor = ExecutorState(
        executor_id="warm-up",
        iteration=1,
        now_us=1,
        limits=ExecutorLimits(max_num_batched_tokens=64, max_num_seqs=4, block_size=16, num_blocks=8, max_model_len=99),
        num_free_blocks=8,
        requests=_waiting(1, 2),
        prefixes=CachedPrefixes(np.zeros(1, dtype=np.int64), np.zeros(1, dtype=np.int64)),
    )
    cluster, policy = ClusterState(now_us=1, executors=(executor,)), Policy()
    validate(cluster)
    explain(cluster, plan(cluster, policy), policy)
    place(cluster, _waiting(3), np.zeros((1, 1), dtype=np.int64), Placement.LEAST_LOADED, 0, frozenset())
    compiled.mark_as_complete()
    if compiled.CACHE_DIRECTORY is not None:
        drop_unused(compiled.CACHE_DIRECTORY)
    seconds = round(time.perf_counter() - started, 2)
    if compiled.CACHE_DIRECTORY is None:
        log.warning("core_compiled_for_this_process_alone", seconds=seconds, why="no directory to keep it in")
    else:
        log.info("core_compiled", seconds=seconds, kept_in=str(compiled.CACHE_DIRECTORY))


def drop_unused(in_use: Path) -> None:
    """Remove what was compiled of other versions beside `in_use`, and not used for a week."""
    for mark in in_use.parent.glob(f"compiled-*/{compiled.COMPLETE}"):
        with suppress(OSError):  # another process was first, or it is not ours to remove
            if mark.parent != in_use and time.time() - mark.stat().st_mtime > UNUSED_SECONDS:
                shutil.rmtree(mark.parent)


def _waiting(*ids: int) -> Requests:
    """Requests of 16 prompt tokens."""
    columns = {"id": ids, "status": RequestStatus.WAITING.value, "num_prompt_tokens": 16}
    return Requests.from_columns(len(ids), columns)


if __name__ == "__main__":
    warm_up()
