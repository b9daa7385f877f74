"""Whose turn it is: the invariants of `verify.py` about order, eviction and phases."""

from __future__ import annotations

from scheduler_service.core.facts import Facts, Findings, Invariant, RequestFacts, ceil_div
from scheduler_service.core.policy import Admission, BatchComposition, HeadOfLine, Ordering, Preemption, PrefillSharing
from scheduler_service.core.state import RequestStatus


def no_livelock(facts: Facts) -> Findings:
    """6: the first in order stays, nobody enters when blocks ran out, those that ran before come first."""
    running = facts.of(RequestStatus.RUNNING)
    for_priority = facts.policy.preemption is Preemption.FOR_PRIORITY
    if for_priority and facts.entering:
        for i in facts.evicted:
            if not any(_outranks(request, facts.requests[i]) for request in facts.entering.values()):
                yield Invariant.NO_LIVELOCK, (i,), f"{i} is evicted, and none that enters outranks it"
    else:
        if running and running[0].id in facts.evicted:
            yield Invariant.NO_LIVELOCK, (running[0].id,), f"{running[0].id} is first in order, and is evicted"
        if facts.evicted and facts.entering:
            yield Invariant.NO_LIVELOCK, tuple(facts.entering), "requests enter in a pass in which blocks ran out"
    if facts.policy.head_of_line is HeadOfLine.STRICT:
        for request in facts.entering.values():
            left_out = [r for r in facts.queue() if r.id not in facts.entering and not _is_held(r, facts)]
            held_up = [r.id for r in left_out if _comes_back_before(r, request, facts)]
            if held_up:
                yield Invariant.NO_LIVELOCK, tuple(held_up), f"{held_up[0]} ran before and waits, {request.id} enters"


def _outranks(request: RequestFacts, other: RequestFacts) -> bool:
    return request.priority > other.priority and request.rank < other.rank


def _comes_back_before(returning: RequestFacts, request: RequestFacts, facts: Facts) -> bool:
    """Whether one that ran before comes before one that never did. FAIR compares within a tenant only."""
    alike = facts.policy.ordering is not Ordering.FAIR or returning.tenant == request.tenant
    return alike and returning.ran_before and not request.ran_before and returning.rank <= request.rank


def no_starvation(facts: Facts) -> Findings:
    """7, as far as one plan shows it: nobody passes the head of the queue who must not."""
    queue, head_of_line = facts.queue_before(), facts.policy.head_of_line
    for place, left_out in enumerate(queue):
        if left_out.id in facts.entering:
            continue
        if _is_held(left_out, facts):
            # If it was not after all, the reservation may have been its own.
            if head_of_line is HeadOfLine.BACKFILL and _some_may_have_paused(facts):
                return
            continue
        if left_out.id in facts.rejected:
            # It had its turn before it was turned away, so a reservation was its own.
            if head_of_line is HeadOfLine.BACKFILL:
                return
            continue
        behind = [r for r in queue[place + 1 :] if r.id in facts.entering and _same_queue(left_out, r, facts)]
        if head_of_line is HeadOfLine.STRICT and behind:
            text = f"{behind[0].id} passes {left_out.id}"
            yield Invariant.NO_STARVATION, (left_out.id, behind[0].id), text
        if head_of_line is HeadOfLine.SKIP and behind:
            times = left_out.times_overtaken + len(behind)
            if times > facts.policy.max_times_overtaken:
                text = (
                    f"{left_out.id} is overtaken for the {times}th time, allowed are {facts.policy.max_times_overtaken}"
                )
                yield Invariant.NO_STARVATION, (left_out.id, behind[0].id), text
        if head_of_line is HeadOfLine.BACKFILL:
            # Under FAIR the order alone does not say whose turn it is, so not who has the reservation.
            if facts.policy.ordering is not Ordering.FAIR and behind:
                yield from _delays(left_out, behind, facts)
            return


def shared_prefix(facts: Facts) -> Findings:
    """11: where the policy holds for shared prefixes, nobody enters whose next block another computes in the pass."""
    queue = facts.queue_before()
    for place, request in enumerate(queue):
        if request.id not in facts.entering or not _may_be_held(request, facts):
            continue
        first = [r for r in queue[:place] if r.id in facts.entering and _same_queue(r, request, facts)]
        # Those that run may have got their tokens only when others had left for more important work.
        if not facts.evicted:
            first += [r for r in facts.of(RequestStatus.RUNNING) if r.id in facts.scheduled]
        same = [r.id for r in first if r.next_block_hash == request.next_block_hash]
        if same:
            text = f"{request.id} enters to compute a block that {same[0]} computes in the same pass"
            yield Invariant.SHARED_PREFIX, (same[0], request.id), text


def _may_be_held(request: RequestFacts, facts: Facts) -> bool:
    waits = request.status is RequestStatus.WAITING
    return facts.policy.hold_for_shared_prefix and waits and request.next_block_hash != 0


def _is_held(request: RequestFacts, facts: Facts) -> bool:
    """Whether another computes its next block, or stands before it in the queue to do so."""
    if not _may_be_held(request, facts):
        return False
    queue, running = facts.queue_before(), facts.of(RequestStatus.RUNNING)
    first = [r for r in queue[: queue.index(request)] if _same_queue(r, request, facts)]
    first += [r for r in running if r.id in facts.scheduled or _some_may_have_paused(facts)]
    return any(r.next_block_hash == request.next_block_hash for r in first)


def _some_may_have_paused(facts: Facts) -> bool:
    """Whether those that enter may have taken the tokens, or the blocks, of those that run."""
    nobody_gives_way = facts.policy.prefill_sharing is not PrefillSharing.IN_ORDER
    mixed = facts.policy.batch_composition is BatchComposition.MIXED and nobody_gives_way
    return bool(facts.entering) and not (mixed and not facts.evicted)


