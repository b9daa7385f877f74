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
_Value = TypeVar("_Value")
RankArray = NDArray[Any]  # int64 or float64


class RequestStatus(IntEnum):
    """Where a request stands, numbered as in state.proto."""

    WAITING = 1
    RUNNING = 2
    SWAPPED = 3
    LOADING = 4


_SWAPPED, _LOADING = int(RequestStatus.SWAPPED), int(RequestStatus.LOADING)


class _Column:
    """One column of requests that were taken from a table, looked up there when it is first read."""

    def __set_name__(self, owner: type[Requests], name: str) -> None:
        self.name = name

    def __get__(self, requests: Requests, owner: type[Requests]) -> IntArray:
        column: IntArray = getattr(requests.whole, self.name)[requests.rows]
        # Found there before this descriptor from now on.
        requests.__dict__[self.name] = column
        return column


class _Derived(Generic[_Value]):
    """What follows from the columns of `Requests`: worked out once for the whole table, when it is first asked for.

    `functools.cached_property` does nearly the same, and takes a lock each time.
    """

    def __init__(self, work_out: Callable[[Requests], _Value]) -> None:
        self.work_out = work_out
        self.name = work_out.__name__
        self.__doc__ = work_out.__doc__

    def __get__(self, requests: Requests, owner: type[Requests]) -> _Value:
        whole = requests.__dict__.get("whole")
        value: _Value = self.work_out(requests) if whole is None else getattr(whole, self.name)[requests.rows]
        requests.__dict__[self.name] = value
        return value


class _Whole:
    """The table that requests are rows of: themselves, unless they were taken from one.

    A table does not hold itself, or its memory would be free only when cycles are looked for.
    """

    def __get__(self, requests: Requests, owner: type[Requests]) -> Requests:
        return requests


class Requests:
    """A request table, or some of its rows in any order.

    The columns are those of `RequestTable` in state.proto, where each is described. A whole table is one matrix, int64
    [num_columns, num_requests]. What is taken from it are row numbers, so that taking costs next to nothing: columns
    are looked up in the `whole` when they are read, and so is what follows from them, which is worked out once for all.
    """

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

    whole = _Whole()

    def __init__(self, matrix: IntArray, rank: RankArray | None = None) -> None:
        self.matrix = matrix
        self.rank = rank
        # The columns are the rows of the matrix.
        self.__dict__.update(zip(COLUMN_NAMES, matrix, strict=True))

    @classmethod
    def from_columns(cls, num_requests: int, columns: Mapping[str, Any]) -> Requests:
        """Copy columns, each of `num_requests` integers, into a table; those that are left out are 0 in every row."""
        matrix = np.zeros((len(COLUMN_NAMES), num_requests), dtype=np.int64)
        for name, values in columns.items():
            matrix[COLUMN_NAMES.index(name)] = values
        return cls(matrix)

    def __len__(self) -> int:
        rows = self.__dict__.get("rows")
        return int(self.matrix.shape[1]) if rows is None else len(rows)

    @_Derived
    def rows(self) -> IntArray:
        """The numbers of the rows in the whole table."""
        return np.arange(self.matrix.shape[1])

    def ranked_by(self, rank: RankArray) -> Requests:
        """This table with a rank."""
        ranked = Requests.__new__(Requests)
        # Neither the columns nor what follows from them depends on the rank.
        ranked.__dict__ = {**self.__dict__, "rank": rank}
        return ranked

    def of(self, rows: IntArray) -> Requests:
        """These rows of the whole table, in this order."""
        whole, selection = self.whole, Requests.__new__(Requests)
        selection.whole = whole
        selection.rows = rows
        if whole.rank is None:
            selection.rank = None
        return selection

    def take(self, positions: IntArray) -> Requests:
        """Those at these positions, in this order."""
        return self.of(self.rows[positions])

    def first(self, count: int) -> Requests:
        """The first `count`."""
        return self.of(self.rows[:count])

    def beside(self, others: Requests) -> Requests:
        """These, then the others."""
        return self.of(np.concatenate((self.rows, others.rows)))

    def having(self, status: RequestStatus) -> BoolArray:
        """Which requests stand there."""
        # NumPy asks an enum for half a dozen attributes before it takes it for a number.
        mask: BoolArray = self.status == int(status)
        return mask

    @_Derived
    def rank(self) -> RankArray | None:
        """What the policy orders by, the least first (see `rank.py`); None: all are alike, or nobody ranked yet."""
        return None

    @_Derived
    def least(self) -> Mapping[str, int]:
        """Of a whole table: the least value of each column; 0 where there are no rows."""
        return self._by_column(np.minimum)

    @_Derived
    def greatest(self) -> Mapping[str, int]:
        """Of a whole table: the greatest value of each column; 0 where there are no rows."""
        return self._by_column(np.maximum)

    def _by_column(self, extreme: np.ufunc) -> Mapping[str, int]:
        if self.matrix.size == 0:
            return dict.fromkeys(COLUMN_NAMES, 0)
        return dict(zip(COLUMN_NAMES, extreme.reduce(self.matrix, axis=1).tolist(), strict=True))

    @property
    def running(self) -> Requests:
        """Of a whole table: those that run, in no order."""
        return self.of(self._running)

    @property
    def loading(self) -> Requests:
        """Of a whole table: those that load, in no order."""
        return self.of(rows_where(self.having(RequestStatus.LOADING)) if self.anyone_loads else NO_ROWS)

    @property
    def on_device(self) -> Requests:
        """Of a whole table: those that run or load, in no order."""
        return self.running.beside(self.loading) if self.anyone_loads else self.running

    @property
    def queued(self) -> Requests:
        """Of a whole table: those that wait or are swapped, in no order."""
        is_queued = self.having(RequestStatus.WAITING)
        return self.of(rows_where(is_queued | self.having(RequestStatus.SWAPPED) if self.anyone_swapped else is_queued))

    @_Derived
    def _running(self) -> IntArray:
        return rows_where(self.having(RequestStatus.RUNNING))

    @_Derived
    def anyone_loads(self) -> bool:
        """Of a whole table: whether anyone loads."""
        return self.greatest["status"] == _LOADING

    @_Derived
    def anyone_swapped(self) -> bool:
        """Of a whole table: whether anyone may be swapped."""
        return self.greatest["status"] >= _SWAPPED

    @_Derived
    def anyone_ran_before(self) -> bool:
        """Of a whole table: whether any of those that wait or are swapped may have run before."""
        return self.anyone_swapped or self.greatest["num_preemptions"] > 0

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
    def never_ran(self) -> BoolArray:
        """Which of those that wait or are swapped have not run before."""
        return ~self.ran_before

    @_Derived
    def in_decode(self) -> BoolArray:
        """Whose newest token is the only one that they lack."""
        in_decode: BoolArray = np.logical_and(self.num_output_tokens, self.num_lacking_tokens == 1)
        return in_decode


NO_ROWS: IntArray = np.zeros(0, dtype=np.int64)


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

    `now_us` and `tenants` are those of the cluster, the same in each of its executors. `latency` None: unknown.
    `requests`: a whole table. No tenants: one unnamed tenant of weight 1.
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
