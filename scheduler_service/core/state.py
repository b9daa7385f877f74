"""What a decision is made from: the columns of a cluster state.

    ClusterState
    ├── tenants: Tenants
    └── executors: ExecutorState
        ├── limits: ExecutorLimits
        ├── latency: LatencyModel
        ├── requests: Requests     one matrix, one row a column of the request table
        └── prefixes: CachedPrefixes

Terms of a request with p prompt tokens, g output tokens and c computed tokens:

- It lacks p + g - c tokens. The newest token is stored by the pass that computes the next one, so c <= p + g - 1.
- It is in decode when g > 0 and it lacks exactly one token, else in prefill.
- After a pass that runs n of its tokens it holds ceil((c + n) / block_size) blocks.

A state is valid when `validate.py` says so; the rest of the core relies on that and checks nothing again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]


class RequestStatus(IntEnum):
    """Where a request stands, numbered as in state.proto."""

    WAITING = 1
    RUNNING = 2
    SWAPPED = 3
    LOADING = 4


COLUMN_NAMES = (
    "id",
    "status",
    "arrival_time_us",
    "priority",
    "tenant",
    "num_prompt_tokens",
    "num_output_tokens",
    "num_computed_tokens",
    "max_output_tokens",
    "expected_output_tokens",
    "num_draft_tokens",
    "deadline_us",
    "num_blocks",
    "num_shared_blocks",
    "num_preemptions",
    "last_run_iteration",
    "times_overtaken",
    "next_block_hash",
    "cached_prefix",
)


class _Column:
    """One column of a table: a row of its matrix."""

    def __set_name__(self, owner: type[Requests], name: str) -> None:
        self.index = COLUMN_NAMES.index(name)

    def __get__(self, requests: Requests, owner: type[Requests]) -> IntArray:
        column: IntArray = requests.matrix[self.index]
        return column


class Requests:
    """A request table: one matrix, int64 [num_columns, num_requests].

    The columns are those of `RequestTable` in state.proto, where each is described.
    """

    __slots__ = ("matrix",)

    id = _Column()
    status = _Column()
    arrival_time_us = _Column()
    priority = _Column()
    tenant = _Column()
    num_prompt_tokens = _Column()
    num_output_tokens = _Column()
    num_computed_tokens = _Column()
    max_output_tokens = _Column()
    expected_output_tokens = _Column()
    num_draft_tokens = _Column()
    deadline_us = _Column()
    num_blocks = _Column()
    num_shared_blocks = _Column()
    num_preemptions = _Column()
    last_run_iteration = _Column()
    times_overtaken = _Column()
    next_block_hash = _Column()
    cached_prefix = _Column()

    def __init__(self, matrix: IntArray) -> None:
        self.matrix = np.ascontiguousarray(matrix)

    @classmethod
    def from_columns(cls, num_requests: int, columns: Mapping[str, Any]) -> Requests:
        """Copy columns, each of `num_requests` integers, into a table; those that are left out are 0 in every row."""
        matrix = np.zeros((len(COLUMN_NAMES), num_requests), dtype=np.int64)
        for name, values in columns.items():
            matrix[COLUMN_NAMES.index(name)] = values
        return cls(matrix)

    def __len__(self) -> int:
        return self.matrix.shape[1]


NO_ROWS: IntArray = np.zeros(0, dtype=np.int64)


class CachedPrefixes:
    """Free blocks that several would reuse, as a tree: `CachedPrefixTable` in state.proto. int64 [num_prefixes]."""

    __slots__ = ("num_free_blocks", "parent")

    def __init__(self, parent: IntArray, num_free_blocks: IntArray) -> None:
        self.parent = parent
        self.num_free_blocks = num_free_blocks

    def __len__(self) -> int:
        return len(self.parent)


NO_PREFIXES = CachedPrefixes(NO_ROWS, NO_ROWS)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutorLimits:
    """Sizes of an executor, as in state.proto. `max_num_waiting` None: no bound."""

    max_num_batched_tokens: int
    max_num_seqs: int
    block_size: int
    num_blocks: int
    num_swap_blocks: int = 0
    max_model_len: int
    max_num_waiting: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LatencyModel:
    """What a pass costs, in microseconds, as in state.proto."""

    pass_us: float = 0.0
    prefill_token_us: float = 0.0
    decode_request_us: float = 0.0
    kv_token_us: float = 0.0
    swap_block_us: float = 0.0
    relative_error: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Tenant:
    """Who requests belong to: share relative to others, and service so far, in tokens."""

    name: str
    weight: float = 1.0
    service: float = 0.0


class Tenants:
    """A table of tenants: `names`, and beside them `weight` and `service`, each [num_tenants]."""

    __slots__ = ("names", "service", "weight")

    def __init__(self, names: tuple[str, ...], weight: FloatArray, service: FloatArray) -> None:
        self.names = names
        self.weight = weight
        self.service = service

    @classmethod
    def of(cls, *tenants: Tenant) -> Tenants:
        """A table of these."""
        return cls(
            tuple(tenant.name for tenant in tenants),
            np.array([tenant.weight for tenant in tenants], dtype=np.float64),
            np.array([tenant.service for tenant in tenants], dtype=np.float64),
        )

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, index: int) -> Tenant:
        return Tenant(name=self.names[index], weight=float(self.weight[index]), service=float(self.service[index]))

    def __iter__(self) -> Iterator[Tenant]:
        return map(self.__getitem__, range(len(self)))


NO_TENANTS = Tenants.of()
# Whom all requests belong to where no tenants are named.
NOBODY_NAMED = Tenants.of(Tenant(name=""))


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutorState:
    """One executor just before the pass to be planned: all that its plan may depend on.

    `now_us` and `tenants` are those of the cluster, the same in each of its executors. `latency` None: unknown.
    No tenants: one unnamed tenant of weight 1.
    """

    executor_id: str
    iteration: int
    now_us: int
    limits: ExecutorLimits
    num_free_blocks: int
    num_free_swap_blocks: int = 0
    latency: LatencyModel | None = None
    requests: Requests
    prefixes: CachedPrefixes = NO_PREFIXES
    tenants: Tenants = NO_TENANTS
    draining: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterState:
    """All that a decision may depend on, the clock included."""

    now_us: int
    executors: tuple[ExecutorState, ...]
    tenants: Tenants = field(default=NO_TENANTS)