def _same_queue(request: RequestFacts, other: RequestFacts, facts: Facts) -> bool:
    """Under FAIR tenants take turns, so only those of one tenant can pass each other."""
    return facts.policy.ordering is not Ordering.FAIR or request.tenant == other.tenant


def _delays(head: RequestFacts, behind: list[RequestFacts], facts: Facts) -> Findings:
    """Whether those that pass keep the head out once so many of the others have ended that it fits."""
    passing = {request.id for request in behind}
    others = facts.stay() + [r for r in facts.entering.values() if r.id not in passing]
    chunk = facts.policy.chunk_size_tokens
    ends = sorted((ceil_div(r.lacks, chunk) + r.expected_left - 1, r.id) for r in others)
    for start in [0, *(end for end, _ in ends)]:
        go_on = [facts.requests[i] for end, i in ends if end > start]
        ended = [facts.requests[i] for end, i in ends if end <= start and i not in facts.entering]
        spare = facts.blocks_free() + sum(request.num_blocks - request.num_shared for request in ended)
        spare -= facts.blocks_held([*go_on, head])
        num_seqs = len(go_on)
        if spare < facts.kept_free(head, num_seqs) or num_seqs >= facts.limits.max_num_seqs:
            continue
        late = [r for r in behind if ceil_div(r.lacks, chunk) + r.most_left - 1 > start]
        spare -= sum(r.blocks_for_life(r.most_left, facts.limits) for r in late)
        num_seqs += len(late)
        if late and (spare < facts.kept_free(head, num_seqs) or num_seqs >= facts.limits.max_num_seqs):
            text = f"{late[0].id} passes {head.id}, which could start in {start} passes, and is still there"
            yield Invariant.NO_STARVATION, (head.id, late[0].id), text
        return


def eviction_allowed(facts: Facts) -> Findings:
    """9: under NEVER nobody is evicted; under WHEN_FULL only if not all that run could run on, the protected last."""
    if not facts.evicted:
        return
    block_size, free = facts.limits.block_size, facts.state.num_free_blocks
    running = facts.of(RequestStatus.RUNNING)
    if facts.policy.preemption is Preemption.NEVER:
        yield Invariant.EVICTION_ALLOWED, tuple(facts.evicted), "the policy never evicts"
    if facts.policy.preemption is Preemption.WHEN_FULL or not facts.entering:
        chunk = facts.policy.chunk_size_tokens
        wanted = sum(request.new_blocks(min(request.lacks, chunk), block_size) for request in running)
        reserved = sum(request.blocks_held(facts.limits, facts.policy) for request in running)
        if wanted <= free or (facts.policy.admission is Admission.RESERVE and reserved <= free):
            text = f"all that run need {wanted} blocks and {free} are free, so blocks did not run out"
            yield Invariant.EVICTION_ALLOWED, tuple(facts.evicted), text
        for request in running:
            taken = request.new_blocks(facts.scheduled.get(request.id, 0), block_size)
            if request.in_decode and taken > request.blocks_held(facts.limits, facts.policy):
                text = f"drafts of {request.id} take blocks in a pass in which blocks ran out"
                yield Invariant.EVICTION_ALLOWED, (request.id,), text
    cap = facts.policy.max_preemptions
    if cap is not None and not facts.entering:
        spared = [r.id for r in running[1:] if r.id not in facts.evicted and r.num_preemptions < cap]
        protected = [i for i in facts.evicted if facts.requests[i].num_preemptions >= cap]
        if spared and protected:
            text = f"{protected[0]} was evicted {cap} times or more and is again, {spared[0]} stays"
            yield Invariant.EVICTION_ALLOWED, tuple(protected), text


_ONE_PHASE = (BatchComposition.DECODE_FIRST, BatchComposition.SEPARATE)
_PREFILLS_LEAD = (BatchComposition.PREFILL_FIRST, BatchComposition.SEPARATE)


def decode_delay(facts: Facts) -> Findings:
    """10: a pass holds the phases that it may, and no decode that has its block waits for one that ran after it, nor
    for a prefill where decodes lead.
    """
    prefills = [i for i in facts.scheduled if not facts.requests[i].in_decode]
    if prefills and len(prefills) < len(facts.scheduled) and facts.policy.batch_composition in _ONE_PHASE:
        yield Invariant.DECODE_DELAY, (), "the pass holds prefills and decodes, and may hold one of them"
    decodes = [r for r in facts.of(RequestStatus.RUNNING) if r.in_decode and r.id not in facts.evicted]
    waits = [r for r in decodes if r.id not in facts.scheduled and r.new_blocks(1, facts.limits.block_size) == 0]
    if not waits:
        return
    first = min(waits, key=lambda request: (request.last_run, request.order))
    verified = [r.id for r in decodes if facts.scheduled.get(r.id, 0) > 1]
    if verified:
        text = f"{first.id} decodes and waits while {verified[0]} has drafts verified"
        yield Invariant.DECODE_DELAY, (first.id, verified[0]), text
    if prefills and facts.policy.batch_composition not in _PREFILLS_LEAD:
        yield Invariant.DECODE_DELAY, (first.id,), f"{first.id} decodes and waits while {prefills[0]} prefills"
    for request in decodes:
        if request.id in facts.scheduled and (request.last_run, request.order) > (first.last_run, first.order):
            text = f"{first.id} last ran in {first.last_run} and waits, {request.id} ran in {request.last_run} and runs"
            yield Invariant.DECODE_DELAY, (first.id, request.id), text
