"""What a `Generate` call passes before anything is done for it: whose it is, and whether there is room for one more."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

from executor_service.errors import RETRY_AFTER, ServiceError
from executor_service.quotas import OverQuotaError, Quotas, parse_quotas
from metronome.inference.v1 import error_reason_pb2 as reasons
from service_shell.access import Caller
from service_shell.watched_file import WatchedFile

_MAX_WAIT_S = 3600.0


class Gate:
    """`max_num_calls`: of all tenants at once; None: no bound."""

    def __init__(self, *, max_num_calls: int | None, quota_file: Path | None) -> None:
        """Raises FileError."""
        self._max_num_calls = max_num_calls
        self._num_calls = 0
        self._quotas: Quotas | None = None
        if quota_file is not None:
            file = WatchedFile("--quota-file", quota_file, parse_quotas)
            self._quotas = Quotas(lambda: file.contents, time.monotonic)

    @contextmanager
    def enter(self, tenant: str) -> Iterator[None]:
        """Lasts as long as the call. Raises ServiceError where there is no room for it."""
        if self._max_num_calls is not None and self._num_calls >= self._max_num_calls:
            message = f"{self._num_calls} calls of Generate are open, {self._max_num_calls} may (max_num_calls)"
            raise ServiceError(reasons.ERROR_REASON_TOO_MANY_CALLS, message, retry_after=RETRY_AFTER)
        with _told():
            if self._quotas is not None:
                self._quotas.enter(tenant)
        self._num_calls += 1
        try:
            yield
        finally:
            self._num_calls -= 1
            if self._quotas is not None:
                self._quotas.leave(tenant)

    def take_prompt(self, tenant: str, num_tokens: int) -> None:
        """Raises ServiceError."""
        with _told():
            if self._quotas is not None:
                self._quotas.take_prompt(tenant, num_tokens)

    def take_answer(self, tenant: str, num_tokens: int) -> None:
        if self._quotas is not None:
            self._quotas.take_answer(tenant, num_tokens)


@contextmanager
def _told() -> Iterator[None]:
    """Whose limit was reached, and when to come again, as the contract has it."""
    try:
        yield
    except OverQuotaError as error:
        seconds = RETRY_AFTER.total_seconds() if error.retry_after_s is None else error.retry_after_s
        raise ServiceError(
            reasons.ERROR_REASON_TENANT_OVER_LIMIT,
            str(error),
            metadata={"limit": error.limit, "value": f"{error.most:g}"},
            retry_after=timedelta(seconds=min(seconds, _MAX_WAIT_S)),
            over_quota=f"tenant:{error.tenant}",
        ) from error


def tenant_of(caller: Caller, asked: str) -> str:
    """Whose request it is: the caller's own where none is named. Raises ServiceError for somebody else's."""
    if not asked and not caller.is_operator:
        return caller.tenant
    if not caller.may_act_for(asked):
        message = f"the caller is tenant {caller.tenant!r} and may not ask for another"
        raise ServiceError(reasons.ERROR_REASON_NOT_ALLOWED, message, field="tenant")
    return asked


def check_operator(caller: Caller, what: str) -> None:
    """Raises ServiceError."""
    if not caller.is_operator:
        message = f"the caller is tenant {caller.tenant!r}; {what} is for those who may act for every tenant"
        raise ServiceError(reasons.ERROR_REASON_NOT_ALLOWED, message)
