"""What no schedule can beat on a simulated fleet: mean latency, throughput, and goodput.

Passes cost a fixed time and so much for each token, so each request brings work that nobody can do for another: its
prompt's tokens, less the blocks that an earlier request had; its decodes, with the KV that they read; and its part of
the fixed time of passes that are as full as they can be: of requests, of tokens, or of KV that is held side by side.
The executors are taken for one machine, as fast as all of them, that may be divided at will. On such a machine shortest
remaining work first has the least mean latency (Schrage 1968), and any schedule that never idles ends first; and alone
on an executor no answer is faster than its own passes. What is left out (the KV of blocks that several have, passes
that are not full) makes the bounds looser, never wrong.

Goodput asks for a first token in time: for a prompt that is computed within the target of its arrival. Of the work of
prompts alone that machine can end so many in time and no more, whatever it does with the rest. Decodes are left out,
since an answer may go on as slowly as its own target allows.
"""

from __future__ import annotations

import heapq
from collections import Counter
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from metronome_lab.hardware.cost import PassCost
from metronome_lab.simulation import Fleet
from metronome_lab.workload.requests import PREFIX_BLOCK_TOKENS, Workload

Column = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """The least mean time from arrival to the last token; and the most requests a second until the last has ended, all
    of them and those whose first token is in time.
    """

    e2e_mean_ms: float
    requests_per_s: float
    goodput_per_s: float


def bounds_of(workload: Workload, fleet: Fleet, ttft_us: int) -> Bounds:
    """`ttft_us`: the target of the first token."""
    hardware, limits = fleet.hardware, fleet.hardware.limits
    cost = hardware.cost or PassCost.of(hardware.latency)
    prefills, decodes = _uncached_tokens(workload), workload.num_output_tokens - 1.0
    # A decode reads its prompt and the tokens before it.
    of_answers = decodes * (decodes - 1) / 2
    kv_tokens = decodes * workload.num_prompt_tokens + of_answers
    own_us = cost.prefill_token_us * prefills + cost.decode_request_us * decodes + cost.kv_token_us * kv_tokens
    alone_us = own_us + cost.pass_us * (np.ceil(prefills / limits.max_num_batched_tokens) + decodes)
    arrival_us = workload.arrival_us.astype(np.float64)
    mean_us, end_us = float(alone_us.mean()), float((arrival_us + alone_us).max())
    # A pass is full when it has as many requests, as many tokens, or as much KV as it may: each gives a bound. A decode
    # holds what it reads, a chunk its own tokens at least. What others may have too counts for nobody.
    held = prefills + decodes * _own_tokens(workload) + of_answers
    for passes in (
        decodes / limits.max_num_seqs,
        (prefills + decodes) / limits.max_num_batched_tokens,
        held / (limits.num_blocks * limits.block_size),
    ):
        work_us = (own_us + cost.pass_us * passes) / fleet.num_executors
        ends_us = _shortest_remaining_first(arrival_us, work_us)
        mean_us, end_us = max(mean_us, float((ends_us - arrival_us).mean())), max(end_us, float(ends_us.max()))
    num_in_time = most_in_time(*_prompts_that_can(workload, fleet, cost, prefills, ttft_us), ttft_us)
    return Bounds(
        e2e_mean_ms=mean_us / 1e3,
        requests_per_s=len(workload) / (end_us / 1e6),
        goodput_per_s=num_in_time / (end_us / 1e6),
    )


def _prompts_that_can(
    workload: Workload, fleet: Fleet, cost: PassCost, prefills: Column, ttft_us: int
) -> tuple[Column, Column]:
    """Arrivals, and work on all executors, of the prompts that alone on one executor would be in time."""
    most = fleet.hardware.limits.max_num_batched_tokens
    alone_us = cost.prefill_token_us * prefills + cost.pass_us * np.ceil(prefills / most)
    can = alone_us <= ttft_us
    work_us = (cost.prefill_token_us + cost.pass_us / most) * prefills / fleet.num_executors
    return workload.arrival_us[can].astype(np.float64), work_us[can]


def most_in_time(arrival_us: Column, work_us: Column, target_us: float) -> int:
    """How many jobs one machine can end within the target of their arrival, at most.

    All have the same target, so nothing is better for those that are chosen than to be done by arrival, one after the
    other. Whenever the next would end too late, the one is dropped without which the others end soonest (Kise, Ibaraki
    and Mine 1978): the longest, but where the machine would only wait for those that come after it. `arrival_us`
    ascends.
    """
    chosen: list[int] = []
    end_us = 0.0
    for index in range(len(arrival_us)):
        end_us = max(end_us, float(arrival_us[index])) + float(work_us[index])
        chosen.append(index)
        if end_us > arrival_us[index] + target_us:
            work = work_us[chosen]
            ends_us = _ends_by_arrival(arrival_us[chosen], work)
            # Those after it move up by what it takes, or until one of them stands at its arrival.
            waits_us = np.append(ends_us - work - arrival_us[chosen], np.inf)
            saved_us = np.minimum(work, np.minimum.accumulate(waits_us[::-1])[::-1][1:])
            dropped = int(np.argmax(saved_us))
            del chosen[dropped]
            end_us -= float(saved_us[dropped])
    return len(chosen)


def _ends_by_arrival(arrival_us: Column, work_us: Column) -> Column:
    """[num_jobs] when each ends, one after the other by arrival."""
    done_us = np.cumsum(work_us)
    return done_us + np.maximum.accumulate(arrival_us - (done_us - work_us))


def _uncached_tokens(workload: Workload) -> Column:
    """[num_requests] of each prompt, where a cache kept every block of every request before it. At least one."""
    seen: set[int] = set()
    cached = np.zeros(len(workload))
    for index in range(len(workload)):
        blocks = workload.prefixes[index].tolist()
        cached[index] = PREFIX_BLOCK_TOKENS * sum(block in seen for block in blocks)
        seen.update(blocks)
    return np.maximum(workload.num_prompt_tokens - cached, 1.0)


def _own_tokens(workload: Workload) -> Column:
    """[num_requests] of each prompt, what is in no block that another request has too."""
    prefixes = [workload.prefixes[index].tolist() for index in range(len(workload))]
    num_holders = Counter(block for blocks in prefixes for block in blocks)
    num_shared = np.array([sum(num_holders[block] > 1 for block in blocks) for blocks in prefixes], dtype=np.float64)
    return np.maximum(workload.num_prompt_tokens - PREFIX_BLOCK_TOKENS * num_shared, 0.0)


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
