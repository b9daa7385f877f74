"""What no schedule can beat on a simulated fleet: mean latency, and throughput.

Passes cost a fixed time and so much for each token, so each request brings work that nobody can do for another: its
prompt's tokens, less the blocks that an earlier request had; its decodes, with the KV that they read; and its part of
the fixed time of passes that are as full as they can be. The executors are taken for one machine, as fast as all of
them, that may be divided at will. On such a machine shortest remaining work first has the least mean latency (Schrage
1968), and any schedule that never idles ends first; and alone on an executor no answer is faster than its own passes.
What is left out (full caches, passes that are not full) makes the bounds looser, never wrong.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from metronome_lab.hardware.cost import PassCost
from metronome_lab.simulation import Fleet
from metronome_lab.workload.requests import PREFIX_BLOCK_TOKENS, Workload

Column = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """The least mean time from arrival to the last token, and the most requests a second until the last has ended."""

    e2e_mean_ms: float
    requests_per_s: float


def bounds_of(workload: Workload, fleet: Fleet) -> Bounds:
    hardware, limits = fleet.hardware, fleet.hardware.limits
    cost = hardware.cost or PassCost.of(hardware.latency)
    prefills, decodes = _uncached_tokens(workload), workload.num_output_tokens - 1.0
    # A decode reads its prompt and the tokens before it.
    kv_tokens = decodes * workload.num_prompt_tokens + decodes * (decodes - 1) / 2
    own_us = cost.prefill_token_us * prefills + cost.decode_request_us * decodes + cost.kv_token_us * kv_tokens
    alone_us = own_us + cost.pass_us * (np.ceil(prefills / limits.max_num_batched_tokens) + decodes)
    arrival_us = workload.arrival_us.astype(np.float64)
    mean_us, end_us = float(alone_us.mean()), float((arrival_us + alone_us).max())
    # A pass is full when it has as many requests, or as many tokens, as it may: each gives a bound.
    for passes in (decodes / limits.max_num_seqs, (prefills + decodes) / limits.max_num_batched_tokens):
        work_us = (own_us + cost.pass_us * passes) / fleet.num_executors
        ends_us = _shortest_remaining_first(arrival_us, work_us)
        mean_us, end_us = max(mean_us, float((ends_us - arrival_us).mean())), max(end_us, float(ends_us.max()))
    return Bounds(e2e_mean_ms=mean_us / 1e3, requests_per_s=len(workload) / (end_us / 1e6))


def _uncached_tokens(workload: Workload) -> Column:
    """[num_requests] of each prompt, where a cache kept every block of every request before it. At least one."""
    seen: set[int] = set()
    cached = np.zeros(len(workload))
    for index in range(len(workload)):
        blocks = workload.prefixes[index].tolist()
        cached[index] = PREFIX_BLOCK_TOKENS * sum(block in seen for block in blocks)
        seen.update(blocks)
    return np.maximum(workload.num_prompt_tokens - cached, 1.0)


def _shortest_remaining_first(arrival_us: Column, work_us: Column) -> Column:
    """[num_requests] when each ends on one machine. `arrival_us` ascends."""
    ends_us = np.zeros(len(arrival_us))
    waiting: list[tuple[float, int]] = []
    now_us = 0.0
    for index, next_us in enumerate([*arrival_us[1:].tolist(), np.inf]):
        now_us = max(now_us, float(arrival_us[index]))
        heapq.heappush(waiting, (float(work_us[index]), index))
        while waiting and now_us < next_us:
            left_us, first = waiting[0]
            done_us = min(left_us, next_us - now_us)
            now_us += done_us
            if done_us < left_us:
                heapq.heapreplace(waiting, (left_us - done_us, first))
            else:
                heapq.heappop(waiting)
                ends_us[first] = now_us
    return ends_us
