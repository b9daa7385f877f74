"""What the executor tells the scheduler: the books, as they stand or as a running pass will leave them.

Overlapped planning asks for the plan of the next pass while a pass runs. By then almost all that the pass will do is
known: how many tokens each request computes, and who ends because its answer has the length asked for. Only what the
tokens say (an end token, a stop string) is not; a request that ends so is dropped from the plan when it is applied.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from executor_service.engine.books import SCHEDULER_COLUMNS, Books, Rows
from executor_service.engine.limits import Limits


@dataclass(frozen=True, slots=True, kw_only=True)
class Latency:
    """The fitted cost of a pass, microseconds each; see LatencyModel in the contract."""

    pass_us: float
    prefill_token_us: float
    decode_request_us: float
    kv_token_us: float
    swap_block_us: float
    relative_error: float


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Snapshot:
    """A copy: the books go on changing, this does not."""

    iteration: int  # the pass to plan
    now_us: int
    limits: Limits
    num_free_blocks: int
    num_free_swap_blocks: int
    latency: Latency | None
    tenants: tuple[str, ...]  # [num_tenants] names; `tenant` is an index into them
    tenant_service: NDArray[np.float64]  # [num_tenants] in tokens; see tenants.py
    columns: dict[str, NDArray[Any]]  # SCHEDULER_COLUMNS, [num_requests] each

    @property
    def num_requests(self) -> int:
        return len(self.columns["id"])


def take(books: Books, *, now_us: int, latency: Latency | None) -> Snapshot:
    """The books as they stand between two passes."""
    rows = books.rows()
    return Snapshot(
        iteration=books.iteration,
        now_us=now_us,
        limits=books.limits,
        num_free_blocks=books.block_pool.num_free,
        num_free_swap_blocks=books.swap_space.num_free,
        latency=latency,
        tenants=tuple(books.tenants.names),
        tenant_service=books.tenants.service,
        columns={name: books[name][rows] for name in SCHEDULER_COLUMNS},
    )


def project(
    books: Books, rows: Rows, num_tokens: NDArray[np.int32], *, now_us: int, latency: Latency | None
) -> Snapshot:
    """The books as the pass over ``num_tokens`` of each of ``rows`` will leave them, its plan being applied already."""
    projected = {name: books[name].copy() for name in SCHEDULER_COLUMNS}
    sampled = rows[books.num_lacking_tokens(rows) == num_tokens]
    projected["num_computed_tokens"][rows] += num_tokens
    projected["last_run_iteration"][rows] = books.iteration
    projected["num_output_tokens"][sampled] += 1
    finished = sampled[projected["num_output_tokens"][sampled] >= projected["max_output_tokens"][sampled]]
    projected["status"][finished] = 0
    remaining = np.flatnonzero(projected["status"])
    return Snapshot(
        iteration=books.iteration + 1,
        now_us=now_us,
        limits=books.limits,
        num_free_blocks=books.block_pool.num_free + int(projected["num_blocks"][finished].sum()),
        num_free_swap_blocks=books.swap_space.num_free,
        latency=latency,
        tenants=tuple(books.tenants.names),
        tenant_service=books.tenants.service_after(*books.costs_of_pass(rows, num_tokens)),
        columns={name: column[remaining] for name, column in projected.items()},
    )
