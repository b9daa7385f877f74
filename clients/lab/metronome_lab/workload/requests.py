"""A workload: requests in order of arrival, as columns.

What no trace publishes is made up here, and said so in the result: the bound on an answer is its recorded length unless
a larger one is set, and the length that is expected of it is the recorded one, or wrong by a factor that is drawn, or
unknown.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metronome_lab.errors import LabError

IntArray = NDArray[np.int64]
TokenArray = NDArray[np.int32]

# Tokens that one id of `prefixes` stands for, in the published traces.
PREFIX_BLOCK_TOKENS = 512
MAX_TOKENS = 2**31 - 1
MAX_ARRIVAL_US = 2**53  # whole microseconds that a float still tells apart


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Workload:
    """[num_requests] each. `arrival_us`: after the start of the run, ascending; `tenant`: index into `tenants`.

    `max_output_tokens` bounds the answer, which ends after `num_output_tokens`; the scheduler knows the bound alone.
    `expected_output_tokens`: what it is told of the length; 0: nothing. `deadline_us`: so long after its arrival it is
    ended, complete or not; 0: never. `prefixes[i]`: ids of the blocks that prompt i begins with, `PREFIX_BLOCK_TOKENS`
    tokens each, each for the block and all before it; none: it begins as no other.
    """

    name: str
    ids: Sequence[str]
    arrival_us: IntArray
    num_prompt_tokens: TokenArray
    num_output_tokens: TokenArray
    max_output_tokens: TokenArray
    expected_output_tokens: TokenArray
    tenant: TokenArray
    priority: TokenArray
    deadline_us: IntArray
    tenants: tuple[str, ...]
    prefixes: Sequence[TokenArray]

    @classmethod
    def of(
        cls,
        *,
        name: str,
        arrival_us: NDArray[Any],
        num_prompt_tokens: NDArray[Any],
        num_output_tokens: NDArray[Any],
        ids: Sequence[str] = (),
        tenant: NDArray[Any] | None = None,
        priority: NDArray[Any] | None = None,
        deadline_us: NDArray[Any] | None = None,
        tenants: tuple[str, ...] = ("",),
        prefixes: Sequence[TokenArray] = (),
    ) -> Workload:
        """With each bound and expectation that which is recorded. Raises LabError where there is no request, or one
        that can be none.
        """
        count = len(arrival_us)
        if count == 0:
            raise LabError(f"{name} holds no requests")
        for what, column, most in (
            ("a prompt", num_prompt_tokens, MAX_TOKENS),
            ("an answer", num_output_tokens, MAX_TOKENS),
            ("an arrival, in microseconds,", np.asarray(arrival_us) + 1, MAX_ARRIVAL_US),
        ):
            wrong = np.flatnonzero((np.asarray(column) < 1) | (np.asarray(column) > most))
            if len(wrong):
                raise LabError(f"{name}, request {wrong[0] + 1}: {what} of {column[wrong[0]]} is out of range")
        order = np.argsort(arrival_us, kind="stable")
        outputs = np.asarray(num_output_tokens)[order].astype(np.int32)
        zeros = np.zeros(count, dtype=np.int32)
        return cls(
            name=name,
            ids=[ids[i] for i in order] if ids else _Numbers(count),
            arrival_us=np.asarray(arrival_us)[order].astype(np.int64),
            num_prompt_tokens=np.asarray(num_prompt_tokens)[order].astype(np.int32),
            num_output_tokens=outputs,
            max_output_tokens=outputs,
            expected_output_tokens=outputs,
            tenant=zeros if tenant is None else np.asarray(tenant)[order].astype(np.int32),
            priority=zeros if priority is None else np.asarray(priority)[order].astype(np.int32),
            deadline_us=(zeros if deadline_us is None else np.asarray(deadline_us)[order]).astype(np.int64),
            tenants=tenants,
            prefixes=[prefixes[i] for i in order] if prefixes else _NoPrefixes(count),
        )

    def __len__(self) -> int:
        return len(self.arrival_us)

    @property
    def duration_us(self) -> int:
        """From the start to the last arrival."""
        return int(self.arrival_us[-1])

    @property
    def has_prefixes(self) -> bool:
        return not isinstance(self.prefixes, _NoPrefixes)

    def part(self, start: int, stop: int | None) -> Workload:
        """Requests [start, stop), the first of which arrives at 0. Raises LabError where there are none."""
        chosen = slice(start, stop)
        if len(self.arrival_us[chosen]) == 0:
            raise LabError(f"{self.name} has {len(self):,} requests, none of them in the part that was asked for")
        columns = {name: getattr(self, name)[chosen] for name in _COLUMNS}
        columns["arrival_us"] = columns["arrival_us"] - columns["arrival_us"][0]
        return replace(self, **columns, ids=self.ids[chosen], prefixes=self.prefixes[chosen])

    def at_rate(self, factor: float) -> Workload:
        """The same requests, their arrivals `factor` (> 0) times as fast: bursts follow each other as recorded."""
        if not 1e-6 <= factor <= 1e6:
            raise LabError(f"a rate of {factor:g} times the recorded one is out of range", "give 1e-6 to 1e6")
        arrival_us = np.rint(self.arrival_us / factor)
        if arrival_us[-1] > MAX_ARRIVAL_US:
            raise LabError(f"at {factor:g} times its rate {self.name} takes longer than can be counted")
        return replace(self, arrival_us=arrival_us.astype(np.int64))

    def bounded_by(self, max_output_tokens: int) -> Workload:
        """Answers may have so many tokens, or as many as they are recorded to have where that is more."""
        return replace(self, max_output_tokens=np.maximum(self.num_output_tokens, max_output_tokens).astype(np.int32))

    def with_estimates_off_by(self, sigma: float, seed: int) -> Workload:
        """What is expected is wrong by a factor that is drawn: its logarithm is normal, of deviation `sigma`."""
        factor = np.random.default_rng(seed).lognormal(0.0, sigma, len(self))
        expected = np.clip(np.rint(self.num_output_tokens * factor), 1, self.max_output_tokens)
        return replace(self, expected_output_tokens=expected.astype(np.int32))

    def without_estimates(self) -> Workload:
        return replace(self, expected_output_tokens=np.zeros(len(self), dtype=np.int32))


_COLUMNS = (
    "arrival_us",
    "num_prompt_tokens",
    "num_output_tokens",
    "max_output_tokens",
    "expected_output_tokens",
    "tenant",
    "priority",
    "deadline_us",
)
_NO_PREFIX: TokenArray = np.empty(0, dtype=np.int32)


class _NoPrefixes(Sequence[TokenArray]):
    """As many times no prefix: a million requests need not have a million empty arrays."""

    def __init__(self, count: int) -> None:
        self._count = count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return _NoPrefixes(len(range(*index.indices(self._count))))
        return _NO_PREFIX


class _Numbers(Sequence[str]):
    """The names of requests that have none: their numbers, from 1."""

    def __init__(self, count: int, first: int = 1) -> None:
        self._range = range(first, first + count)

    def __len__(self) -> int:
        return len(self._range)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            chosen = self._range[index]
            return _Numbers(len(chosen), chosen.start)
        return str(self._range[index])
