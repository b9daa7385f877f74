"""The planner once more, deliberately simple: one request after the other, plain loops and lists, no arrays.

It knows every ordering (but the turns that FAIR takes across tenants) and admission, victims that are the last in order
or never, mixed batches and a strict head of line. On what it knows the planner must give the same plan.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from scheduler_service.core.facts import RequestFacts, blocks_counted_twice, ceil_div, request_facts
from scheduler_service.core.policy import Admission, Ordering, Policy, Preemption, PrefillSharing
from scheduler_service.core.state import ExecutorState, RequestStatus


@dataclass
class SimplePlan:
    """`scheduled`: tokens by id, in order."""

    scheduled: dict[int, int] = field(default_factory=dict)
    enter: list[int] = field(default_factory=list)
    evict: list[int] = field(default_factory=list)
    reject: list[int] = field(default_factory=list)


class SimplePlanner:
    def __init__(self, executor: ExecutorState, policy: Policy) -> None:
        self.executor, self.limits, self.policy = executor, executor.limits, policy
        self.requests = sorted(request_facts(executor, policy).values(), key=lambda request: request.order)
        self.free = executor.num_free_blocks
        self.blocks_are_wanted = False

    def plan(self) -> SimplePlan:
        plan, policy = SimplePlan(), self.policy
        queue = [r for r in self.requests if r.status in (RequestStatus.WAITING, RequestStatus.SWAPPED)]
        plan.reject = [request.id for request in queue if not self.fits_ever(request)]
        running = [request for request in self.requests if request.status is RequestStatus.RUNNING]
        ran_out = self.need(running) > self.free
        stay, tokens = self.make_room(running)
        plan.evict = [request.id for request in running if request not in stay]
        self.free -= sum(r.blocks_held(self.limits, policy) for r in [*stay, *self.loading()])
        if ran_out:
            self.blocks_are_wanted = True
        else:
            queue = [r for r in queue if r.id not in plan.reject]
            queue.sort(key=lambda request: (request.rank, not request.ran_before, request.order))
            if self.policy.hold_for_shared_prefix:
                queue = self.without_held(queue, [r for r in stay if tokens.get(r.id, 0) > 0])
            plan.enter = self.enter(queue, stay, tokens)
        self.add_drafts(stay, plan.enter, tokens)
        plan.scheduled = {r.id: tokens[r.id] for r in self.requests if tokens.get(r.id, 0) > 0}
        return plan

    def without_held(self, queue: list[RequestFacts], running: list[RequestFacts]) -> list[RequestFacts]:
        computed = {request.next_block_hash for request in running}
        others = []
        for request in queue:
            if request.status is RequestStatus.WAITING and request.next_block_hash in computed - {0}:
                continue
            computed.add(request.next_block_hash)
            others.append(request)
        return others

    def fits_ever(self, request: RequestFacts) -> bool:
        length = request.num_tokens + 1 if request.ran_before else request.longest
        stored = self.limits.num_blocks * self.limits.block_size
        return length - 1 <= stored and length <= self.limits.max_model_len

    def make_room(self, running: list[RequestFacts]) -> tuple[list[RequestFacts], dict[int, int]]:
        stay = list(running)
        if self.policy.preemption is not Preemption.NEVER:
            while stay:
                freed = sum(r.num_blocks - r.num_shared for r in running if r not in stay)
                if self.need(stay) <= self.free + freed:
                    self.free += freed
                    return stay, self.share(stay)
                stay.pop()
        elif self.need(running) <= self.free:
            return running, self.share(running)
        return running, self.run_what_has_blocks(running)

    def run_what_has_blocks(self, running: list[RequestFacts]) -> dict[int, int]:
        able, left = [], self.free
        for request in running:
            needed = request.new_blocks(1, self.limits.block_size)
            left -= needed
            if needed == 0 or left >= 0:
                able.append(request)
        tokens, left = self.share(able), self.free
        for request in able:
            granted = min(max(left, 0), request.new_blocks(tokens[request.id], self.limits.block_size))
            left -= request.new_blocks(tokens[request.id], self.limits.block_size)
            storable = (request.num_blocks + granted) * self.limits.block_size - request.num_computed
            tokens[request.id] = min(tokens[request.id], storable)
        return tokens

    def need(self, running: list[RequestFacts]) -> int:
        tokens = self.share(running)
        return sum(request.new_blocks(tokens[request.id], self.limits.block_size) for request in running)

    def share(self, running: list[RequestFacts]) -> dict[int, int]:
        tokens = dict.fromkeys((request.id for request in running), 0)
        budget = self.limits.max_num_batched_tokens
        decodes = [request for request in running if request.in_decode]
        for request in sorted(decodes, key=lambda request: request.last_run)[:budget]:
            tokens[request.id] = 1
        left = budget - sum(tokens.values())
        prefills = [request for request in running if not request.in_decode]
        return tokens | self.share_prefills(prefills[: self.policy.max_num_partial_prefills], left)

    def share_prefills(self, prefills: list[RequestFacts], left: int) -> dict[int, int]:
        tokens = dict.fromkeys((request.id for request in prefills), 0)
        share_alike = self.policy.prefill_sharing is PrefillSharing.EQUAL
        while left > 0 and (lacking := [r for r in prefills if tokens[r.id] < r.most_tokens(self.policy)]):
            for request in lacking:
                given = min(1, left) if share_alike else min(request.most_tokens(self.policy), left)
                tokens[request.id] += given
                left -= given
        return tokens

    def enter(self, queue: list[RequestFacts], stay: list[RequestFacts], tokens: dict[int, int]) -> list[int]:
        """Adds the tokens of those that enter, and takes their blocks."""
        left = self.limits.max_num_batched_tokens - sum(tokens.values())
        num_running = len(stay) + len(self.loading())
        num_prefills = sum(not request.in_decode and tokens[request.id] > 0 for request in stay)
        most_prefills = self.policy.max_num_partial_prefills or self.limits.max_num_seqs + len(self.requests)
        entered: list[RequestFacts] = []
        for request in queue:
            given = 0 if request.in_decode else self.given_to(request, stay, tokens)
            num_prefills += not request.in_decode
            shared = blocks_counted_twice([*entered, request]) - blocks_counted_twice(entered)
            need = request.blocks_held(self.limits, self.policy) - shared
            if num_running >= self.limits.max_num_seqs or left + given <= 0 or num_prefills > most_prefills:
                break
            if need > self.free - self.kept_free(request, num_running):
                self.blocks_are_wanted = True
                break
            tokens[request.id] = min(self.least_wanted(request), left + given)
            left -= self.least_wanted(request)
            self.free -= need
            num_running += 1
            entered.append(request)
        if entered and self.policy.prefill_sharing is PrefillSharing.EQUAL:
            self.share_anew(stay, entered, tokens)
        if self.policy.prefill_sharing is PrefillSharing.IN_ORDER:
            self.make_way(stay, entered, tokens)
        return [request.id for request in entered]

    def given_to(self, request: RequestFacts, stay: list[RequestFacts], tokens: dict[int, int]) -> int:
        """Tokens that prompts in progress give up for one that would enter."""
        in_progress = [r for r in stay if not r.in_decode]
        if self.policy.prefill_sharing is PrefillSharing.EQUAL:
            return sum(max(tokens[r.id] - self.limits.block_size, 0) for r in in_progress)
        if self.policy.prefill_sharing is PrefillSharing.IN_ORDER:
            return sum(tokens[r.id] for r in in_progress if self.turn(request) < self.turn(r))
        return 0

    def turn(self, request: RequestFacts) -> float:
        return request.rank[1] if self.policy.ordering is Ordering.FAIR else request.rank[0]

    def make_way(self, stay: list[RequestFacts], entered: list[RequestFacts], tokens: dict[int, int]) -> None:
        """IN_ORDER: token by token, the last of those in progress gives up what is too much."""
        in_progress = sorted((r for r in stay if not r.in_decode), key=self.turn)
        while sum(tokens[r.id] for r in [*stay, *entered]) > self.limits.max_num_batched_tokens:
            last = [r for r in in_progress if tokens[r.id] > 0][-1]
            tokens[last.id] -= 1

    def least_wanted(self, request: RequestFacts) -> int:
        want = min(request.lacks, self.policy.chunk_size_tokens)
        share_alike = self.policy.prefill_sharing is PrefillSharing.EQUAL and not request.in_decode
        return min(want, self.limits.block_size) if share_alike else want

    def share_anew(self, stay: list[RequestFacts], entered: list[RequestFacts], tokens: dict[int, int]) -> None:
        """EQUAL: among those in progress and those that enter."""
        prompts = [r for r in [*stay, *entered] if not r.in_decode and tokens[r.id] > 0]
        decodes = [r for r in [*stay, *entered] if r.in_decode]
        left = self.limits.max_num_batched_tokens - sum(tokens[r.id] for r in decodes)
        tokens |= self.share_prefills(prompts, left)

    def loading(self) -> list[RequestFacts]:
        return [request for request in self.requests if request.status is RequestStatus.LOADING]

    def add_drafts(self, stay: list[RequestFacts], enter: list[int], tokens: dict[int, int]) -> None:
        """Draft by draft: each needs a token of the budget, and blocks for itself and the token after it."""
        runs = [*stay, *(request for request in self.requests if request.id in enter)]
        has = {request.id: self.blocks_had(request) for request in runs}
        drafts = dict.fromkeys((request.id for request in runs), 0)

        def lacks(request: RequestFacts) -> int:
            stored = request.num_tokens + drafts[request.id] + 1
            return max(ceil_div(stored, self.limits.block_size) - has[request.id], 0)

        for request in stay:
            if not request.in_decode or tokens.get(request.id, 0) == 0:
                continue
            for _ in range(min(request.num_drafts, request.most_left - 1)):
                drafts[request.id] += 1
                has_blocks = not self.blocks_are_wanted and sum(map(lacks, runs)) <= self.free
                has_tokens = sum(tokens.values()) < self.limits.max_num_batched_tokens
                if not has_tokens or not (has_blocks or lacks(request) == 0):
                    drafts[request.id] -= 1
                    break
                tokens[request.id] += 1

    def blocks_had(self, request: RequestFacts) -> int:
        """Blocks that it has in this pass without drafts, and those held for it if there are so many."""
        there = {RequestStatus.RUNNING: request.num_blocks, RequestStatus.WAITING: request.num_shared}
        of_pass = request.blocks_for_life(1, self.limits)
        held = request.blocks_held(self.limits, self.policy) if self.free >= 0 else of_pass
        return there.get(request.status, 0) + held

    def kept_free(self, request: RequestFacts, num_beside: int) -> int:
        if num_beside == 0 or self.policy.admission is Admission.RESERVE:
            return 0
        watermark = math.ceil(self.policy.watermark * self.limits.num_blocks)
        return watermark + (num_beside + 1 if request.ran_before else 0)
