"""What FEWEST_LATE ranks by, as `facts.py` has it: the rules of `lateness.py` written down a second time."""

from __future__ import annotations

from scheduler_service.core.policy import Ordering, Policy, PrefillSharing
from scheduler_service.core.state import ExecutorState, RequestStatus

_FARTHEST, _CLASS = 2**59, 2**61
_MOST_US = 1e15


def lateness_ranks(executor: ExecutorState, policy: Policy) -> list[int]:
    """Of each row; zeros where nobody asks for it."""
    table = executor.requests
    if Ordering.FEWEST_LATE not in (policy.ordering, policy.ordering_within_tenant):
        return [0] * len(table)
    arrivals, lacking = [_near(time) for time in table.arrival_time_us.tolist()], _lacking(executor)
    waited = [_near(executor.now_us) - arrival for arrival in arrivals]
    is_waiting = table.status == RequestStatus.WAITING
    aging_us = round(min(max(policy.aging_seconds * 1e6, 1.0), 2.0**62))
    target_us = policy.target_time_to_first_token_us
    young = [
        row
        for row in range(len(table))
        if is_waiting[row] and table.num_preemptions[row] == 0 and waited[row] < aging_us
    ]
    ranks = [arrival - _CLASS for arrival in arrivals]
    for row in young:
        ranks[row] = _CLASS + min(lacking[row], _FARTHEST)
    prompts = [0 if decodes else tokens for decodes, tokens in zip(_in_decode(executor), lacking, strict=True)]
    num_tokens = sum(prompts[row] for row in set(range(len(table))) - set(young))
    in_progress = [row for row in _in_progress(executor, policy) if waited[row] < aging_us and waited[row] <= target_us]
    num_ahead = num_tokens - sum(prompts[row] for row in in_progress)
    token_us, pass_tokens = _prefills_of_a_pass(executor, policy)
    in_time: list[tuple[int, int, int]] = []

    def ends_in_time(row: int, num_until_then: int) -> bool:
        num_passes_before = (lacking[row] - 1) // policy.chunk_size_tokens
        most_beside = float(num_passes_before) * float(max(pass_tokens - policy.chunk_size_tokens, 0))
        beside = min(most_beside, float(sum(prompts) - num_until_then))
        return (num_until_then + beside) * token_us <= float(target_us - waited[row])

    for place, row in enumerate(sorted(young, key=lambda row: (int(table.arrival_time_us[row]), int(table.id[row])))):
        if waited[row] > target_us:
            continue
        with_it = num_tokens + lacking[row]
        if not ends_in_time(row, with_it):
            longest = min(in_time, default=(0, 0, 0))
            with_it += longest[0]
            if -longest[0] <= lacking[row] or not ends_in_time(row, with_it):
                continue
            in_time.remove(longest)
        in_time.append((-lacking[row], -place, row))
        num_tokens = with_it
    # The last of those that are in time is the longest that can wait for all of them, and so on with the others.
    left = sorted(
        [*in_progress, *(row for _, _, row in in_time)],
        key=lambda row: (int(table.arrival_time_us[row]), int(table.id[row])),
    )
    while left:
        until_all_are_done_us = (num_ahead + sum(prompts[row] for row in left)) * token_us
        can_wait = [row for row in left if until_all_are_done_us <= 0.5 * target_us - waited[row]]
        last = max(reversed(can_wait), key=lambda row: lacking[row]) if can_wait else left[-1]
        left.remove(last)
        ranks[last] = len(left)
    return ranks


def _in_progress(executor: ExecutorState, policy: Policy) -> list[int]:
    """Prompts that give way to others, and run for the first time."""
    if policy.prefill_sharing is not PrefillSharing.IN_ORDER:
        return []
    table = executor.requests
    is_first = (table.num_output_tokens == 0) & (table.num_preemptions == 0)
    return [row for row in range(len(table)) if is_first[row] and table.status[row] == RequestStatus.RUNNING]


def _prefills_of_a_pass(executor: ExecutorState, policy: Policy) -> tuple[float, int]:
    """What a prompt token takes in a pass that holds as many as the policy lets it, and how many these are."""
    latency = executor.latency
    if latency is None:
        return 0.0, 0
    most, table = executor.limits.max_num_batched_tokens, executor.requests
    token_us, pass_us = min(latency.prefill_token_us, _MOST_US), min(latency.pass_us, _MOST_US)
    runs = table.status == RequestStatus.RUNNING
    decodes = [row for row, decodes in enumerate(_in_decode(executor)) if decodes and runs[row]]
    if not decodes:
        return pass_us / most + token_us, most
    num_kv_tokens = sum(int(table.num_computed_tokens[row]) for row in decodes)
    decodes_us = latency.pass_us + len(decodes) * latency.decode_request_us + num_kv_tokens * latency.kv_token_us
    decodes_us = min(decodes_us, _MOST_US)
    target, slowdown = policy.target_inter_token_latency_us, policy.max_inter_token_slowdown
    if (target is None and slowdown == 0) or latency.prefill_token_us == 0:
        return decodes_us / most + token_us, most
    num_waiting = int((table.status == RequestStatus.WAITING).sum())
    num_prompts = max(num_waiting + int(runs.sum()) - len(decodes), 1)
    if target is None:
        most_us = min(slowdown, 1.0 + num_prompts) * decodes_us
    elif slowdown == 0:
        most_us = float(target)
    else:
        most_us = slowdown * decodes_us * (1.0 if decodes_us >= target else decodes_us / target)
        most_us = min(max(most_us, target), max((1.0 + num_prompts) * decodes_us, 0.75 * target))
    num_tokens = max((most_us - decodes_us) / latency.prefill_token_us, float(executor.limits.block_size))
    num_in_pass = int(min(num_tokens, float(most)))
    return decodes_us / num_in_pass + token_us, num_in_pass


def _near(time_us: int) -> int:
    return min(max(time_us, -_FARTHEST), _FARTHEST)


def _lacking(executor: ExecutorState) -> list[int]:
    table = executor.requests
    return (table.num_prompt_tokens + table.num_output_tokens - table.num_computed_tokens).tolist()


def _in_decode(executor: ExecutorState) -> list[bool]:
    outputs = executor.requests.num_output_tokens.tolist()
    return [output > 0 and lacks == 1 for output, lacks in zip(outputs, _lacking(executor), strict=True)]
