"""What a decision is made from: the columns of a cluster state.

    ClusterState
    └── executors: ExecutorState
        ├── limits: ExecutorLimits
        ├── latency: LatencyModel
        └── requests: Requests     one matrix, one row a column of the request table

Terms of a request with p prompt tokens, g output tokens and c computed tokens:

- It lacks p + g - c tokens. The newest token is stored by the pass that computes the next one, so c <= p + g - 1.
- It is in decode when g > 0 and it lacks exactly one token, else in prefill.
- After a pass that runs n of its tokens it holds ceil((c + n) / block_size) blocks.

A state is valid when `validate.py` says so; the rest of the core relies on that and checks nothing again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]
_Array = TypeVar("_Array")
RankArray = NDArray[Any]  # int64 or float64


class RequestStatus(IntEnum):
    """Where a request stands, numbered as in state.proto."""

    WAITING = 1
    RUNNING = 2
    SWAPPED = 3
    LOADING = 4


class _Column:
    """One column of `Requests`: a view of its row of the matrix, made when it is first asked for."""

    def __init__(self, index: int) -> None:
        self.index = index

    def __set_name__(self, owner: type[Requests], name: str) -> None:
        self.name = name

    def __get__(self, requests: Requests, owner: type[Requests]) -> IntArray:
        column: IntArray = requests.matrix[self.index]
        # Found there before this descriptor from now on.
        requests.__dict__[self.name] = column
        return column


class _Derived(Generic[_Array]):
    """What follows from the columns of `Requests`, worked out when it is first asked for.

    `functools.cached_property` does the same, and takes a lock each time.
    """

    def __init__(self, work_out: Callable[[Requests], _Array]) -> None:
        self.work_out = work_out
        self.name = work_out.__name__
        self.__doc__ = work_out.__doc__

    def __get__(self, requests: Requests, owner: type[Requests]) -> _Array:
        value = self.work_out(requests)
        requests.__dict__[self.name] = value
        return value


@dataclass(frozen=True, eq=False)
class Requests:
    """The request table. `matrix`: int64 [num_columns, num_requests].

    One matrix instead of an array a column, so that taking some requests is one operation and not eighteen. The
    columns are those of `RequestTable` in state.proto, where each is described. `rank`: [num_requests], what the policy
    orders by, the least first (see `rank.py`); None: all are alike, as in a table that nobody ranked yet. What follows
    from the columns is worked out once for each table.
    """

    matrix: IntArray
    rank: RankArray | None = None

    id = _Column(0)
    status = _Column(1)
    arrival_time_us = _Column(2)
    priority = _Column(3)
    tenant = _Column(4)
    num_prompt_tokens = _Column(5)
    num_output_tokens = _Column(6)
    num_computed_tokens = _Column(7)
    max_output_tokens = _Column(8)
    expected_output_tokens = _Column(9)
    num_draft_tokens = _Column(10)
    deadline_us = _Column(11)
    num_blocks = _Column(12)
    num_shared_blocks = _Column(13)
    num_preemptions = _Column(14)
    last_run_iteration = _Column(15)
    times_overtaken = _Column(16)
    next_block_hash = _Column(17)

    @classmethod
    def from_columns(cls, num_requests: int, columns: Mapping[str, Any]) -> Requests:
        """Copy columns, each of `num_requests` integers, into a table; those that are left out are 0 in every row."""
        matrix = np.zeros((len(COLUMN_NAMES), num_requests), dtype=np.int64)
        for name, values in columns.items():
            matrix[COLUMN_NAMES.index(name)] = values
        return cls(matrix)

    def __len__(self) -> int:
        return int(self.matrix.shape[1])

    def take(self, rows: IntArray) -> Requests:
        """These rows, in this order."""
        return Requests(self.matrix.take(rows, axis=1), None if self.rank is None else self.rank.take(rows))

    def first(self, count: int) -> Requests:
        """The first `count` rows."""
        return Requests(self.matrix[:, :count], None if self.rank is None else self.rank[:count])

    def beside(self, others: Requests) -> Requests:
        """These requests, then the others of the same table."""
        rank = None
        if self.rank is not None and others.rank is not None:
            rank = np.concatenate((self.rank, others.rank))
        return Requests(np.concatenate((self.matrix, others.matrix), axis=1), rank)

    def having(self, status: RequestStatus) -> BoolArray:
        """Which requests stand there."""
        # NumPy asks an enum for half a dozen attributes before it takes it for a number.
        mask: BoolArray = self.status == int(status)
        return mask

    @_Derived
    def num_tokens(self) -> IntArray:
        """Prompt and output tokens: what is stored once the next token is computed."""
        return self.num_prompt_tokens + self.num_output_tokens

    @_Derived
    def num_lacking_tokens(self) -> IntArray:
        """Tokens to compute before the next one is sampled, >= 1."""
        return self.num_tokens - self.num_computed_tokens

    @_Derived
    def ran_before(self) -> BoolArray:
        """Which of those that wait or are swapped have run before."""
        before: BoolArray = self.having(RequestStatus.SWAPPED) | (self.num_preemptions > 0)
        return before

    @_Derived
    def in_decode(self) -> BoolArray:
        """Whose newest token is the only one that they lack."""
        lacks_one: BoolArray = self.num_lacking_tokens == 1
        return lacks_one & (self.num_output_tokens > 0)


def length_of_prefix(mask: BoolArray) -> int:
    """How many of the first are all true."""
    first_false = int(mask.argmin()) if len(mask) > 0 else 0
    return len(mask) if len(mask) > 0 and mask[first_false] else first_false


def rows_where(mask: BoolArray) -> IntArray:
    """The rows that a mask selects, ascending."""
    return mask.nonzero()[0]


COLUMN_NAMES = tuple(name for name, value in vars(Requests).items() if isinstance(value, _Column))


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


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutorState:
    """One executor just before the pass to be planned: all that its plan may depend on.

    `now_us` and `tenants` are those of the cluster, the same in each of its executors. `latency` None: unknown. No
    tenants: one unnamed tenant of weight 1.
    """

    executor_id: str
    iteration: int
    now_us: int
    limits: ExecutorLimits
    num_free_blocks: int
    num_free_swap_blocks: int = 0
    latency: LatencyModel | None = None
    requests: Requests
    tenants: tuple[Tenant, ...] = ()
    draining: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterState:
    """All that a decision may depend on, the clock included."""

    now_us: int
    executors: tuple[ExecutorState, ...]
    tenants: tuple[Tenant, ...] = field(default=())
