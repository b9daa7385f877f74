"""What each tenant may use of an executor: calls and tokens a second, and calls at once. Pure: the clock is given.

    [tenants.acme]                  # what is not said is not limited
    requests_per_second = 10        # Generate calls, also those that ask for several answers
    tokens_per_second = 5000        # of prompts and of all answers
    max_concurrent_requests = 32

    [tenants."*"]                   # of each tenant that has no table of its own
    requests_per_second = 1

A rate is a token bucket that holds what one second allows, at least one. A call takes its prompt's tokens when it
comes, and waits for that much to be there, or for a full bucket where it needs more than that holds; then its answers
take theirs as they grow, so a bucket may owe what a later call has to wait for.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

OTHERS = "*"
# So many tenants are remembered before it is looked who has used nothing for a while.
_MIN_REMEMBERED = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantLimits:
    """None: no limit."""

    requests_per_second: float | None = None
    tokens_per_second: float | None = None
    max_concurrent_requests: int | None = None


class OverQuotaError(Exception):
    """A tenant is at a limit. `limit`: its name. `retry_after_s`: when it may have room, as far as that is known."""

    def __init__(self, tenant: str, limit: str, most: float, *, retry_after_s: float | None) -> None:
        super().__init__(f"tenant {tenant!r} is at its limit of {most:g} {limit.replace('_', ' ')}")
        self.tenant = tenant
        self.limit = limit
        self.most = most
        self.retry_after_s = retry_after_s


def parse_quotas(text: str) -> Mapping[str, TenantLimits]:
    """Limits by tenant. Raises ValueError with the end of a sentence that begins with the file's name."""
    try:
        contents = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"is no TOML: {error}") from None
    if unknown := set(contents) - {"tenants"}:
        raise ValueError(f"has {sorted(unknown)[0]!r}; there is [tenants.<name>] alone")
    tenants = contents.get("tenants", {})
    if not isinstance(tenants, dict) or not all(isinstance(table, dict) for table in tenants.values()):
        raise ValueError("has a tenant that is no table")
    return {name: _limits(name, table) for name, table in tenants.items()}


def _limits(tenant: str, table: Mapping[str, Any]) -> TenantLimits:
    known = {each.name for each in fields(TenantLimits)}
    for key, value in table.items():
        if key not in known:
            raise ValueError(f"has {key!r} for tenant {tenant!r}, which is none of {', '.join(sorted(known))}")
        kinds = int if key == "max_concurrent_requests" else int | float
        if isinstance(value, bool) or not isinstance(value, kinds) or not 0 < value < math.inf:
            raise ValueError(f"has {key} = {value!r} for tenant {tenant!r}, which is no limit: a number above 0")
    return TenantLimits(**table)


@dataclass(slots=True)
class _Bucket:
    level: float = math.inf  # full
    filled_at: float = 0.0

    def refill(self, rate: float, now: float) -> None:
        self.level = min(_capacity(rate), self.level + rate * (now - self.filled_at))
        self.filled_at = now

    def missing_s(self, cost: float, rate: float) -> float:
        """How long until it has the cost, or is full. 0 or less: it has."""
        return (min(cost, _capacity(rate)) - self.level) / rate

    def is_full(self, rate: float | None, now: float) -> bool:
        if rate is None:
            return True
        self.refill(rate, now)
        return self.level >= _capacity(rate)


@dataclass(slots=True)
class _Use:
    requests: _Bucket = field(default_factory=_Bucket)
    tokens: _Bucket = field(default_factory=_Bucket)
    num_open: int = 0


def _capacity(rate: float) -> float:
    return max(1.0, rate)


class Quotas:
    """Counts what tenants use. Runs on one thread. `limits`: those in force; `clock`: seconds that never go back."""

    def __init__(self, limits: Callable[[], Mapping[str, TenantLimits]], clock: Callable[[], float]) -> None:
        self._limits = limits
        self._clock = clock
        self._uses: dict[str, _Use] = {}
        self._look_at = _MIN_REMEMBERED  # so many tenants, for some who can be forgotten

    def enter(self, tenant: str) -> None:
        """A call comes. Raises OverQuotaError, and then it has taken nothing; else `leave` is to follow."""
        limits, use = self._of(tenant), self._use(tenant)
        most, rate = limits.max_concurrent_requests, limits.requests_per_second
        if most is not None and use.num_open >= most:
            raise OverQuotaError(tenant, "max_concurrent_requests", most, retry_after_s=None)
        if rate is not None:
            self._check(tenant, "requests_per_second", use.requests, 1, rate)
            use.requests.level -= 1
        use.num_open += 1

    def take_prompt(self, tenant: str, num_tokens: int) -> None:
        """Raises OverQuotaError, and then it has taken nothing."""
        rate = self._of(tenant).tokens_per_second
        if rate is not None:
            bucket = self._use(tenant).tokens
            self._check(tenant, "tokens_per_second", bucket, num_tokens, rate)
            bucket.level -= num_tokens

    def take_answer(self, tenant: str, num_tokens: int) -> None:
        """Tokens that were computed, whether there was room for them or not."""
        rate = self._of(tenant).tokens_per_second
        if rate is not None:
            bucket = self._use(tenant).tokens
            bucket.refill(rate, self._clock())
            bucket.level -= num_tokens

    def leave(self, tenant: str) -> None:
        """The call is over."""
        self._use(tenant).num_open -= 1

    def _check(self, tenant: str, limit: str, bucket: _Bucket, cost: float, rate: float) -> None:
        bucket.refill(rate, self._clock())
        if (missing_s := bucket.missing_s(cost, rate)) > 0:
            raise OverQuotaError(tenant, limit, rate, retry_after_s=missing_s)

    def _of(self, tenant: str) -> TenantLimits:
        limits = self._limits()
        return limits.get(tenant) or limits.get(OTHERS) or TenantLimits()

    def _use(self, tenant: str) -> _Use:
        use = self._uses.get(tenant)
        if use is None:
            if len(self._uses) >= self._look_at:
                self._forget_idle()
            use = self._uses[tenant] = _Use()
        return use

    def _forget_idle(self) -> None:
        """Whoever has full buckets and no call is as one who never came."""
        now = self._clock()
        for tenant, use in list(self._uses.items()):
            limits = self._of(tenant)
            is_idle = not use.num_open and use.requests.is_full(limits.requests_per_second, now)
            if is_idle and use.tokens.is_full(limits.tokens_per_second, now):
                del self._uses[tenant]
        self._look_at = max(_MIN_REMEMBERED, 2 * len(self._uses))
