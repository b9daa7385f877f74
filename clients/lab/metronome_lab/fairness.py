"""How evenly tenants were served.

Only times count in which all that are compared had work: who asks for little is not treated unfairly by getting little.
A tenant is backlogged in a span of time when one of its requests had arrived and did not run yet.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metronome_lab.records import Records


@dataclass(frozen=True, slots=True, kw_only=True)
class Fairness:
    """`jain`: Jain's index of the tokens that tenants got in the spans in which all were backlogged; 1: all alike, also
    where there was no such span. `largest_gap_tokens`: the most by which the service of two tenants differed over a
    stretch of such spans (as VTC counts it, arXiv 2401.00588). `contended_s`: how long these spans were in all.
    """

    jain: float
    largest_gap_tokens: int
    contended_s: float


def fairness_of(records: Records) -> Fairness:
    tokens = records.service.tokens
    contended: NDArray[np.bool_] = np.all(backlogged(records), axis=0) & (len(tokens) > 1)
    served = tokens[:, contended].sum(axis=1).astype(np.float64)
    return Fairness(
        jain=float(served.sum() ** 2 / (len(served) * (served**2).sum())) if served.any() else 1.0,
        largest_gap_tokens=_largest_gap(tokens, contended),
        contended_s=int(contended.sum()) * records.service.span_us / 1e6,
    )


def backlogged(records: Records) -> NDArray[np.bool_]:
    """[num_tenants, num_spans] in which spans a tenant had a request that waited, and had not run, all the time."""
    requests, workload, span_us = records.requests, records.requests.workload, records.service.span_us
    num_tenants, num_spans = records.service.tokens.shape
    changes = np.zeros((num_tenants, num_spans + 1), dtype=np.int64)
    ran = requests.first_run_us >= 0
    # The first whole span after the arrival, and the one in which it ran, which is not whole.
    begins = -(-workload.arrival_us[ran] // span_us)
    ends = requests.first_run_us[ran] // span_us
    waits = begins < ends
    tenants: NDArray[Any] = workload.tenant[ran][waits]
    np.add.at(changes, (tenants, begins[waits]), 1)
    np.add.at(changes, (tenants, ends[waits]), -1)
    waiting: NDArray[np.bool_] = np.cumsum(changes, axis=1)[:, :-1] > 0
    return waiting


def _largest_gap(tokens: NDArray[np.int64], contended: NDArray[np.bool_]) -> int:
    """The most that the differences between two tenants add up to over spans on end in which all were backlogged."""
    largest = 0
    for first in range(len(tokens)):
        for second in range(first):
            difference = np.where(contended, tokens[first] - tokens[second], 0)
            starts = np.flatnonzero(np.diff(contended.astype(np.int8), prepend=0) == 1)
            stops = np.flatnonzero(np.diff(contended.astype(np.int8), append=0) == -1) + 1
            for start, stop in zip(starts.tolist(), stops.tolist(), strict=True):
                total = np.concatenate([[0], np.cumsum(difference[start:stop])])
                largest = max(largest, int(total.max() - total.min()))
    return largest
