"""What rank 0 and the other ranks tell one another, pickled, over a pair of sockets that no one else holds.

Rank 0 sends `WorkerSettings`, then `Join`, then one message for each pass (its `RaggedBatch`) and each batch of copies.
A worker answers `Loaded`, then `Joining`, and then nothing, unless it has `Failed`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from executor_service.kernels.choice import KernelChoice
from executor_service.model.quantization import Quantization
from service_shell.logs import LogFormat


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSettings:
    rank: int
    size: int
    model: str
    dtype: str
    kernels: KernelChoice
    quantization: Quantization
    device: str
    block_size: int  # tokens
    threads: int  # None: torch's choice
    log_format: LogFormat
    log_level: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Join:
    """All ranks are loaded: allocate the cache, and meet the others."""

    rendezvous: Path  # a file that all ranks open
    num_blocks: int
    num_swap_blocks: int


class Direction(Enum):
    OUT = "out"
    INTO = "into"
    WITHIN = "within"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CopyBlocks:
    """Copy blocks between device and swap space, or within the device, pairwise."""

    direction: Direction
    source: NDArray[np.integer[Any]]
    target: NDArray[np.integer[Any]]


@dataclass(frozen=True, slots=True)
class Loaded:
    """The weights are there."""


@dataclass(frozen=True, slots=True)
class Joining:
    """The cache is allocated, and the rank waits for the others at the rendezvous."""


@dataclass(frozen=True, slots=True)
class Failed:
    """The rank is about to end."""

    reason: str  # one line
