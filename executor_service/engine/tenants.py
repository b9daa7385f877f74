"""Who is served, and how much of it each has had: the tenants of the requests in the books.

Names come from clients, so there may be any number of them in time: a tenant has an index while it has requests, and an
index is used again. Its service is remembered for a while longer, since a policy that shares fairly must know a tenant
that comes back: it starts where it was, or where the least served of the active ones is, if that is more, so that
nobody saves up credit by being idle (virtual token counters: Sheng et al., arXiv 2401.00588).

Service is one figure in tokens: those computed, and for each block held during a pass what the plan of it charges. It
could not be kept as two figures that a scheduler adds up: which of the active tenants is the least served, where one
that comes back starts, depends on the charge.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import numpy as np
from numpy.typing import NDArray

MAX_REMEMBERED = 1024


class Tenants:
    def __init__(self) -> None:
        self.names: list[str] = []  # each once; those of free indexes are stale
        self._service: list[float] = []
        self._num_requests: list[int] = []  # 0: the index is free for another name
        self._idle: OrderedDict[str, float] = OrderedDict()  # service of those without requests, oldest first
        self.kv_residency_charge = 0.0  # tokens for a block held during a pass, as the last plan that said so has it

    @property
    def service(self) -> NDArray[np.float64]:
        """[num_indexes] service of each, in tokens."""
        return np.array(self._service, dtype=np.float64)

    def enter(self, name: str) -> int:
        """Count one more request of a tenant. Returns its index."""
        if name in self.names and self._num_requests[self.names.index(name)]:
            index = self.names.index(name)
        else:
            index = self._take_index(name)
        self._num_requests[index] += 1
        return index

    def leave(self, index: int) -> None:
        """Count one request less."""
        self._num_requests[index] -= 1
        if not self._num_requests[index]:
            self._idle[self.names[index]] = self._service[index]
            if len(self._idle) > MAX_REMEMBERED:
                self._idle.popitem(last=False)

    def service_after(
        self,
        indexes: NDArray[np.integer[Any]],
        num_tokens: NDArray[np.integer[Any]],
        num_blocks: NDArray[np.integer[Any]],
    ) -> NDArray[np.float64]:
        """[num_indexes] what ``service`` is after a pass in which requests of these tenants computed so many tokens and
        held so many blocks. Whole numbers are added up before they meet the charge, so their order does not matter.
        """
        cost = np.bincount(indexes, weights=num_tokens, minlength=len(self.names))
        if self.kv_residency_charge > 0:
            held = np.bincount(indexes, weights=num_blocks, minlength=len(self.names))
            cost = cost + self.kv_residency_charge * held
        return self.service + cost

    def serve(
        self,
        indexes: NDArray[np.integer[Any]],
        num_tokens: NDArray[np.integer[Any]],
        num_blocks: NDArray[np.integer[Any]],
    ) -> None:
        """Count a pass: tokens computed for requests of these tenants, and blocks that they held."""
        self._service = self.service_after(indexes, num_tokens, num_blocks).tolist()

    def _take_index(self, name: str) -> int:
        active = [service for service, count in zip(self._service, self._num_requests, strict=True) if count]
        service = max(self._idle.pop(name, 0.0), min(active, default=0.0))
        if name in self.names:
            index = self.names.index(name)
            self._service[index] = service
        elif 0 in self._num_requests:
            index = self._num_requests.index(0)
            self.names[index], self._service[index] = name, service
        else:
            index = len(self.names)
            self.names.append(name)
            self._service.append(service)
            self._num_requests.append(0)
        return index
