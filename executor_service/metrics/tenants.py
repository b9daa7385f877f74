"""Labels for tenants. Clients name tenants, so there may be any number of them; of labels there are only so many."""

from __future__ import annotations

OTHER = "other"
UNNAMED = "default"


class TenantLabels:
    """The first ``max_num_tenants`` that come have labels of their own, which stay; those after them share one."""

    def __init__(self, max_num_tenants: int) -> None:
        self._max_num_tenants = max_num_tenants
        self._known: set[str] = set()

    def of(self, tenant: str) -> str:
        name = tenant or UNNAMED
        if name in self._known:
            return name
        if len(self._known) >= self._max_num_tenants:
            return OTHER
        self._known.add(name)
        return name
