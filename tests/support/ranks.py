"""A second rank in a process of its own, for tiny models one after another: one for each would take a minute."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from executor_service.engine.limits import Limits
from executor_service.kv.cache import KVCache
from executor_service.model.loaded import LoadedModel
from executor_service.model.parallel_layers import join
from executor_service.model.runner import ModelRunner
from executor_service.model.shard import Shard
from executor_service.parallel.follow import follow
from executor_service.parallel.group import meet
from executor_service.parallel.lead import LeadCache, LeadRunner
from executor_service.sizing import spec_of_rank
from support.engine import EngineUnderTest
from support.kernels import compiled_kernels
from support.tiny_models import tiny_model

SIZE = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """What both ranks hold a part of."""

    model: str  # of TINY_MODELS
    is_compiled: bool
    limits: Limits


class TwoRanks:
    """Rank 0 is this process."""

    def __init__(self, connection: Connection[Any, Any], group: dist.ProcessGroup) -> None:
        self._connection = connection
        self._group = group

    def engine(self, part: Part, **parts: Any) -> EngineUnderTest:
        """An engine over a model of two ranks; the one before is let go."""
        self._connection.send(part)
        runner, cache = _hold(part, 0, self._group)
        tell = self._connection.send
        return EngineUnderTest(limits=part.limits, runner=LeadRunner(runner, tell), kv=LeadCache(cache, tell), **parts)


@contextmanager
def two_ranks(directory: Path) -> Iterator[TwoRanks]:
    rendezvous = directory / "rendezvous"
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_second_rank, args=(theirs, rendezvous), daemon=True)
    process.start()
    theirs.close()
    try:
        yield TwoRanks(ours, meet(rendezvous, rank=0, size=SIZE, device=torch.device("cpu")))
    finally:
        ours.close()
        process.join(timeout=20)
        process.kill()
        dist.destroy_process_group()


def _second_rank(connection: Connection[Any, Any], rendezvous: Path) -> None:
    torch.set_num_threads(1)
    group = meet(rendezvous, rank=1, size=SIZE, device=torch.device("cpu"))
    try:
        message = connection.recv()
        while True:
            message = follow(connection.recv, *_hold(message, 1, group))
    except EOFError:
        return


def _hold(part: Part, rank: int, group: dist.ProcessGroup) -> tuple[ModelRunner, KVCache]:
    kernels = compiled_kernels(torch.float32) if part.is_compiled else None
    loaded: LoadedModel = tiny_model(part.model, kernels=kernels, shard=Shard(rank=rank, size=SIZE))
    limits = part.limits
    spec = spec_of_rank(loaded.config, block_size=limits.block_size, dtype=loaded.dtype, num_ranks=SIZE)
    cache = KVCache(spec, num_blocks=limits.num_blocks, num_swap_blocks=limits.num_swap_blocks)
    join(loaded.model, group)
    return ModelRunner(loaded, cache), cache
