"""How long a request may wait, worked out from the policy: the bounds of docs/policies.md, where they are derived.

All are sums over the requests that may run while it waits: which these are is what an ordering promises, and how long
an executor takes over them follows from its limits. Written from the policies' promises and independent of the planner.
They hold under RESERVE and MIXED, where no work is done twice and every decode runs in every pass.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from scheduler_service.core.policy import Ordering, Policy
from scheduler_service.core.state import ExecutorLimits, LatencyModel
from support.arithmetic_executor import Request

# A logarithm that is straight between powers of two is at most so much below the true one.
LOG2_ERROR = 0.0861


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What is left of a request: tokens to compute, passes if it runs in each, blocks held meanwhile, and the time."""

    num_tokens: int
    num_passes: int
    num_blocks: int
    time_us: float

    @property
    def block_passes(self) -> int:
        return self.num_blocks * self.num_passes


def work_left(request: Request, limits: ExecutorLimits, policy: Policy, latency: LatencyModel) -> Work:
    """The rest of a request whose answer has `max_output_tokens`."""
    num_outputs = request.max_output_tokens - request.num_output_tokens
    num_lacking = request.num_prompt_tokens + request.num_output_tokens - request.num_computed_tokens
    in_decode = request.num_output_tokens > 0 and num_lacking == 1
    num_prefill = 0 if in_decode else num_lacking
    num_decodes = num_outputs if in_decode else num_outputs - 1
    first_read = request.num_computed_tokens + num_prefill
    num_read = num_decodes * first_read + num_decodes * (num_decodes - 1) // 2
    return Work(
        num_tokens=num_prefill + num_decodes,
        num_passes=-(-num_prefill // policy.chunk_size_tokens) + num_decodes,
        num_blocks=-(-(request.num_prompt_tokens + request.max_output_tokens - 1) // limits.block_size),
        time_us=num_prefill * latency.prefill_token_us
        + num_decodes * latency.decode_request_us
        + num_read * latency.kv_token_us,
    )


def largest_of(works: Sequence[Work]) -> Work:
    """A request that is as large as any of these in every respect."""
    return Work(
        num_tokens=max(work.num_tokens for work in works),
        num_passes=max(work.num_passes for work in works),
        num_blocks=max(work.num_blocks for work in works),
        time_us=max(work.time_us for work in works),
    )


def time_to_admit_us(
    ahead: Sequence[Work], largest_num_blocks: int, limits: ExecutorLimits, latency: LatencyModel
) -> float:
    """Longest until a request enters, if only `ahead` may run before it. `largest_num_blocks`: of it and those ahead.

    In a pass in which it waits, it or one before it in the queue found the token budget used up, or all places taken,
    or too few blocks free. So there are no more such passes than the work ahead can use up budgets, fill all places, or
    hold all blocks but those that the largest needs.
    """
    num_passes = sum(work.num_tokens for work in ahead) // limits.max_num_batched_tokens
    num_passes += sum(work.num_passes for work in ahead) // limits.max_num_seqs
    num_passes += sum(work.block_passes for work in ahead) // (limits.num_blocks - largest_num_blocks + 1)
    return num_passes * latency.pass_us + sum(work.time_us for work in ahead)


def may_go_before(other: Request, request: Request, policy: Policy) -> bool:
    """Whether `other`, if both wait and neither ran yet, may enter first by the promise of the ordering.

    Under FAIR: if both are of one tenant.
    """
    later_us = other.arrival_time_us - request.arrival_time_us
    aging_us = policy.aging_seconds * 1e6
    match policy.ordering_within_tenant if policy.ordering is Ordering.FAIR else policy.ordering:
        case Ordering.FEWEST_LATE:
            return later_us <= aging_us
        case Ordering.PRIORITY:
            return later_us < (other.priority - request.priority + 1) * aging_us
        case Ordering.SHORTEST_JOB_FIRST:
            levels = math.log2(_expected_work(request) / _expected_work(other)) + LOG2_ERROR
            return later_us <= levels * aging_us
        case Ordering.SHORTEST_PREFILL_FIRST:
            levels = math.log2(request.num_prompt_tokens / other.num_prompt_tokens) + LOG2_ERROR
            return later_us <= levels * aging_us
        case _:
            return (other.arrival_time_us, other.id) < (request.arrival_time_us, request.id)


def _expected_work(request: Request) -> int:
    return request.num_prompt_tokens + request.max_output_tokens - 1


def fair_share_tokens(
    own_ahead: Iterable[Work], own_counter: float, other_counter: float, own_weight: float, other_weight: float
) -> float:
    """Tokens that another tenant gets at most while a request waits behind `own_ahead`, all of its own tenant.

    The other's request enters first only while the other's counter over its weight is at most where that of the own
    tenant will stand once all ahead is served.
    """
    own = own_counter + sum(work.num_tokens for work in own_ahead)
    return max(own / own_weight * other_weight - other_counter, 0.0)


def passes_to_reservation(head: Work, on_device: Sequence[Work], limits: ExecutorLimits) -> int:
    """Passes after which `head` has its blocks and its place, if nobody else enters; 0: they are there already.

    All on the device hold their blocks to the end.
    """
    num_free = limits.num_blocks - sum(work.num_blocks for work in on_device)
    num_places = limits.max_num_seqs - len(on_device)
    num_passes = 0
    for work in sorted(on_device, key=lambda work: work.num_passes):
        if head.num_blocks <= num_free and num_places > 0:
            break
        num_free, num_places, num_passes = num_free + work.num_blocks, num_places + 1, work.num_passes
    return num_passes
