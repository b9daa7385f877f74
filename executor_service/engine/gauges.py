"""The books at one moment, for whoever watches: made by the engine's thread in microseconds, read on any thread.

What a gauge needs is copied and not yet counted: that is done by whoever reads it, and most are never read.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from executor_service.engine.books import Books, Status


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Gauges:
    """``planning_failure``, ``shortfall_reason``: why those wait that never ran, as last heard; empty: not heard of."""

    time_us: int
    num_free_blocks: int
    num_free_swap_blocks: int
    planning_failure: str
    shortfall_reason: str
    _status: NDArray[Any]  # [rows of the books]
    _tenant: NDArray[Any]  # [rows of the books]
    _num_preemptions: NDArray[Any]  # [rows of the books]
    _tenant_names: tuple[str, ...]

    @classmethod
    def of(cls, books: Books, *, time_us: int, planning_failure: str, shortfall_reason: str) -> Gauges:
        return cls(
            time_us=time_us,
            num_free_blocks=books.block_pool.num_free,
            num_free_swap_blocks=books.swap_space.num_free,
            planning_failure=planning_failure,
            shortfall_reason=shortfall_reason,
            _status=books["status"].copy(),
            _tenant=books["tenant"].copy(),
            _num_preemptions=books["num_preemptions"].copy(),
            _tenant_names=tuple(books.tenants.names),
        )

    def num_requests(self, status: Status) -> int:
        return int((self._status == status).sum())

    @property
    def num_evicted(self) -> int:
        """Of those that wait, how many ran before and are computed again."""
        return int(((self._status == Status.WAITING) & (self._num_preemptions > 0)).sum())

    def num_requests_by_tenant(self, status: Status) -> dict[str, int]:
        """Of the tenants that have requests of any status."""
        counts = np.bincount(self._tenant[self._status == status], minlength=len(self._tenant_names))
        present = np.unique(self._tenant[self._status != 0]).tolist()
        return {self._tenant_names[index]: int(counts[index]) for index in present}
