"""When a call is tried again: only where the contract allows it (proto/README.md), and not for long.

It allows it for UNAVAILABLE, and for RESOURCE_EXHAUSTED where the service says when to come again, for calls without
side effects and for `Generate` until its first message, since an executor drops the request of a call that breaks off.
The pauses grow and are drawn at random below that ("full jitter"), so that clients that failed together do not come
back together. gRPC's own retries know neither `RetryInfo` nor full jitter, and are off.
"""

from __future__ import annotations

import math
import random
import time
from dataclasses import dataclass

import grpc

from metronome_client.errors import MetronomeError


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """How often, and with what pauses. `max_attempts`: the first one included; 1: nothing is repeated."""

    max_attempts: int = 5
    initial_backoff_s: float = 0.1
    max_backoff_s: float = 5.0


DEFAULT_RETRY = RetryPolicy()


class Attempts:
    """The tries of one call, within one deadline. `timeout_s`: `math.inf` for none."""

    def __init__(self, retry: RetryPolicy, timeout_s: float, *, several_addresses: bool) -> None:
        self._retry = retry
        self._deadline = time.monotonic() + timeout_s
        self._several_addresses = several_addresses
        self._attempt = 1

    @property
    def timeout_s(self) -> float | None:
        """What is left for the next try, as grpc takes it."""
        left_s = self._deadline - time.monotonic()
        return None if math.isinf(left_s) else max(left_s, 0.0)

    def pause_s(self, error: MetronomeError) -> float:
        """How long to wait before the next try. Raises the error where there is none.

        At least what the service asked for, and a random part of the backoff; with another address to go to, only the
        latter. Source: "Exponential Backoff and Jitter", AWS Architecture Blog, 2015.
        """
        if self._attempt >= self._retry.max_attempts or not _may_be_retried(error):
            raise error from None
        if error.reason == "DRAINING" and not self._several_addresses:
            raise error from None  # it does not come back
        backoff_s = min(self._retry.max_backoff_s, self._retry.initial_backoff_s * 2 ** (self._attempt - 1))
        asked_s = 0.0 if self._several_addresses else error.retry_delay_s or 0.0
        pause_s = asked_s + random.uniform(0, backoff_s)
        if time.monotonic() + pause_s >= self._deadline:
            raise error from None
        self._attempt += 1
        return pause_s


def _may_be_retried(error: MetronomeError) -> bool:
    if error.code is grpc.StatusCode.RESOURCE_EXHAUSTED:
        return error.retry_delay_s is not None
    return error.code is grpc.StatusCode.UNAVAILABLE
